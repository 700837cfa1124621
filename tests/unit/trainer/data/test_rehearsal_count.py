"""A newcomer's mini-batches that do not count (`edl.trainer.data.job_port`), where the framework asks for
several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from edl.config import Settings
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_machine import WorkerMachine
from edl.protocol.assignment import Assignment, Orders, Place, Share, Verdict
from edl.protocol.data_nouns import Lease, Range, Totals
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.leader_messages import Phase
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.registered_state import RegisteredState
from edl.trainer.trainer import Trainer
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Arrays
from edl.trainer.worker_shell import WorkerShell
from edl.transport.shared_page import SharedPage

ALONE = Orders(1, 1, Verdict.STAY, "", 0, 1, 1, True, None, ())
THEN = Assignment(Place(2, 0, 1, "w"), 0, 0)
LEASED = Share(2, 0, (Lease(1, 0, 4, 4, (Range(0, 0, 16),)),), (Totals(4, 16),), 4, 1, last=True)


class Ring:
    prepares = False

    def __init__(self) -> None:
        self.entered: list[int] = []

    def enter(self, place: Place, timeout_s: float) -> None:
        self.entered.append(place.generation)

    def leave(self) -> None: ...
    def abort(self, given_up: range | None = None) -> None: ...
    def largest(self, values: Sequence[int]) -> list[int]:
        return list(values)

    def same(self, value: int) -> Callable[[], bool]:
        return lambda: True


class Framework:
    apart = None

    def __init__(self) -> None:
        self.ring, self.sort, self.updates_due = Ring(), Arrays(), UpdatesDue()
        self.compared_in: list[int] = []  # rings

    def fingerprints(self, more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
        self.compared_in.append(self.ring.entered[-1])
        return []

    def discard(self) -> None: ...
    def put_back(self) -> None: ...
    def set_weight(self, weight: float, *, weightless: bool = False) -> None: ...
    def applied(self) -> None: ...
    def synchronize(self, root: int) -> int:
        return 0

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None: ...


class Link:
    """First it is to boot alone, and once it has told that it has rehearsed, it is to enter a ring."""

    worker, folder = "w", Path("/nowhere")

    def __init__(self, machine: WorkerMachine) -> None:
        self.orders, self.page, self.machine = ALONE, SharedPage.unshared(), machine
        self.page.attention_step = NEVER
        self.rehearsed = 0

    def tell(self) -> None:
        self.rehearsed += self.machine.status.phase is Phase.READY

    def wait_news(self, older: Orders | None) -> Orders:
        self.orders = Orders(1, 2, Verdict.STAY, "", 0, 1, 1, False, THEN, (LEASED,)) if older is ALONE else ALONE
        return self.orders


def newcomer(rehearsals: int) -> tuple[Trainer, Link, Framework]:
    framework: Any = Framework()
    shell = WorkerShell(framework, SharedLeases(), RegisteredState(framework.sort), rehearsals)
    trainer = Trainer(framework, shell=shell)
    link: Any = Link(shell.machine)
    trainer.take_seat(Settings(step_timeout_s=1.0, batch_size=4), link)
    shell.take_first()
    return trainer, link, framework


def test_the_others_are_told_after_the_last_of_them() -> None:
    for rehearsals in (1, 2, 3):
        trainer, link, framework = newcomer(rehearsals)
        batches = trainer.data.elastic_shard_generator(16, epochs=1).batches(4)
        for left in range(rehearsals, 0, -1):
            assert (next(batches).tolist(), trainer.rehearsals.left) == ([0, 1, 2, 3], left)
            assert trainer.rehearsing() and trainer.data.own_samples() == 0
            assert (link.rehearsed, framework.ring.entered, framework.compared_in) == (0, [0], [])
            assert trainer.notify_batch_end() is False
        assert (link.rehearsed, framework.ring.entered, trainer.rehearsing()) == (1, [0, 2], False)
        assert framework.compared_in[0] == 0, "once in its ring of one, as all others wait for the first time"
        assert [int(one) for batch in batches if trainer.notify_batch_end() for one in batch] == list(range(16))
