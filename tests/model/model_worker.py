"""A simulated worker: the real machine of its trainer, and what its daemon knows.

Owns: one worker's machine, its model, how far its pipeline has read, and what is seen of it. Does not own: what is done
with the machine's commands (`tests.model.model_trainers`, `tests.model.model_beginnings`).
"""

from __future__ import annotations

from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.next_move import NEVER
from edl.core.worker.observed_trainer import ObservedTrainer
from edl.core.worker.worker_inputs import BatchEnded, Command, SetWeight, StepCovered
from edl.core.worker.worker_machine import WorkerMachine
from edl.core.worker.worker_states import READY, TrainerState
from edl.protocol.assignment import Assignment, Orders, Share
from edl.protocol.data_nouns import Range
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.record import Identity
from edl.protocol.trainer_messages import TrainerStatus
from tests.model.models import Model, fresh

Batch = tuple[Range, ...]
KILLED = "killed"
SESSION_S = 0.3  # a daemon unheard of for so long is taken for gone


class Steps:
    __slots__ = ("step", "usual_until")

    def __init__(self) -> None:
        self.step = 0
        self.usual_until = 0


class SimLeases(LeaseBuffer):
    """Leases of a trainer whose mini-batches end on one thread while orders come on another."""

    def adopt(self, share: Share, stamp: tuple[int, int], at_work: int = 0) -> None:
        """Adopt a share during a step. Now and then it was heard of just before that step began."""
        super().adopt(share, stamp, at_work - (at_work % 5 == 1))


