"""The messages between a daemon and the stand-in of its slot about horovodrun's driver.

The driver counts its workers anew when its hosts change: it waits until each slot has asked for its new rank, frees the
slots that it has no room for, and starts the missing ones. Such a count is a recount. The leader numbers recounts.
"""

from __future__ import annotations

import msgspec


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """The request to the stand-in to ask the driver for this slot's rank, once for each recount; 0 asks for none."""

    recount: int


class Word(msgspec.Struct, frozen=True, tag="word"):
    """The complete state of the stand-in."""

    noticed: float = 0.0  # when the driver has told of a change of hosts, by this host's wall clock
    answered: int = 0  # the newest recount that the driver has answered
    freed: bool = False  # by that answer the slot is none of the driver's workers any more
    size: int = 0  # workers in that count
    slots: int = 0  # workers of this host in that count
    gone: bool = False  # the stand-in itself is gone: to the driver the slot has failed
    leave: bool = False  # the driver gives up this host, or the user gives up this worker
