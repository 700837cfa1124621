"""Accept each message once.

A sender numbers its messages 1, 2, 3, ... under a boot id that it draws at random when it starts. Numbers may overtake
each other a little (calls of one process run side by side), so a window of late numbers is remembered, as IPsec does
(RFC 4303, 3.4.3); numbers older than the window are refused, whether they were seen or not.
"""

from __future__ import annotations

from collections import OrderedDict

WINDOW = 1024
BOOTS = 8192


class _Seen:
    """The numbers of one sender: bit k of `mask` tells that `highest - k` was received."""

    __slots__ = ("highest", "mask")

    def __init__(self) -> None:
        self.highest = 0
        self.mask = 0


class ReplayGuard:
    """Remember the messages received, in bounded memory: the sender that was silent longest is forgotten first.

    Only holders of the secret can make a new boot id, so a stranger cannot push a sender out. Messages of a forgotten
    sender are still bound to their term.
    """

    def __init__(self, window: int = WINDOW, boots: int = BOOTS) -> None:
        self._window = window
        self._boots = boots
        self._kept = (1 << window) - 1
        self._senders: OrderedDict[bytes, _Seen] = OrderedDict()

    def admit(self, boot: bytes, number: int) -> bool:
        """Return True the first time, False ever after."""
        if number < 1:
            return False
        seen = self._senders.get(boot)
        if seen is None:
            seen = self._senders[boot] = _Seen()
            if len(self._senders) > self._boots:
                self._senders.popitem(last=False)
        self._senders.move_to_end(boot)
        return self._admit(seen, number)

    def _admit(self, seen: _Seen, number: int) -> bool:
        ahead = number - seen.highest
        if ahead > 0:
            shifted = seen.mask << ahead if ahead < self._window else 0  # a huge number must not make a huge integer
            seen.mask = (shifted | 1) & self._kept
            seen.highest = number
            return True
        bit = 1 << -ahead if -ahead < self._window else 0
        if not bit or seen.mask & bit:
            return False
        seen.mask |= bit
        return True
