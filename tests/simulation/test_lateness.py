"""Nothing is later in a simulated job than the leader's deadlines allow: else a failing seed shows no fault."""

from __future__ import annotations

from typing import Any

import pytest

from edl.core.job.leader_inputs import Input, Reported
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Phase, Register
from tests.model import Planned, SimFault, SimJob, scenario
from tests.model.model_daemons import HEARD_S, LATE_S, SimDaemons
from tests.model.model_rings import AWAITED_S, NOTICED_S, STEP_S, STEP_TIMEOUT_S
from tests.model.model_trainers import SimShells
from tests.model.model_worker import SimWorker
from tests.model.simulation import DEADLINES


def test_what_a_member_does_that_is_well_takes_no_longer_than_others_wait() -> None:
    assert DEADLINES.finding_s >= NOTICED_S + HEARD_S, "it finds its ring broken, and says so"
    assert DEADLINES.step_s >= AWAITED_S + NOTICED_S, "it comes to a step in which others wait"
    comes_s = AWAITED_S + NOTICED_S
    assert DEADLINES.seat_s >= comes_s + STEP_TIMEOUT_S + HEARD_S, "to the next ring, and says that it does not form"
    registers_s = 2 * LATE_S
    assert DEADLINES.seat_s >= registers_s + STEP_TIMEOUT_S + HEARD_S, "likewise where it has yet to hear of its seat"


def test_others_wait_less_for_word_of_a_broken_ring_than_a_void_mini_batch_and_what_a_script_does_may_take() -> None:
    assert DEADLINES.finding_s < AWAITED_S, "else no job shows that a leader needs that word"


class TimedDaemons(SimDaemons):
    """Remembers when each worker was first found to be broken, and how long its leader took to hear of it."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.broke: dict[tuple[str, int], tuple[float, object]] = {}
        self.took: list[float] = []

    def stir(self, worker: SimWorker, *, calm: bool = False) -> None:
        super().stir(worker, calm=calm)
        if worker.phase is Phase.BROKEN and worker.daemon == 1 and worker.admitted:
            self.broke.setdefault((worker.id, worker.observed.status.generation), (self.job.now, self.job.leader))


class TimedJob(SimJob):
    daemons: TimedDaemons
    daemons_class = TimedDaemons

    def arrive(self, said: Input, *more: Any) -> None:
        if isinstance(said, Reported) and said.observation.phase is Phase.BROKEN:
            since, leader = self.daemons.broke.get((said.worker, said.observation.generation), (self.now, None))
            if leader is self.leader:
                self.daemons.broke[said.worker, said.observation.generation] = (since, None)  # a later one is no news
                self.daemons.took.append(self.now - since)
        super().arrive(said, *more)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 100])
def test_a_leader_that_is_there_hears_of_a_broken_ring_within_its_time(first: int) -> None:
    took: list[float] = []
    for seed in range(first, first + 100):
        job = scenario(seed, TimedJob)
        job.run()
        assert isinstance(job.daemons, TimedDaemons)
        took += [] if job.struck[SimFault.RENEW_DAEMON] else job.daemons.took
    assert len(took) > 50
    assert HEARD_S / 2 < max(took) <= HEARD_S


class RegisteringDaemons(SimDaemons):
    """Remembers which daemons no leader has answered yet when another one takes over."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.waiting: set[str] = set()

    def find_leader(self) -> None:
        living = [one for one in self.job.workers.values() if one.alive and one.daemon]
        self.waiting = {one.id for one in living if one.id in self.roll and not (one.admitted and one.presented)}
        super().find_leader()


class RegisteringJob(SimJob):
    daemons: RegisteringDaemons
    daemons_class = RegisteringDaemons

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.took: list[float] = []

    def arrive(self, said: Input, *more: Any) -> None:
        if isinstance(said, Register) and said.identity.id in self.daemons.waiting:
            self.daemons.waiting.discard(said.identity.id)
            self.took.append(self.now - self.leader.since)
        super().arrive(said, *more)


def test_a_new_leader_hears_at_once_of_those_that_the_one_before_has_not_answered() -> None:
    took: list[float] = []
    for seed in range(40):
        job = RegisteringJob(DataSpec(total=40, epochs=1, batch=2), seed=seed, workers=3)
        job.plan([Planned(SimFault.CHANGE_LEADER, 0.001), Planned(SimFault.RENEW_DAEMON, 0.1)])
        job.plan([Planned(SimFault.CRASH_LEADER, 0.101)])
        job.run()
        took += job.took
    assert len(took) > 50
    assert max(took) <= LATE_S


class HeldShells(SimShells):
    """Remembers for how long the script of a worker was at something of its own."""

    def __init__(self, job: SimJob) -> None:
        super().__init__(job)
        self.held: list[tuple[SimWorker, float]] = []

    def occupy(self, worker: SimWorker, for_s: float) -> None:
        self.held.append((worker, for_s))
        super().occupy(worker, for_s)


class HeldJob(SimJob):
    shells: HeldShells
    shells_class = HeldShells


@pytest.mark.slow
def test_scripts_are_at_something_of_their_own_now_and_then_and_not_for_too_long() -> None:
    held: list[tuple[SimWorker, float]] = []
    for seed in range(200, 300):
        job = scenario(seed, HeldJob)
        job.run()
        assert isinstance(job.shells, HeldShells)
        held += job.shells.held
    assert len(held) > 10
    assert max(for_s for _, for_s in held) <= STEP_TIMEOUT_S + 2 * STEP_S, "until others have given up"
    assert not any(worker.takes_long for worker, _ in held)
