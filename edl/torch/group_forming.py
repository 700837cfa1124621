"""Form a ring of process groups in a thread of its own, so that a stuck attempt can be left alone.

Owns: its thread, its deadline, giving it up, and ending the ring in that thread once it is left: that may take long,
too, and from Python 3.12 on a process that ends can start no thread. Does not own: what is formed
(`edl.torch.process_groups`).

Nothing in torch is global to a process but the default group, which is not used. So an attempt that is stuck in gloo,
for a member that froze while all connect, costs a thread until gloo's own time-out, and no later ring anything.
"""

from __future__ import annotations

import threading

from edl.errors import RingBroken, RingFault
from edl.protocol.ring_places import Place
from edl.torch.nccl_sums import Gpu
from edl.torch.process_groups import ProcessGroups


class GroupForming:
    """An attempt to form a ring. It is waited for once."""

    def __init__(self, place: Place, timeout_s: float, gpu: Gpu | None = None, *, all_prepare: bool = False) -> None:
        """`all_prepare`: each member forms it beside a ring that works, so it takes its time to form as a whole."""
        self._all_prepare = all_prepare
        self.groups = ProcessGroups(place, timeout_s, gpu)
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._over = threading.Event()  # one way or the other
        self._reason = ""  # why it came to nothing
        self._formed = False
        self.left = threading.Event()  # no caller needs the ring any more
        self.thread = threading.Thread(target=self._form, name="edl-forming", daemon=True)
        self.given_up = ""  # why, also where that came too late for the attempt

    @property
    def generation(self) -> int:
        return self.groups.place.generation

    def wait(self) -> ProcessGroups:
        """Raises RingBroken, in time."""
        self.thread.start()
        if not self._over.wait(self._timeout_s):
            self.give_up(f"not all members came within {self._timeout_s:g} s")
        if self._reason:
            raise RingBroken(f"the ring did not form: {self._reason}")
        return self.groups

    def give_up(self, reason: str = "it was aborted") -> None:
        """Give the attempt up. Any thread may call this."""
        self.given_up = self.given_up or reason
        if self._end(reason):
            self.groups.give_up(reason)

    def _form(self) -> None:
        try:
            self.groups.form()
            if self._all_prepare:
                self.groups.await_sums()
        except RingBroken as error:
            self._end(self.groups.broken or str(error))
        except BaseException as error:
            self._end(str(RingFault.of(error)))
            raise
        else:
            self._end("")
        if not self._formed:
            self.groups.give_up(self._reason)
            self.groups.close()
        elif self.groups.place.size > 1:
            self.left.wait()
            self.groups.close()

    def _end(self, reason: str) -> bool:
        """False: it was over."""
        with self._turn:
            if self._over.is_set():
                return False
            self._reason, self._formed = reason, not reason
            self._over.set()
            return True
