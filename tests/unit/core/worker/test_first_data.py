"""A script that waits for its first data, in a ring that is gone before the leader knew that it stood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edl.config import Settings
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import OrdersHeard
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import TrainerState
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

BEYOND = Orders(1, 5, Verdict.STAY, "", 0, 0, 0, False, Assignment(Place(2, 0, 1, "w"), None, 0), ())
LEASED = Share(2, 0, (Lease(1, 0, 4, 4, (Range(0, 0, 16),)),), (Totals(4, 16),), 4, 1, last=True)
THEN = Orders(1, 6, Verdict.STAY, "", 0, 0, 0, False, None, (LEASED,))


class FakeRing:
    """Of which this worker is the only member that is left."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.entered: list[int] = []

    def enter(self, place: Place, timeout_s: float) -> None:
        self.entered.append(place.generation)

    def leave(self) -> None: ...
    def abort(self, given_up: range | None = None) -> None: ...
    def largest(self, values: Sequence[int]) -> list[int]:
        return list(values)


class FakeFramework:
    def __init__(self) -> None:
        self.ring, self.sort, self.apart = FakeRing(), Arrays(), None
        self.updates_due = UpdatesDue()

    def discard(self) -> None: ...
    def put_back(self) -> None: ...
    def set_weight(self, weight: float, *, weightless: bool = False) -> None: ...
    def applied(self) -> None: ...
    def fingerprints(self, more: Any) -> list[Fingerprint]:
        return []


class FakeLink:
    """What comes after the orders that send this worker to another ring is that ring's data."""

    machine: WorkerMachine
    folder = Path("/nowhere")

    def __init__(self) -> None:
        self.orders, self.page, self.told = BEYOND, SharedPage.unshared(), list[Phase]()
        self.page.attention_step = NEVER

    def tell(self) -> None:
        self.told.append(self.machine.status.phase)

    def wait_news(self, older: Orders | None) -> Orders:
        self.orders = THEN
        return THEN


def test_it_is_given_an_uncounted_mini_batch_and_then_trains_in_the_ring_that_follows() -> None:
    framework: Any = FakeFramework()
    shell = WorkerShell(framework, SharedLeases(), RegisteredState(framework.sort))
    trainer = Trainer(framework, shell=shell)
    link: Any = FakeLink()
    machine = link.machine = shell.machine
    trainer.take_seat(Settings(step_timeout_s=1.0, batch_size=4), link)
    machine.state, machine.generation, machine.size = TrainerState.TRAINING, 1, 2
    machine.handle(OrdersHeard(BEYOND))
    batches = trainer.data.elastic_shard_generator(16, epochs=1).batches(4)
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert trainer.rehearsing() and trainer.voided
    assert trainer.notify_batch_end() is False
    assert Phase.BROKEN in link.told
    assert (framework.ring.entered, trainer.generation(), trainer.rehearsing()) == ([2], 2, False)
    taken = []
    for batch in batches:
        taken += batch.tolist()
        assert trainer.notify_batch_end()
    assert taken == list(range(16))
