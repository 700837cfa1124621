"""The limbs of one worker in agreement: what one of them hears on its training thread, all of them hear.

Owns: when rows are exchanged, on the training thread of each limb, waiting for orders that another limb has heard, and
whether this process can be a limb.
Does not own: what rows say (`edl.core.worker.limb_votes`), nor how they travel (the framework's `LimbRows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from edl.checkpoints.worker_stages import Holding, WorkerStage, difference_within, stage_with, stages_of, whole
from edl.config import Settings
from edl.core.worker import limb_votes
from edl.core.worker.limb_votes import NO_ORDERS, Occasion, Row, UpdateVote
from edl.core.worker.worker_inputs import Input
from edl.core.worker.worker_machine import WorkerMachine
from edl.errors import ConfigError, JobFailed, UsageError
from edl.protocol.assignment import Orders
from edl.trainer.daemon_link import DaemonLink


class LimbRows(Protocol):
    """The connection between the limbs of one worker."""

    def exchange(self, row: Row) -> list[Row]:
        """Return the rows of all limbs, by limb. Raises JobFailed where a limb has ended."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all limbs, which may be of any length. Raises JobFailed where a limb has ended."""


class LimbWorld(NamedTuple):
    """The world of one limb: the other limbs, and its like in other workers."""

    rows: LimbRows
    exchange: Callable[[int, int], list[int]]  # a number with the members of a ring that is prepared, by generation
    held: HeldTensors


class LimbAgreement:
    """The agreement of this process with the others of its worker, on the training thread."""

    def __init__(self, rows: LimbRows, machine: WorkerMachine, limb: int, stages: StageExchange) -> None:
        self.limb, self.stages = limb, stages
        self._rows = rows
        self._machine = machine

    def vote(self, *, void: bool, look: bool) -> UpdateVote:
        """Return what holds for all limbs before an update."""
        mine = limb_votes.row(Occasion.UPDATE, int(void), int(look), int(self.stages.is_due()))
        vote = limb_votes.update_of(self._rows.exchange(mine))
        if vote.tells:
            self.stages.exchange()
        return vote

    def orders(self, link: DaemonLink) -> Orders | None:
        """Return the newest orders that any limb has heard, the same on all; None: none has heard any."""
        while True:
            newest = link.orders
            stamp = NO_ORDERS if newest is None else (newest.term, newest.version)
            wanted = limb_votes.newest_orders(self._rows.exchange(limb_votes.row(Occasion.ORDERS, *stamp)))
            found = None if wanted == NO_ORDERS else link.wait_orders(wanted)
            holds = found is not None or wanted == NO_ORDERS
            if limb_votes.all_hold(self._rows.exchange(limb_votes.row(Occasion.HELD, int(holds)))):
                return found
            # A daemon that was started anew may have told one limb of orders between which another one has heard none.

    def answer(self, answer: Input) -> Input:
        """Return what came of a command on all limbs: where it failed on one, it has failed."""
        rows = self._rows.exchange(limb_votes.answer_row(answer))
        return limb_votes.agreed(answer, rows, sits=self._machine.sits)


class LimbLost(JobFailed):
    """Raised where another process of this worker has ended: the daemon ends this one, too."""


def check_processes(settings: Settings, world: object) -> None:
    """Raise ConfigError where this process cannot be one of several of its worker. `world`: joins them; None: nothing
    does.
    """
    if settings.processes == 1:
        return
    if world is None:
        raise ConfigError(
            f"--processes {settings.processes} (EDL_PROCESSES): workers of several processes are PyTorch's; leave "
            "it away"
        )
    if settings.meeting is None or settings.limb >= settings.processes:
        raise ConfigError(
            f"EDL_PROCESSES={settings.processes}: the processes of a worker are started together: by `edl run "
            f"--processes {settings.processes}`"
        )


# The limbs tell each other which tensors they hold. They are asked when a model, an optimizer or a loader of shards has
# come, at the next update. Where only the contents of tensors tell whether processes are copies, these are compared
# again before updates 2, 4, 8, ..., as training changes them.


class HeldTensors(Protocol):
    """The tensors of this process."""

    def stamp(self) -> object:
        """Return what changes when there may be others: it costs little."""

    def holding(self) -> Holding: ...

    def sample(self) -> str:
        """Return a digest of some of their elements. Any thread, while nothing changes them."""


class StageExchange:
    """The stage of this process, as the processes of its worker have found it."""

    def __init__(self, gather: Callable[[bytes], list[bytes]], limb: int, processes: int, held: HeldTensors) -> None:
        """`gather` returns what all processes of the worker give to it, by process."""
        self.stage: WorkerStage = whole(processes)
        self._gather = gather
        self._limb = limb
        self._held = held
        self._stamp: object = None  # of what was told
        self._updates = 0

    def is_due(self) -> bool:
        """Count an update that comes; tell whether this process has something to tell before it."""
        self._updates += 1
        again = self.stage.judged and not self._updates & (self._updates - 1)
        return again or self._stamp != self._held.stamp()

    def exchange(self) -> None:
        """Find the stages anew, with all processes of this worker. Raises JobFailed where one has ended, and on all of
        them UsageError where they would train wrongly.
        """
        self._stamp = self._held.stamp()
        told = self._gather(msgspec.msgpack.encode(self._held.holding()))
        holdings = [msgspec.msgpack.decode(one, type=Holding) for one in told]
        # Later the last bits may differ of what processes train beside each other on the same samples.
        if difference := difference_within(holdings, contents=self._updates == 1):
            raise UsageError(f"edl.Optimizer: {difference}")
        self.stage = stage_with(stages_of(holdings), self._limb)

    def witness(self) -> str:
        """Return what all processes of the stage have alike, if they are one by what their tensors contain."""
        return self._held.sample() if self.stage.judged else ""