class SimWorker:
    __slots__ = (
        "admitted",
        "ahead",
        "alive",
        "answering",
        "astray",
        "attention",
        "breaks",
        "busy_until",
        "count",
        "cut_off",
        "daemon",
        "dead",
        "deaf_until",
        "host",
        "id",
        "leases",
        "left",
        "lost_state",
        "machine",
        "met",
        "met_before",
        "model",
        "observed",
        "orders",
        "prepares",
        "presented",
        "read",
        "report_due",
        "sends_state",
        "sent",
        "stalled",
        "takes_long",
        "told",
        "unsent",
        "vanished",
        "wanted",
        "weight",
    )

    def __init__(self, worker: str, host: str = "host0", *, prepares: bool = False, sends_state: bool = False) -> None:
        self.id = worker
        self.host = host
        self.answering = False  # it was started as the job had asked for it
        self.prepares = prepares  # a ring beside the one it sits in
        self.sends_state = sends_state  # or is sent one, beside a step
        self.unsent = False  # what is on its way to it, or from it, does not come
        self.lost_state = False  # what was on its way to it once did not come
        self.alive = True  # the trainer's process
        self.stalled = False  # it hangs: asleep, stopped, or its loader is stuck
        self.breaks = ""  # the moment at which the ring of one of its limbs breaks next, and those of the others do not
        self.astray = False  # its script waits for a collective that the others' scripts do not come to
        self.cut_off = False  # no ring forms with it
        self.busy_until = 0.0  # its script is at something of its own between two mini-batches
        self.takes_long = False  # it once was for longer than others wait for it
        self.count = Steps()
        self.leases = SimLeases()
        self.machine = WorkerMachine(self.leases, self.count)
        self.machine.introduce(prepares=prepares, sends_state=sends_state)
        self.model: Model = fresh(worker)
        self.weight = 0.0  # of its samples among all workers', as its optimizer was told
        self.wanted = 1  # epochs; by its first pass, where each asks for one more
        self.ahead = 1  # steps that its pipeline reads ahead
        self.read: dict[int, Batch] = {}  # what its pipeline has read and it has not trained, by step
        # its daemon's
        self.observed = ObservedTrainer()
        self.told: TrainerStatus | None = None  # what its daemon was sent last
        self.hear()
        self.orders: Orders | None = None
        self.attention = NEVER
        self.admitted = False  # a leader has taken its registration
        self.dead: tuple[str, ...] = ()  # other workers of its host, as its daemon has seen
        self.daemon = 1  # number of the process; 0: it is gone
        self.vanished = False  # its host is
        self.presented = True  # a leader knows that process
        self.met: tuple[int, ...] = (0,)  # the newest call to a next ring, and whom it has not met there
        self.met_before: tuple[int, ...] = (0,)  # the same of a daemon that died
        self.sent: Observation | None = None
        self.report_due = False
        self.deaf_until = 0.0
        self.left: tuple[int, ...] = ()  # its limbs that live and are held, as it has died

    # ------------------------------------------------------------------------------------------------ its trainer

    @property
    def doing(self) -> TrainerState:
        return self.machine.state if self.alive else TrainerState.OVER

    @property
    def generation(self) -> int:
        """Return the generation of the ring that the worker sits in, or sat in last."""
        return self.machine.generation

    @property
    def step(self) -> int:
        return self.count.step

    @property
    def entered(self) -> int:
        return self.machine.entered_after

    @property
    def assignment(self) -> Assignment | None:
        return self.machine.assignment

    def goes_to(self, generation: int) -> bool:
        """Tell whether the worker enters that ring, and has not given up waiting for the others."""
        return self.assignment is not None and self.assignment.place.generation == generation

    @property
    def sits(self) -> bool:
        return self.alive and self.machine.sits

    @property
    def has_state(self) -> bool:
        return self.machine.has_state

    @property
    def booted(self) -> bool:
        return self.machine.booted

    @property
    def is_void(self) -> bool:
        """Tell whether the worker's ring has failed before its script came to the end of the mini-batch."""
        return self.doing is TrainerState.TRAINING and self.machine.void is not None

    @property
    def waits(self) -> bool:
        return self.doing in READY

    @property
    def is_held(self) -> bool:
        """Tell whether the worker is held at the end of a mini-batch, for the decision at the mark."""
        return self.doing is TrainerState.BETWEEN

    def is_hungry(self) -> bool:
        """Tell whether the worker's script waits for samples, for the next step or for the first."""
        beyond = self.leases.at(self.step + 1) is None or self.leases.holds_at(self.step)
        return self.doing is TrainerState.TRAINING and self.machine.status.data is not None and beyond

    def read_on(self) -> None:
        """Read ahead in the epochs that the script has begun, as far as the pipeline may and can."""
        self.leases.forget_before(self.step)
        self.read = {step: batch for step, batch in self.read.items() if step > self.step}
        self.read |= dict.fromkeys(range(self.step + 1, min(self.read, default=0)), ())  # stand-ins that come again
        for step in range(max(self.step, *self.read, 0) + 1, self.step + self.ahead + 1):
            lease = self.leases.wanted_at(step)
            if lease is None or lease.epoch >= self.wanted or not self.leases.hand_out(lease, step):
                break
            self.read[step] = lease.between(step - 1, step)

    def orders_read(self) -> Orders | None:
        """Return the orders that the training thread looks at."""
        return self.machine.orders

    def orders_waiting(self) -> Orders | None:
        """Return what a script that waits for samples looks at."""
        return self.orders

    def weigh(self, step: int) -> None:
        """Set the weight before `step` is reduced, unless the previous one holds."""
        if self.machine.weight_is_due:
            for command in self.machine.handle(StepCovered(step, self.generation)):
                assert isinstance(command, SetWeight)
                self.weight = command.weight

    def end_batch(self) -> list[Command]:
        """A mini-batch that is applied: a usual one is only counted."""
        step, attention = self.count.step + 1, self.count.step + 1 >= self.attention
        if step < self.count.usual_until and not attention:
            self.count.step = step
            return []
        return self.machine.handle(BatchEnded(attention))

    # ------------------------------------------------------------------------------------------------ its daemon

    @property
    def leaving(self) -> bool:
        return self.observed.status.leaving

    @property
    def phase(self) -> Phase:
        return self.observed.status.phase

    @property
    def is_odd(self) -> bool:
        """Tell whether the worker hangs, hears nothing, or is at something else for longer than others wait."""
        return self.stalled or self.astray or self.deaf_until > 0 or self.takes_long

    def identity(self) -> Identity:
        return Identity(self.id, self.host, self.host, 1, self.daemon)

    def hear(self) -> bool:
        """Send the trainer's status to its daemon; return whether the leader need not hear of it at once."""
        self.told = self.machine.status
        return self.observed.hear(self.told)

    def deliver(self, orders: Orders) -> float:
        """Tell the trainer; return how late it hears of that."""
        return 0.0

    def newest_heard(self, orders: Orders) -> Orders:
        """Return the newest orders that the trainer has heard, which hears these now."""
        return orders

    def lose_daemon(self) -> None:
        """Lose what the daemon that dies had not told yet."""

    def tear(self) -> bool:
        """Break the ring of one limb; return whether the worker's mini-batch is void."""
        return False

    def holds_copy(self, number: int) -> bool:
        """Tell whether all processes of the worker have taken their copies for that saving."""
        return True

    def lose_limb(self) -> None:
        """Lose one of several processes."""

    def hold_rest(self) -> None:
        """Its trainer has died: let the daemon hold what is left of it."""

    def copies_of_rest(self, orders: Orders) -> str:
        """Let what is left of the worker copy what it has; return why it cannot."""
        return "it is a single process"

    def present(self) -> None:
        """Let the trainer greet another daemon. A trainer that is dead greets none: the daemon knows its step only."""
        self.presented = True
        self.met, self.met_before = (0,), self.met
        self.observed = ObservedTrainer()
        if self.alive:
            self.hear()
        else:
            self.observed.died(KILLED)

    def observation(self, step_time_s: float) -> Observation:
        return self.observed.observation(
            step=self.step,
            step_time_s=step_time_s if self.step > self.entered else 0.0,
            met=self.met,
            dead=self.dead,
        )
