"""What a daemon must know of its trainer at any moment: as much as another daemon would be told in its place (I9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from edl.core.worker.account import TrainerAccount
from edl.protocol import link as say
from edl.protocol.messages import Phase
from edl.testing.worker import SimWorker

Known = dict[str, object]


class AccountChecks:
    """Of one job. `violated`: what to call when an invariant does not hold."""

    def __init__(self, violated: Callable[[str, str], NoReturn]) -> None:
        self._violated = violated
        self._entered: dict[str, int] = {}  # by worker: the newest generation whose ring it has gone to

    def enters(self, worker: SimWorker, generation: int) -> None:
        """It goes to that ring. When it has failed there, what follows is the leader's to say: under another number."""
        if generation <= self._entered.get(worker.id, 0):
            self._violated("I2", f"{worker.id} goes to ring {generation} again")
        self._entered[worker.id] = generation

    def reports(self, worker: SimWorker) -> None:
        """Its daemon reports what it knows."""
        if not worker.alive or not worker.presented or worker.stalled:  # one that hangs tells no daemon anything
            return
        another = TrainerAccount()
        another.hear(say.Hello(prepares=worker.prepares))
        for message in worker.machine.story():
            another.hear(message)
        if worker.machine.copying.newest > worker.account.copied[0]:  # it is at another one now
            another.copied = worker.account.copied
        known, told = known_of(worker.account), known_of(another)
        if differing := [name for name in known if known[name] != told[name]]:
            said = ", ".join(f"{name} {known[name]} for {told[name]}" for name in differing)
            self._violated("I9", f"the daemon of {worker.id} knows otherwise than another would: {said}")


def known_of(account: TrainerAccount) -> Known:
    """Without what is told once and needs no telling again: pauses, and what a ring that stands has overtaken."""
    failed = account.phase in (Phase.BROKEN, Phase.FAILED)
    return {
        "phase": account.phase,
        "generation": account.generation,
        "began": account.began,
        "reason": account.reason if failed else "",
        "foreign": account.foreign,
        "data": account.data,
        "void": account.void,
        "leaving": account.leaving,
        "booted": account.booted,
        "missed": account.missed if account.missed > account.generation else 0,
        "marked": account.marked if account.marked[0] else (0, 0),
        "prepared": account.prepared,
        "diverged": account.diverged,
        "final": account.final,
        "joined": account.joined,
        "copied": account.copied,
    }
