"""What a daemon and the stand-in of its slot say to each other about horovodrun's driver.

The driver counts its workers anew when its hosts change: it waits until each slot has asked for its new rank, frees
those that it has no room for, and starts those that are missing. That is a recount. The leader numbers them.
"""

from __future__ import annotations

import msgspec


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """To the stand-in: ask the driver for this slot's rank, once for each number; 0 is not to be asked for."""

    recount: int


class Word(msgspec.Struct, frozen=True, tag="word"):
    """Of the stand-in, whole each time."""

    noticed: float = 0.0  # when the driver has told of a change of hosts, by the wall clock here
    answered: int = 0  # the newest recount that the driver has answered
    freed: bool = False  # by that answer: the slot is not one of its workers any more
    size: int = 0  # how many it counted
    slots: int = 0  # and how many of them on this host
    gone: bool = False  # the stand-in itself is: in the driver's eyes the slot has failed
    leave: bool = False  # the driver gives up this host, or the user this worker
