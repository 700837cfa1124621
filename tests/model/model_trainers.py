"""The shells of a simulated job's trainers: they carry out what workers' machines say, as `edl.trainer` does.

Owns: what a trainer does by itself, its script too. Does not own: what all members of a ring do together
(`tests.model.model_meetings`, `tests.model.model_beginnings`, `tests.model.model_rings`), nor any decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from edl.core.worker.digest import final
from edl.core.worker.next_move import are_newer
from edl.core.worker.observed_trainer import has_entered
from edl.core.worker.worker_inputs import (
    AbortRings,
    AdoptRing,
    AwaitOrders,
    BatchEnded,
    BatchVoid,
    BootAlone,
    DataWanted,
    EndScript,
    EnterRing,
    Fail,
    LeaveRing,
    OrdersRead,
    PrepareRing,
    ReadOrders,
    RecordRing,
    ReleaseRing,
    RingFailed,
    ScriptEnded,
    ScriptFailed,
    SetWeight,
    StateMeasured,
    StateNeeded,
    StillWaiting,
    TakeCopy,
    TellDaemon,
    TrainStandIns,
)
from edl.core.worker.worker_inputs import Command as TrainerCommand
from edl.core.worker.worker_inputs import Input as TrainerInput
from edl.core.worker.worker_states import ALONE, TrainerState
from edl.protocol.divergence_report import Fingerprint
from tests.model.model_faults import Moment
from tests.model.model_rings import AWAITED_S, NOTICED_S, STEP_TIMEOUT_S
from tests.model.model_worker import SimWorker

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

LOOK_S = 0.0005  # between two looks of a trainer that waits for orders
LONG_VOID = 0.2  # of void mini-batches so many have a long end


class SimShells:
    def __init__(self, job: SimJob) -> None:
        self.job = job

    def tell(self, worker: SimWorker, happened: TrainerInput) -> None:
        self.carry_out(worker, worker.machine.handle(happened))

    def carry_out(self, worker: SimWorker, commands: list[TrainerCommand]) -> None:
        """Carry out the commands of a worker's machine, but for those that all members of a ring carry out together."""
        for command in commands:
            match command:
                case TellDaemon():
                    self._told(worker)
                case ReadOrders():
                    self.look(worker)
                case EnterRing() | AdoptRing() | PrepareRing() | ReleaseRing():
                    self.job.next_rings.carry_out(worker, command)
                case RecordRing() | TakeCopy() | SetWeight():
                    self._set_down(worker, command)
                case BootAlone():
                    self._boot(worker)
                case TrainStandIns():
                    self.broken(worker, "its data never came")
                case EndScript():
                    self.end_script(worker)
                case Fail(reason):
                    self.fail(worker, reason)
                case LeaveRing():
                    self.job.rings.missed(worker)
                case AwaitOrders() | AbortRings():
                    self._wait(worker, command)
                case _:  # a look at newer orders comes with them, and collectives fail by themselves
                    pass

    def _wait(self, worker: SimWorker, command: AwaitOrders | AbortRings) -> None:
        if isinstance(command, AbortRings):
            self.job.beginnings.abort(worker, command.generations)
        elif self.job.processes > 1:  # other limbs may have heard what it waits for
            self.job.after(LOOK_S, self._look_again, worker)

    def _look_again(self, worker: SimWorker) -> None:
        """Look at the newest orders, if the limbs have looked at older ones last."""
        orders, known = worker.orders_read() if worker.alive and not worker.stalled else None, worker.machine.orders
        if orders is not None and (worker.waits or worker.is_held) and are_newer(orders, known):
            self.look(worker)

    def _set_down(self, worker: SimWorker, command: RecordRing | TakeCopy | SetWeight) -> None:
        match command:
            case RecordRing():
                self.job.checks.training.sat(worker)
            case TakeCopy(save, beside):
                self.job.savings.copy(worker, save, beside=beside)
            case SetWeight():
                worker.weight = command.weight

    def _told(self, worker: SimWorker) -> None:
        if worker.told is worker.machine.status:
            return
        self.take_word(worker, worker.hear)

    def take_word(self, worker: SimWorker, hear: Callable[[], bool]) -> None:
        """Let a worker's daemon hear of its trainer; `hear` returns whether the leader need not at once."""
        before = worker.observed.status
        self.job.daemons.stir(worker, calm=hear())
        now = worker.observed.status
        worker.attention = worker.observed.attention_step(worker.orders)
        if now.copied.number > before.copied.number and now.copied.files:
            self.job.savings.store_part(worker)
        if has_entered(before, now):
            self.job.happens(Moment.SITTING, worker)

    def look(self, worker: SimWorker) -> None:
        """Let a trainer look at its orders, where `edl.trainer` lets it follow them."""
        machine, before = worker.machine, worker.doing
        if worker.stalled or not worker.alive or (orders := worker.orders_read()) is None:
            return
        commands = machine.handle(OrdersRead(orders))
        if machine.assignment is not None:
            self.job.checks.enters(worker, before, machine.assignment)
        elif machine.state is TrainerState.LEAVING:
            self.job.checks.leaves(worker, before, orders)
        self.carry_out(worker, commands)
        if machine.state is TrainerState.TRAINING:
            self.job.rings.arm(self.job.rings.rings[worker.generation])

    def _boot(self, worker: SimWorker) -> None:
        self.job.happens(Moment.BOOTING, worker)
        self.job.after(0.02 + 0.2 * self.job.random.random(), self._rehearse, worker)

    def _rehearse(self, worker: SimWorker) -> None:
        if worker.alive and not worker.stalled and worker.doing is TrainerState.BOOTING:
            self._open(worker)
            self.job.happens(Moment.REHEARSING, worker)
            self.job.after(0.02 + 0.1 * self.job.random.random(), self._rehearsed, worker)

    def _rehearsed(self, worker: SimWorker) -> None:
        if worker.alive and not worker.stalled and worker.doing in ALONE:
            self.job.happens(Moment.READY, worker)
            self.tell(worker, BatchEnded())

    def sit(self, worker: SimWorker, commands: list[TrainerCommand]) -> None:
        """Let a worker sit in its ring. In the first one its script goes on from `init` to its first batch."""
        self.carry_out(worker, commands)
        if worker.machine.status.data is None:
            self._open(worker)
        if worker.machine.has_share or self.job.spec is None:
            self.job.rings.arm(self.job.rings.rings[worker.generation])
        elif worker.alive:  # what it has heard on the way
            self.wait_on(worker)

    def wait_on(self, worker: SimWorker) -> None:
        """Let a script wait for samples: it looks at its orders in between."""
        if worker.is_hungry() and (orders := worker.orders_waiting()) is not None:
            self.tell(worker, StillWaiting(orders))
            if self.job.processes > 1 and worker.sits and worker.machine.has_share and not worker.is_hungry():
                self.job.rings.arm(self.job.rings.rings[worker.generation])  # limbs take their samples as they look

    def stepped(self, worker: SimWorker, commands: list[TrainerCommand]) -> None:
        self.job.daemons.stir(worker)
        if worker.alive and not worker.stalled:
            self.carry_out(worker, commands)
        if worker.sends_state and not worker.machine.status.state_bytes:
            self.tell(worker, StateMeasured(self.job.state_bytes))

    def broken(self, worker: SimWorker, reason: str, awaited: str = "", waited_s: float = 0.0) -> None:
        """Break a worker's ring; the mini-batch in flight, if there was one, is void (I8).

        Now and then the script has a lot to do until the end of that, unless it was at something of its own just
        before.
        """
        if not worker.sits:
            commands = worker.machine.handle(RingFailed(reason))
            self.job.rings.missed(worker)
            self.carry_out(worker, commands)
            return
        worker.model = worker.model.disturbed(worker.id)
        self.carry_out(worker, worker.machine.handle(BatchVoid(reason, awaited, waited_s)))
        rested = self.job.now - worker.busy_until > NOTICED_S
        if worker.is_void and rested and self.job.scripts.random() < LONG_VOID:
            self.job.rings.missed(worker)
            self.job.after(AWAITED_S * self.job.scripts.random(), self._end_void, worker, worker.generation)
        else:
            self._end_void(worker, worker.generation)

    def _end_void(self, worker: SimWorker, generation: int) -> None:
        if worker.sits and not worker.stalled and worker.machine.void is not None and worker.generation == generation:
            commands = worker.machine.handle(BatchEnded())
            self.job.rings.missed(worker)
            self.carry_out(worker, commands)

    def begin_pass(self, worker: SimWorker) -> None:
        worker.wanted += 1
        self._open(worker)

    def _open(self, worker: SimWorker) -> None:
        """The script asks for samples, if the job hands them out."""
        if self.job.spec is not None:
            self.tell(worker, DataWanted(msgspec.structs.replace(self.job.spec, epochs=worker.wanted)))
            self.job.readers.begin(worker)

    def end_script(self, worker: SimWorker) -> None:
        """The generator has come to its end, or the trainer was told to go. What it copies, it has copied before."""
        self.job.savings.finish(worker)
        trained = worker.machine.generation and worker.machine.step
        state = final(worker.machine.step, [Fingerprint("weight", worker.model.learned)]) if trained else ()
        commands = worker.machine.handle(ScriptEnded(state))
        self.job.rings.missed(worker)
        self.carry_out(worker, commands)

    def fail(self, worker: SimWorker, reason: str) -> None:
        worker.machine.handle(ScriptFailed(reason))
        self.end_script(worker)

    def evaluate(self, for_s: float, *, alone: bool = False) -> None:
        """The scripts of all members of the ring do something of their own between two mini-batches, or that of one."""
        here = [worker for worker in self.job.workers.values() if worker.doing is TrainerState.TRAINING]
        if not alone:
            for worker in here:
                worker.machine.handle(StateNeeded())
            self.job.rings.complete(here)
        for worker in here[:1] if alone else here:
            left_s = STEP_TIMEOUT_S - self.job.rings.waited_for(worker)  # of what a step may take in all
            worker.takes_long = worker.takes_long or for_s > AWAITED_S
            self.occupy(worker, for_s if worker.takes_long else min(for_s, max(0.0, left_s)))
        self.job.note(f"scripts are at something of their own for {for_s:.3f} s: {'one' if alone else 'all'}")

    def occupy(self, worker: SimWorker, for_s: float) -> None:
        """Occupy a script with something of its own before its next mini-batch."""
        worker.busy_until = self.job.now + for_s
        self.job.after(for_s, self._come_back, worker)

    def _come_back(self, worker: SimWorker) -> None:
        """Let the script come to its next mini-batch, and to what was heard meanwhile."""
        if worker.busy_until > self.job.now or worker.stalled or worker.doing is not TrainerState.TRAINING:
            return
        self.job.rings.arm(self.job.rings.rings[worker.generation])
        self.wait_on(worker)
