"""A machine that passes over reports from which nothing follows decides as one that looks at all members each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import Input, Reported, TimePassed, Vanished
from edl.core.job.leader_machine import JobMachine, new_record
from edl.protocol.data_nouns import DataSpec
from edl.protocol.leader_messages import Observation, Phase, Register
from edl.protocol.record import Identity

SIZE = 4
SPEC = DataSpec(total=400, epochs=1, batch=10)

moves = st.tuples(
    st.integers(0, SIZE),
    st.sampled_from(
        ["step", "step", "sit", "sit", "sit", "break", "break", "break", "fail to sit", "end", "go", "wait"]
    ),
)


class Worker:
    """One that says what it likes of the rings that it is told of."""

    def __init__(self, number: int) -> None:
        self.id = f"w{number}"
        self.identity = Identity(self.id, f"host{number % 2}", f"10.0.0.{number % 2}", number, number)
        self.phase, self.generation, self.leases_of, self.step = Phase.BOOTING, 0, 0, 0

    def input(self, move: str, machine: JobMachine) -> Input:
        plan = machine.record.plan
        planned = plan is not None and self.id in plan.roster and self.phase not in (Phase.DONE, Phase.FAILED)
        if move == "go":
            return Vanished(self.id, "its daemon's session ended")
        covered = 0 if machine.ledger is None else machine.ledger.covered_step
        if move == "step" and self.phase is Phase.TRAINING and self.step < covered:
            self.step += 1
        elif move == "break" and self.phase is Phase.TRAINING:
            self.phase = Phase.BROKEN
        elif move == "end" and self.phase is Phase.TRAINING:
            self.phase = Phase.DONE
        elif move == "sit" and planned and plan is not None and self.generation < plan.generation:
            self.phase, self.generation = Phase.TRAINING, plan.generation
            self.leases_of = plan.generation if plan.after_step is not None else max(self.leases_of, 1)
        elif move == "fail to sit" and planned and plan is not None and self.generation < plan.generation:
            self.phase, self.generation = Phase.BROKEN, plan.generation
        return Reported(self.id, self.seen())

    def seen(self) -> Observation:
        booted = self.generation > 0
        data = SPEC if booted else None
        reason = "connection reset by peer" if self.phase is Phase.BROKEN else ""
        return Observation(
            phase=self.phase,
            generation=self.generation,
            step=self.step,
            leases_of=self.leases_of,
            step_time_s=0.01,
            data=data,
            reason=reason,
            booted=booted,
        )


@given(st.lists(moves, max_size=60), st.booleans())
def test_what_is_passed_over_changes_nothing(played: list[tuple[int, str]], first_stands: bool) -> None:
    quick, plain = (JobMachine(new_record("j", 0.0), LeadTimes.of(10.0)) for _ in range(2))
    plain._arrivals.matters = lambda *_: True  # type: ignore[method-assign]
    workers = [Worker(number) for number in range(SIZE + 1)]
    begin: list[Input] = [Register(worker.identity, SIZE, 1, 0) for worker in workers[:SIZE]]
    now = 0.0

    def feed(happened: Input, passes_s: float = 0.01) -> None:
        nonlocal now
        now += passes_s
        assert quick.handle(happened, now) == plain.handle(happened, now)
        assert quick.record == plain.record

    for happened in begin:
        feed(happened)
    for worker in workers[:SIZE] if first_stands else ():
        feed(worker.input("sit", quick))
    feed(Register(workers[SIZE].identity, SIZE, 1, 0))
    for number, move in played:
        if move == "wait":
            feed(TimePassed(), 0.5)
        else:
            feed(workers[number].input(move, quick))
