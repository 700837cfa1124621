"""Upper bounds, in seconds, of the end of a launch and of its workers."""

from __future__ import annotations

import msgspec

END_GRACE_S = 5.0  # between TERM and KILL, as horovodrun's
GO_GRACE_S = 2.0  # for the workers of a job that is preempted to end by themselves, before TERM
TELL_GRACE_S = 1.0  # for a leader to take it that the job is interrupted, before TERM
KILL_GRACE_S = 5.0  # a process that outlives KILL for so long hangs in the kernel: give up on it


class Bounds(msgspec.Struct, frozen=True):
    doubt_s: float  # for a leader to notice that a worker is gone, and for the others to go on without it
    settle_s: float  # for daemons to end after their trainers, and for workers to end after their job

    @classmethod
    def of(cls, session_timeout_s: float, step_timeout_s: float) -> Bounds:
        # The dead worker may have been the leader: the next leader may come after a whole session time-out, and only
        # then finds that the worker is gone. A ring may take two step time-outs to form without it.
        return cls(
            doubt_s=2 * (session_timeout_s + step_timeout_s),
            settle_s=step_timeout_s + 2 * session_timeout_s,  # PyTorch alone takes a second of a core to end
        )
