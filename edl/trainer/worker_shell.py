"""The shell of a worker's machine: its hands, which carry out what it says, on whichever thread it is said.

Owns: the trainer's machine and the lock around it, and carrying out its commands: rings, copies of the state, weights,
words to the daemon, ends. Does not own: any decision (`edl.core.worker.worker_machine`), the end of a mini-batch
(`edl.trainer.step_end`), nor the talk with the daemon (`edl.trainer.daemon_link`).

The machine takes one input at a time, under a lock that is held for as long as it thinks, never while a command is
carried out. So the thread that hears the daemon can cut the collective in which the training thread waits.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from edl import ownership
from edl.core.job.deadlines import Deadlines
from edl.core.worker.agreement import Vote
from edl.core.worker.limb_votes import ELSEWHERE, UpdateVote
from edl.core.worker.next_move import are_newer
from edl.core.worker.worker_inputs import (
    AbortRings,
    AdoptRing,
    Agree,
    AwaitOrders,
    BatchEnded,
    BootAlone,
    BreakIteration,
    Command,
    CopyRest,
    CopyState,
    EndScript,
    EnterRing,
    Fail,
    FetchPortion,
    FetchState,
    FiguresReported,
    HealingBegins,
    Input,
    LeaveRing,
    OrdersHeard,
    OrdersRead,
    PrepareRing,
    ReadOrders,
    RecordRing,
    RecordStep,
    ReleaseRing,
    RingFailed,
    SendState,
    SetWeight,
    StateComes,
    StateCopied,
    StateMeasured,
    StateNeeded,
    StatePortion,
    StepCovered,
    StillWaiting,
    TakeCopy,
    TellDaemon,
    TrainStandIns,
    VotesHeard,
)
from edl.core.worker.worker_inputs import BatchVoid as Void
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import ENDING, TrainerState
from edl.errors import EdlError, JobFailed, RingBroken, UsageError
from edl.protocol.assignment import Orders, Verdict, solo
from edl.protocol.checkpoint_record import Save
from edl.trainer.daemon_link import DaemonLink
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.exit_paths import Interruption, Leaving, exit_preempted
from edl.trainer.framework_port import Framework
from edl.trainer.limb_agreement import LimbAgreement
from edl.trainer.registered_state import RegisteredState
from edl.trainer.ring_builder import RingBuilder, RingSwitch, failed_by
from edl.trainer.ring_waits import RingWaits
from edl.trainer.snapshot_writer import SnapshotWriter
from edl.trainer.state_handoff import StateHandoff, StateSource
from edl.trainer.void_batches import StepUndo
from edl.transport.shared_page import SharedPage

logger = logging.getLogger("edl")

Aside = (
    TellDaemon
    | BootAlone
    | LeaveRing
    | AbortRings
    | PrepareRing
    | ReleaseRing
    | SendState
    | FetchPortion
    | TakeCopy
    | TrainStandIns
)  # of no answer

PATIENCE_S = 10.0  # before a script is told that it waits for other workers


class WorkerShell:
    """The machine of one trainer, and its hands. Methods run on the training thread unless they say otherwise."""

    def __init__(
        self, framework: Framework, leases: SharedLeases, extras: RegisteredState, rehearsals: int = 1
    ) -> None:
        """`rehearsals`: of a newcomer, in its ring of one."""
        self.count = SharedPage.unshared().count()  # in the daemon's page, once there is one
        self.machine = WorkerMachine(leases, self.count, lambda: self._change.pause)
        self.audit = Audit()
        self.step_timeout_s = 0.0  # set by `init`, as the number of the training thread
        self.thread = 0
        self.rehearsals = Rehearsals()
        self.inherited = False  # by a child that the script has forked or spawned, where nothing of this is of use
        self.stand_ins_due = False  # it is to be handed out, as the script waits for data that never comes
        self.state_came: Callable[[], object] = lambda: None  # of another worker, before its samples may be handed out
        self.state_changes: Callable[[], object] = lambda: None  # by an update: it waits for those who read it
        self._framework = framework
        self._at_boot = rehearsals
        self.leases = leases
        self.extras = extras
        self.kept = StepUndo(framework, extras)
        self.beside = StateHandoff(framework, extras)
        self._preparer = RingBuilder(framework, self.beside, self.hear)
        self._change = RingSwitch(framework, self.beside, self._preparer)
        self.copier = SnapshotWriter(framework, extras, self.hear)
        self.interruption = Interruption(lambda: self.machine.state in ENDING)
        self._link: DaemonLink | None = None
        self._orders: Orders | None = None  # the newest that the training thread has looked at
        self._turn = threading.Lock()  # whose input the machine takes
        self._weighing = threading.Lock()  # between a pipeline's thread and the one that trains
        self._weighed = 0  # number of the weight that holds
        self._measured = 0  # the generation in which the size of its state was
        self._applied: float | None = None  # the weight of this worker in the newest update
        self._settled: int | None = None  # the step after which the newest came that counts, whatever fails beside it
        self._reduced: int | None = None  # the step after which the newest came that has had a collective
        self._patient_until = time.monotonic() + PATIENCE_S
        self.waits = RingWaits(framework)
        self.limbs: LimbAgreement | None = None  # of a worker of several processes
        self._vote: UpdateVote | None = None  # of those, on the mini-batch being worked on
        self._has_state = False  # a state has come beside that mini-batch

    @property
    def is_training_thread(self) -> bool:
        return threading.get_ident() == self.thread

    @property
    def limb(self) -> int:
        """The number of this process among those of its worker."""
        return 0 if self.limbs is None else self.limbs.limb

    @property
    def link(self) -> DaemonLink:
        """Raise RuntimeError before a daemon was started."""
        if self._link is None:
            raise RuntimeError("no daemon was started yet")
        return self._link

    @link.setter
    def link(self, link: DaemonLink) -> None:
        self._link = link
        count = link.page.count()
        count.step, count.usual_until = self.count.step, self.count.usual_until
        self.machine.count = self.count = count

    # ------------------------------------------------------------------------------------------------ what happens

    def hear(self, happened: Input) -> None:
        """Take an input, and carry out what follows, until the script may go on. Any thread, as the input says.

        Raises what the commands say: the end of the script, or of its iteration.
        """
        if self.inherited:
            raise UsageError(f"edl: {ownership.refusal()}")
        answer: Input | None = happened
        while answer is not None:
            with self._turn:
                commands = self.machine.handle(answer)
            answer = None
            for command in commands:
                answer = self._carry_out(command)
            if answer is not None and self.limbs is not None and not isinstance(answer, OrdersRead):
                answer = self.limbs.answer(answer)

    def be_inherited(self) -> None:
        """Count no steps of a forked child in the page, as the parent's daemon takes what is counted there as done."""
        self.inherited = True
        count = SharedPage.unshared().count()
        count.step = self.count.step
        self.machine.count = self.count = count

    def take_news(self, orders: Orders) -> None:
        """Take orders on the link's thread, as some cannot wait for the end of a mini-batch."""
        self.hear(OrdersHeard(orders))
        if orders.resumable:
            self.interruption.begin(orders.reason)

    def introduce(self, limbs: int) -> None:
        """Tell the machine what this trainer is able to do, as one of so many processes. Call it before the trainer has
        a daemon.
        """
        able = {"prepares": self._framework.ring.prepares, "sends_state": self._framework.apart is not None}
        self.machine.introduce(**able, limbs=limbs)

    def join_limbs(self, limbs: LimbAgreement, processes: int, exchange: Callable[[int, int], list[int]]) -> None:
        """Decide as the other processes of this worker. `exchange` exchanges a number with the members of a prepared
        ring.
        """
        self.limbs = limbs
        self.copier.join_limbs(limbs.limb, processes, limbs.stages)
        self._preparer.exchange = exchange

    def take_first(self) -> None:
        """Enter the first ring of the job, or a ring of one to boot in."""
        self._framework.ring.on_trial = lambda: self.machine.on_trial
        self.hear(OrdersRead(None))

    def void(self, error: BaseException, *, keep: bool) -> None:
        """Void the mini-batch being worked on: its update must not be made. `keep`: the script has come to its
        gradients, so what it does to registered values from here on counts as little. On the training thread.
        """
        if keep:
            self.kept.keep_registered()
        wait = self.waits.here()
        self.hear(Void(self.waits.why(error), wait.what, wait.waited_s))

    def hear_why(self, reason: str) -> str:
        """Wait for moments for what the leader says of a failed collective that ends the script, and to which not all
        members had come; the leader hears where all of them have waited. Return nothing if it says nothing.
        """
        if not self.is_training_thread or self.machine.state in ENDING:
            return ""
        self.void(RingBroken(reason), keep=False)
        until = time.monotonic() + 2 * Deadlines.of(self.step_timeout_s).finding_s
        try:
            while time.monotonic() < until:
                orders = self.link.wait_news(self.link.orders)
                if orders is not None and orders.verdict is Verdict.STOP:
                    return orders.reason
        except JobFailed as error:
            return str(error)
        return ""

    def void_beside(self, error: BaseException) -> None:
        """Void the mini-batch, as a collective beside the mini-batches has failed. A settled mini-batch stays what it
        is: the ring is broken, so the gradients of the next one fail, and void that.
        """
        if self._settled != self.machine.step:
            self.void(error, keep=False)

    def vote(self, *, updates: bool = False) -> None:
        """Agree with the other processes of this worker, before an update: a mini-batch that is void on one of them is
        void on all. Raises JobFailed where one has ended. `updates`: the update follows at once.
        """
        if self.limbs is None:
            return
        machine, newest = self.machine, self.link.newest
        look = machine.step + 1 >= self.link.page.attention_step
        look = look or (newest is not None and are_newer(newest, machine.orders))
        if updates:
            self.copier.note_no_update()  # while the others are awaited: where one has died, what is here may be needed
        self._vote = self.limbs.vote(void=machine.void is not None, look=look)
        if updates and not self._vote.void:
            self.copier.before_update(machine.step)
        if self._vote.void and machine.void is None:
            self.void(RingBroken(ELSEWHERE), keep=True)
        if self._vote.void:
            self._has_state = False
        self._take_state()

    def looks_after(self, step: int) -> bool:
        """Tell whether orders are looked at after the mini-batch of `step`, which counts."""
        if self.limbs is None:
            return step >= self.link.page.attention_step
        return self._vote is not None and self._vote.look

    def vote_at_end(self) -> None:
        """Agree on a mini-batch that has had no update."""
        if self._vote is None:
            if self.limbs is not None and not self.beside.idle:
                self.before_update()
            self.vote()

    def settle_step(self) -> None:
        """Note that the mini-batch's update is made, or on no worker; a void mini-batch stays void."""
        if self.machine.void is None:
            self._settled = self.machine.step

    def note_reduction(self) -> None:
        """Note that the mini-batch being worked on has come to its gradients."""
        self._reduced = self.machine.step

    @property
    def has_gradients(self) -> bool:
        """Tell whether the mini-batch being worked on has come to its gradients, or its update."""
        return self.machine.step in (self._reduced, self._settled)

    def begin_again(self) -> None:
        """Forget what the mini-batch that ends has reduced and settled: it may come again."""
        self._settled = self._reduced = self._vote = None

    def end_batch(self, *, attention: bool) -> None:
        """End a mini-batch that counts. Returns where the script may train on."""
        if not self.machine.model.is_awaited:  # else its change of rings is told once the last portion has come
            self._change.end()
        self._applied = self._framework.applied()  # once the step is counted, a pipeline's thread may weigh the next
        self._vote = None
        self.hear(BatchEnded(attention))

    def end_uncommitted_batch(self) -> None:
        """End a mini-batch that was void, unless a peer has applied it; or a rehearsal. Returns in the next ring."""
        self._change.begin()
        self.copier.note_no_update()
        self.begin_again()
        self.hear(BatchEnded())

    def while_waiting(self) -> None:
        """Ask whether there is still a job, between two looks at something that does not come."""
        self.hear(StillWaiting(self.link.orders if self.limbs is None else self.limbs.orders(self.link)))

    def while_ending(self) -> None:
        """Do as `while_waiting` in a process that waits for its job's end, while the others of its worker do not."""
        self.hear(StillWaiting(self.link.orders))

    def while_pipeline_waits(self) -> None:
        """Do as `while_waiting` on a thread that fetches samples, while the training thread waits or trains."""
        if self.limbs is not None:
            raise UsageError(
                "a worker of several processes takes its samples on the thread that trains: iterate "
                "elastic_shard_generator() or edl.ElasticDataLoader there"
            )
        self.hear(StillWaiting(self.link.orders, ahead=True))

    def heal(self, root: int, *, current: bool) -> None:
        """Give all members the state of rank `root`. `current`: ours is the same. Raises RingBroken."""
        self.hear(HealingBegins(root, current))
        if self.machine.void is not None:
            raise RingBroken(self.machine.void)

    def report(self, figures: dict[str, float]) -> None:
        """A child of the script's reports nothing."""
        if not self.inherited:
            self.hear(FiguresReported(figures))

    # --------------------------------------------------------------------------------------------------- weights

    def weigh(self, while_waiting: Callable[[], object]) -> None:
        """Set this worker's weight for the coming step and those like it, once what all train in it is known.

        A pipeline's thread calls it, too, and waits otherwise. What that thread finds for a ring that is left meanwhile
        says nothing of the next ring, whose steps are weighed by the thread that trains.
        """
        generation, step = self.machine.generation, self.machine.step + 1
        while not self.leases.covers(step):
            if self.leases.ends_before(step):
                return
            while_waiting()
            self.link.wait_news(self.link.orders)
        self.hear(StepCovered(step, generation))

    def weigh_if_known(self) -> None:
        """Do as `weigh` without waiting: a thread that needs the weight before the data has come waits in `weigh`."""
        if self.machine.weight_is_due and self.leases.covers(self.machine.step + 1):
            self.weigh(self.while_waiting)

    # --------------------------------------------------------------------------------------------------- the hands

    def _carry_out(self, command: Command) -> Input | None:
        """Return what came of a command, where the machine asks for that: then it was the last of its commands."""
        match command:
            case RecordStep():
                self.audit.committed(command.generation, command.step, self._applied)
            case SetWeight():
                self._set_weight(command)
            case ReadOrders():
                self._orders = self.link.orders if self.limbs is None else self.limbs.orders(self.link)
                return OrdersRead(self._orders)
            case AwaitOrders():
                return OrdersRead(self._await_orders())
            case EnterRing() | AdoptRing():
                return self._change.enter(command, self.step_timeout_s)
            case Agree(vote):
                return self._agree(vote)
            case CopyState() | CopyRest() | FetchState():
                return self._fetch(command) if isinstance(command, FetchState) else self._copy(command)
            case EndScript() | Fail() | BreakIteration():
                self._end(command)
            case RecordRing(place, step):
                self.audit.sat(place, step)
            case _:
                self._do(command)
        return None

    def _do(self, command: Aside) -> None:
        match command:
            case TellDaemon():
                self.link.tell()
            case BootAlone(local_rank):
                self.rehearsals.add(self._at_boot)
                self._framework.ring.enter(solo(self.link.worker, local_rank), self.step_timeout_s)
            case LeaveRing():
                self.beside.drop()
                _let_go(self._framework.ring.leave)
            case AbortRings(generations):
                self.beside.abort(generations)
                _let_go(lambda: self._framework.ring.abort(generations))
            case PrepareRing(place, all_prepare):
                self._preparer.begin(place, self.step_timeout_s, all_prepare=all_prepare)
            case ReleaseRing(generation):
                _let_go(lambda: self._preparer.release(generation))
            case SendState(newcomers, portion):
                self.beside.send(newcomers, portion)
            case FetchPortion(portion):
                self._fetch_portion(portion)
            case TakeCopy(save, beside):
                if beside:
                    self.copier.take_beside(save, self.link.folder, lambda: self._stands(save))
                else:
                    self.copier.take(save, self.link.folder)
            case TrainStandIns():
                self.rehearsals.add(1)
                self.stand_ins_due = True

    def _stands(self, save: Save) -> bool:
        """Tell whether the state is still that of the step to be saved. Any thread."""
        machine = self.machine
        if save.limbs:
            return machine.step == save.after_step
        where = (machine.generation, machine.step)
        return where == (save.generation, save.after_step) and machine.state is TrainerState.TRAINING

    def _await_orders(self) -> Orders | None:
        orders = self.link.wait_news(self._orders)
        if self.limbs is not None:
            orders = self.limbs.orders(self.link)
        self._orders = orders
        coming = self.machine.state is TrainerState.COMING and time.monotonic() > self._patient_until
        tells = coming and (self.limbs is None or not self.limbs.limb)  # one process for its worker
        if tells and orders is not None and orders.wanted > orders.present:
            logger.warning("waiting for workers: %d of %d are here", orders.present, orders.wanted)
            self._patient_until = time.monotonic() + PATIENCE_S
        return orders

    def _agree(self, vote: Vote) -> Input:
        try:
            return VotesHeard(Vote(*self._framework.ring.largest(vote)))
        except RingBroken as error:
            return RingFailed(self.waits.why(error))
        except Exception as error:
            if isinstance(error, EdlError):
                raise
            return failed_by(error)

    def _fetch(self, command: FetchState) -> Input:
        self.copier.finish()
        place = self._framework.ring.place
        assert place is not None  # it has just adopted that ring
        offer = command.offer
        if self.limbs is not None:  # that is where the other worker's first process gives its part
            offer = self._preparer.offer_of(place.generation, command.root)
        try:
            self.beside.fetch(StateSource(place, command.root, offer), self.step_timeout_s, command.portion)
        except RingBroken as error:
            return RingFailed(str(error))
        self.state_came()
        return StateComes()

    def _fetch_portion(self, portion: StatePortion) -> None:
        """Fetch a portion beside the coming step."""
        try:
            self.beside.fetch_portion(portion)
        except RingBroken as error:
            self.void(error, keep=False)

    def complete_state(self) -> None:
        """Finish what is under way beside the coming step, as between two steps all of the model is needed."""
        self.before_update()
        if not self.beside.idle and self.machine.void is None:
            self.hear(StateNeeded())
            self.await_state()

    def measure_state(self) -> None:
        """Measure how large is what a newcomer gets, once in each ring, after its first update."""
        apart = self._framework.apart
        if apart is not None and self._measured != self.machine.generation:
            self._measured = self.machine.generation
            self.hear(StateMeasured(apart.size() if apart.given() else 0))

    def prepare_copies(self) -> None:
        """Prepare between two mini-batches, when it is known what a checkpoint will need."""
        if (place := self._framework.ring.place) is not None:
            self.copier.prepare(place, self.link.folder)

    def before_update(self) -> None:
        """Wait until what goes from here, or comes here, beside a mini-batch that is not void is through, or comes to
        nothing: then the mini-batch is void.
        """
        self.state_changes()
        self.copier.before_update(self.machine.step)
        self.await_state()

    def await_state(self) -> None:
        """Do as `before_update` for a framework whose updates change nothing that is being copied. Any thread, while
        the script waits for it.
        """
        beside = self.beside
        if beside.idle or self.machine.void is not None:
            return
        if not beside.awaits:
            beside.wait_sent()
            return
        try:
            beside.take()
        except RingBroken as error:
            self.void(error, keep=True)
        else:
            self._has_state = True
            if self.limbs is None:  # else once all processes of this worker have theirs
                self._take_state()

    def _take_state(self) -> None:
        """Note that a state, or a portion, has come beside the mini-batch, which counts."""
        if self._has_state:
            self._has_state = False
            self.hear(StateCopied())

    def end_beside(self) -> None:
        """End the transfers beside a mini-batch, as it ends, also one without an update."""
        if self.beside.idle:
            return
        self.before_update()
        if self.machine.void is None:
            self.beside.end()
        else:
            self.beside.drop()

    def _copy(self, command: CopyState | CopyRest) -> Input:
        self.copier.finish()
        self.beside.drop()
        try:
            if isinstance(command, CopyState):
                self._copy_state(command)
            else:
                self._copy_rest(command)
        except RingBroken as error:
            return Void(self.waits.why(error)) if self.machine.sits else RingFailed(self.waits.why(error))
        return StateCopied()

    def _copy_state(self, command: CopyState) -> None:
        self._framework.synchronize(command.root)
        self.extras.synchronize(self._framework, command.root, is_root=command.is_root)
        self.state_came()

    def _copy_rest(self, command: CopyRest) -> None:
        self._framework.synchronize_rest(command.root, only_statistics=not command.unsure)
        if command.unsure:  # a void mini-batch may have changed them, on some
            self.extras.synchronize(self._framework, command.root, is_root=command.is_root)
        else:
            self.extras.synchronize_statistics(self._framework, command.root)

    def _set_weight(self, command: SetWeight) -> None:
        """Set the weight, unless another thread has carried out a newer command: that of the next ring, say."""
        with self._weighing:
            if command.number > self._weighed:
                self._weighed = command.number
                self._framework.set_weight(command.weight, weightless=command.weightless)
                self.kept.drop()
                if command.stand_ins:
                    self.kept.keep_statistics(of_nobody=command.weightless)

    def _end(self, command: EndScript | Fail | BreakIteration) -> None:
        match command:
            case EndScript(""):
                raise Leaving
            case EndScript(reason, resumable):
                if resumable:
                    sys.stderr.write(f"edl: {reason}\n")
                    exit_preempted()
                sys.exit(f"edl: {reason}")
            case Fail(reason):
                raise JobFailed(reason)
            case BreakIteration():
                raise RingBroken("Horovod's ring is given up, and with it this iteration over the data")


def _let_go(act: Callable[[], object]) -> None:
    """Leave a ring, or give it up. An error in that ends neither the script nor the link to the daemon: if the ring's
    library is of no use any more, forming the next ring fails, which is told.
    """
    try:
        act()
    except Exception:
        logger.exception("a ring was not let go of as it should be")
