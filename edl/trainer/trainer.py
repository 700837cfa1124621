"""The training thread's side of a job, behind `import edl.torch as edl` and `import edl.tensorflow as edl`.

Owns: the calls that scripts and adapters make, and how a worker's life begins and ends. Does not own: what the end of a
mini-batch is made of (`edl.trainer.step_end`), where this process sits and how it changes seats
(`edl.trainer.worker_shell`), the framework (`edl.trainer.framework_port`), the data (`edl.trainer.sample_source`).
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from edl import ownership
from edl.config import Settings
from edl.core.worker.worker_inputs import (
    CheckpointWished,
    LeaveWanted,
    RestartsExpected,
    ScriptEnded,
    ScriptFailed,
)
from edl.errors import ConfigError, UsageError
from edl.host.job_discovery import check_again, check_one_ring, joined
from edl.protocol.assignment import RingKind, ring_kind
from edl.protocol.checkpoint_record import Origin
from edl.trainer import fork_stand_in
from edl.trainer.daemon_link import DaemonLink
from edl.trainer.data.audit_files import AuditedCount, AuditFile
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.sample_ids import Among
from edl.trainer.data.shards import CurrentItem, ShardGenerator
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.data_calls import DataCalls
from edl.trainer.exit_paths import Leaving, leave_on_sigterm, note_failures, spare_the_collector
from edl.trainer.first_state import FirstState, life_begun
from edl.trainer.framework_port import Framework
from edl.trainer.learning_rates import RateCalls, RateFactors
from edl.trainer.limb_agreement import LimbAgreement, LimbWorld, StageExchange, check_processes
from edl.trainer.part_finder import PartFinder
from edl.trainer.registered_state import RegisteredState, RegisteredValues
from edl.trainer.reported_metrics import FigureSender
from edl.trainer.sample_source import SampleSource
from edl.trainer.script_position import ScriptStanding
from edl.trainer.seating import Seating
from edl.trainer.shared_evaluation import Work
from edl.trainer.step_end import BatchEnds
from edl.trainer.virtual_steps import NAME as VIRTUAL
from edl.trainer.virtual_steps import VirtualSteps
from edl.trainer.wait_bounds import RingWatch
from edl.trainer.worker_shell import WorkerShell
from edl.transport.shared_page import StepCounter

logger = logging.getLogger("edl")

__all__ = ["Leaving", "Trainer"]


def horovod_alone(settings: Settings) -> RingKind:
    """Return the ring of a framework that has only Horovod's. Raises ConfigError if another is asked for."""
    kind = ring_kind(settings.ring, horovod_alone=True, has_horovod=True)
    if kind is not RingKind.HOROVOD:
        raise ConfigError(f"EDL_RING={kind}: here gradients are averaged by Horovod alone; leave --ring away")
    return kind


class Trainer:
    """The process's one seat in its job. Methods belong to the thread that called `init` unless they say otherwise."""

    def __init__(
        self,
        framework: Framework,
        kind: Callable[[Settings], RingKind] = horovod_alone,
        *,
        rehearsals: int = 1,
        shell: WorkerShell | None = None,
        world: Callable[[int, int, Path, float], LimbWorld] | None = None,
    ) -> None:
        """`kind` returns the framework's ring for these settings, or raises ConfigError. `rehearsals`: mini-batches
        until the framework has traced and compiled all for a script. `shell`: of this trainer, where the caller needs
        to hold it too. `world` joins the other processes of this worker, where the framework can be in several: with
        this one's number, their count, a folder that they share, and the step time-out in seconds.
        """
        self._world = world
        self._framework = framework
        self._kind = kind
        self._shell = shell or WorkerShell(framework, SharedLeases(), RegisteredState(framework.sort), rehearsals)
        self.seating = Seating(self._shell)
        self._leases, self._extras = self._shell.leases, self._shell.extras
        # The shell's own; here, as each look at a cold object costs the hot path.
        self._count: StepCounter | AuditedCount = self._shell.count
        self._machine = self._shell.machine
        self._updates_due = framework.updates_due
        self._stand_in = 0  # the process that horovodrun takes for this worker
        rates = RateFactors(framework, self._shell, self._leases, self._extras)
        self.rates = RateCalls(self.seating, rates)
        self._resuming = FirstState(framework, self._extras, self._shell)
        self._samples = SampleSource(self._shell, self._leases, rates, self._resuming)
        self._figures = FigureSender(self._shell.report)
        self._ends = BatchEnds(
            framework=framework,
            shell=self._shell,
            leases=self._leases,
            extras=self._extras,
            samples=self._samples,
            rates=rates,
            resuming=self._resuming,
            figures=self._figures,
        )
        self._watch = RingWatch(self._shell)
        self.data = DataCalls(
            framework=framework,
            shell=self._shell,
            seating=self.seating,
            samples=self._samples,
            resuming=self._resuming,
            ends=self._ends,
        )
        self._epoch = 0
        self._saved = False  # the job is
        self._left = False
        self.parts = PartFinder(framework, self._shell, self.seating, self._ends, lambda: self.steps_before)

    # ------------------------------------------------------------------------------------------- begin and end

    def init(  # noqa: PLR0913 - Horovod's two, and edl's own by keyword
        self,
        comm: Collection[int] | None = None,
        process_sets: Collection[Any] | None = None,
        *,
        job: str | None = None,
        coordinator: str | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        batch_size: int | None = None,
        virtual_workers: int | None = None,
    ) -> None:
        """Start the daemon and join the job; return once this process sits in a ring.

        Each keyword defaults to its `EDL_` variable. With no job at all: a job of one worker. A newcomer to a running
        job gets a ring of its own, in which the script boots and rehearses while the others train on. Called again in
        the same process it does nothing, and as little in one that multiprocessing spawns as it imports the script.

        `comm` and `process_sets` are Horovod's; a job of edl has one ring, so what they may say is nothing.

        >>> edl.init()  # as EDL_JOB and the other variables say; without them: a job of one worker
        """
        check_one_ring(comm, process_sets)
        given = {
            "job": job,
            "coordinator": coordinator,
            "min_workers": min_workers,
            "max_workers": max_workers,
            "batch_size": batch_size,
            "virtual_workers": virtual_workers,
        }
        if ownership.disown_spawned():
            self._set_imports_only(True, Settings.from_environment(os.environ, **given))
            return
        if self.seating.imports_only:
            self._set_imports_only(False, None)
        if self._shell.inherited:
            raise UsageError(f"edl.init(): {ownership.FORKED}")
        if self.seating.settings is not None:
            check_again(self.seating.settings, given, left=self._left)
            return
        if fork_stand_in.is_due(os.environ):
            told = {"EDL_JOB": job, "EDL_COORDINATOR": coordinator}
            os.environ.update({name: value for name, value in told.items() if value is not None})
            fork_stand_in.split()
        settings = joined(os.environ, **given)
        check_processes(settings, self._world)
        settings = msgspec.structs.replace(settings, ring=self._kind(settings))
        ownership.claim()
        ownership.in_children(self._be_inherited)
        self._stand_in = 0 if settings.stand_in is None else os.getppid()
        worker = settings.worker_id or f"w{secrets.token_hex(4)}"
        if settings.audit is not None and not settings.limb:  # a worker's samples stand in the audit once
            folder, job = settings.audit, settings.job or ""
            self._shell.audit = AuditFile(folder, job, worker, lambda: life_begun(self._machine.orders))
        link = DaemonLink(settings, worker, self._shell.take_news, lambda: self._machine.status)
        self.take_seat(settings, link)
        # Python ends by looking through all that lives, twice: 0.8 s with a framework, of a worker that is to go. What
        # lives now is left out, and at the end what the script has made: survivors have use for the core then.
        self._framework.note_living()
        spare_the_collector()
        ownership.at_exit(spare_the_collector)
        ownership.at_exit(self.shutdown)
        note_failures(self._note_failure)
        leave_on_sigterm(self._ask_to_leave, self._shell.interruption)
        self._shell.introduce(settings.processes)
        link.start()
        if self._world is not None and settings.processes > 1:
            world = self._world(settings.limb, settings.processes, link.home, settings.step_timeout_s)
            stages = StageExchange(world.rows.gather, settings.limb, settings.processes, world.held)
            agreement = LimbAgreement(world.rows, self._machine, settings.limb, stages)
            self._shell.join_limbs(agreement, settings.processes, world.exchange)
        self._watch.begin(self._framework.ring)
        self._shell.take_first()

    def take_seat(self, settings: Settings, link: DaemonLink) -> None:
        """Begin by these settings, with a link to a daemon that need not be started yet. `init` does it."""
        self.seating.settings = settings
        self._saved = self._ends.saved = bool(settings.checkpoint)
        self._shell.thread = threading.get_ident()
        self._shell.step_timeout_s = settings.step_timeout_s
        self._shell.link = link
        self._count = self._shell.count
        if settings.virtual_workers:
            self.parts.virtual = settings.virtual_workers
            virtual = self.data.virtual_steps = VirtualSteps(
                self._framework.part_sums(self), self._framework.sort, self.parts, settings.virtual_workers
            )
            self._extras.add({VIRTUAL: virtual.scales})
            self._shell.kept.merges = True
        if self._shell.audit.on:
            self._count = AuditedCount(
                self._shell.count, self._shell.audit, lambda: self._machine.generation, self._framework.applied
            )

    def shutdown(self) -> None:
        """Leave the job; implied at exit. Harmless twice.

        >>> edl.shutdown()
        """
        if self.seating.settings is None or self._left:
            return
        self._left = True
        self._leases.close()
        if self.shards is not None:
            self.shards.close()
        link = self._shell.link
        origin = self._resuming.not_taken_over
        if origin is not None and self._machine.model.may_differ and not self._machine.failure:
            logger.warning(
                "this worker had nothing left to train, and its script has ended without the state of %s: put "
                "shards.in_step(...) around the outermost iterable of the training loop",
                origin.path,
            )
        self._shell.copier.finish()
        self._shell.hear(ScriptEnded(self._ends.state_at_end()))
        link.wait_noted(self.seating.settings.session_timeout_s)
        self._framework.ring.leave()
        self._watch.end()
        link.close()

    def _be_inherited(self) -> None:
        """Give up all of the job in a child that the script has forked: it has no seat and no daemon."""
        self._left = True
        self._shell.be_inherited()
        self._count = self._shell.count

    def _set_imports_only(self, imports_only: bool, settings: Settings | None) -> None:
        """Join nothing, and let the script set up what it does as it is imported; or be able to join, after that."""
        self.seating.imports_only = self._left = self._shell.inherited = imports_only
        self.seating.settings = settings

    def _ask_to_leave(self) -> None:
        # A launcher that dies asks all processes below it to end: behind a stand-in, the stand-in judges that.
        if self._stand_in and os.getppid() == self._stand_in:
            os.kill(self._stand_in, signal.SIGTERM)
        else:
            self._shell.hear(LeaveWanted())  # noted first: whichever daemon there is hears it now or in the story

    def _note_failure(self, reason: str, foreign: bool = False) -> str:
        """Note that the script has failed, and what it had awaited. Return the leader's reason for a wait in vain."""
        waited = self._shell.waits.in_vain()
        self._shell.hear(ScriptFailed(f"{reason}; {waited}" if waited else reason, foreign))
        return self._shell.hear_why(reason) if waited else ""

    # ------------------------------------------------------------------------------------------------ who and where

    @property
    def began(self) -> bool:
        return self.seating.settings is not None

    def rank(self) -> int:
        """Return this worker's place in the roster of the current generation.

        >>> if edl.rank() == 0:
        ...     print("only one worker prints this")
        only one worker prints this
        """
        self.seating.started()
        return self.seating.told("rank") if self.seating.imports_only else self._machine.rank

    def size(self) -> int:
        """Return the number of workers in the current generation.

        >>> batch_of_all = 32 * edl.size()
        >>> batch_of_all
        32
        """
        self.seating.started()
        return self.seating.told("size") if self.seating.imports_only else self._machine.size

    def local_rank(self) -> int:
        """Return this worker's number among the workers of its host, for life: what pins a device.

        >>> f"cuda:{edl.local_rank()}"
        'cuda:0'
        """
        self.seating.started()
        return self.seating.told("local_rank") if self.seating.imports_only else self._machine.local_rank

    def group_rank(self) -> int:
        """Return this process's number among the processes of its worker (`--processes`), from 0.

        >>> edl.group_rank()
        0
        """
        return self.seating.started().limb

    def group_size(self) -> int:
        """Return the number of processes of each worker: 1, unless the job was started with `--processes`.

        >>> edl.group_size()
        1
        """
        return self.seating.started().processes

    @property
    def among(self) -> Among:
        return self.data.among

    def generation(self) -> int:
        """Return the number of the roster that trains now; 0 for a newcomer before its first switch.

        >>> edl.generation()
        1
        """
        self.seating.joined("generation")
        return self._machine.generation

    def step(self) -> int:
        """Return the number of the mini-batch being worked on, from 1: committed mini-batches of the job, plus one.

        >>> edl.step()
        1
        """
        self.seating.joined("step")
        return self._machine.step + 1

    def epoch(self) -> int:
        """Return the pass over the data that this mini-batch belongs to, from 0; between two passes, the next one.

        >>> edl.epoch()
        0
        """
        self.seating.joined("epoch")
        epoch = self._leases.epoch(self._machine.step + 1)
        if epoch is None:  # no sample of the next mini-batch is leased yet
            epoch = max(self._epoch, 0 if self.shards is None else self.shards.epochs_known_done)
        self._epoch = epoch
        return epoch

    def rehearsing(self) -> bool:
        """Tell whether this is a newcomer's throw-away mini-batch: one with PyTorch, the first two with TensorFlow.

        >>> if not edl.rehearsing():
        ...     print("this mini-batch counts")
        this mini-batch counts
        """
        return self._shell.rehearsals.left > 0

    @property
    def rehearsals(self) -> Rehearsals:
        return self._shell.rehearsals

    def checkpoint(self) -> None:
        """Ask for a checkpoint of the mini-batch being worked on, or of one of the next; returns at once, at no cost.

        Call it on one worker or on all of them: at one step that is one request.

        It needs `--checkpoint`. In a rehearsal it does nothing. Training goes on, as the job is saved after a step that
        lies ahead and that needs this worker too: so there is no way to wait for it here. Event `checkpoint_durable`
        tells when it is durable, and `edl checkpoint JOB --wait` waits from outside.

        >>> if edl.step() % 1000 == 0:
        ...     edl.checkpoint()
        """
        if not self.seating.seated("checkpoint").checkpoint:
            raise UsageError("edl.checkpoint(): this job is not saved; start it with --checkpoint DIR (EDL_CHECKPOINT)")
        self._shell.hear(CheckpointWished())

    def resumed(self) -> Origin | None:
        """Return what this life of the job resumed from; None if it began anew, and without `--checkpoint`.

        An object with `path` (of the checkpoint), `step` (the mini-batches that are in it, of all lives before),
        `epoch` (in which the job goes on, as `edl.epoch()` counts), and `life` (the number of this one, from 1). The
        same on all workers, whenever they come.

        >>> origin = edl.resumed()
        >>> origin.path if origin else "this job began anew"
        'this job began anew'
        """
        self.seating.joined("resumed")
        return self._resuming.origin

    @property
    def steps_before(self) -> int:
        """Steps of all lives before this one."""
        origin = self.resumed()
        return 0 if origin is None else origin.step

    def on_resize(self, callback: Callable[[int, int], object]) -> None:
        """Call `callback(old_size, new_size)` on every worker after each switch.

        >>> edl.on_resize(lambda old_size, new_size: print(f"{old_size} -> {new_size} workers"))
        """
        if not callable(callback):
            raise UsageError(f"edl.on_resize(callback) takes a function of (old_size, new_size), not {callback!r}")
        self._ends.resized.append(callback)
        self._shell.beside.withheld = True  # it may look at the model, or change it

    def register(self, **values: Any) -> RegisteredValues:
        """Register state that a newcomer must receive. Return it as attributes.

        Numbers, text, bytes; arrays and tensors; modules, models, layers; what has a `state_dict()`; and lists, tuples,
        sets and dicts of them. At the newcomer they stay the objects that the script knows, with new contents.

        >>> best = edl.register(loss=9e9)
        >>> best.loss = min(best.loss, 0.5)  # before notify_batch_end(), where a newcomer receives it
        >>> best.loss
        0.5
        """
        return self._extras.add(values)

    def evaluate_shared(self, work: Work) -> tuple[bytes, ...]:
        self.seating.seated("evaluate")
        return self._ends.evaluate(work)

    def report(self, **figures: float) -> None:
        """Tell the job figures of the script's own, such as `edl.report(loss=0.3)`, for its policy.

        The newest of each name counts; they travel twice a second at most.

        >>> edl.report(loss=0.3, accuracy=0.9)
        """
        self.seating.seated("report")
        self._figures.take(figures)

    # -------------------------------------------------------------------------------------- the port of the adapters

    @property
    def epochs_done(self) -> int | None:
        """Finished epochs of the script's `elastic_shard_generator`; None without one."""
        return None if self.shards is None else self.shards.epochs_done

    @property
    def ends_pass(self) -> bool:
        """Tell whether this mini-batch is the last one of its epoch, on all workers of this generation alike."""
        return self._leases.ends_pass(self._machine.step + 1)

    def own_samples(self) -> int:
        return self.data.own_samples()

    @property
    def virtual(self) -> int:
        return 0 if self.seating.settings is None else self.seating.settings.virtual_workers or 0

    @property
    def voided(self) -> bool:
        return self._machine.void is not None

    @property
    def weightless(self) -> bool:
        return self._machine.supply.weightless

    def void(self, error: BaseException) -> None:
        self._shell.void(error, keep=self._shell.is_training_thread)

    def void_beside(self, error: BaseException) -> None:
        """Void the coming mini-batch, or the one that has not come to its update, as a collective beside them failed.

        Such a collective may be an evaluation's. What the script does to registered values before that stays done. Once
        the update is made, as a callback saves say, the mini-batch counts (I8).
        """
        self._shell.void_beside(error)

    def give_out(self, end: Callable[[], object] | None) -> None:
        """Note that a library or a loader has given out a mini-batch, which `end` ends; None: `end` was called."""
        self._ends.give_out(end)

    def settle_step(self) -> None:
        """Count this mini-batch, as a library's loop does, though there may be no update in it, on any worker."""
        self._shell.settle_step()

    def hold(self) -> CurrentItem:
        return self._samples.hold()

    def keep_in_step(self) -> None:
        self._samples.keep_in_step()

    def begin_batch(self) -> None:
        self._resuming.begin_batch()

    def waited(self, nanoseconds: int) -> None:
        self._shell.link.page.add_waited(nanoseconds)

    def expect_restarts(self) -> None:
        """Expect the script to leave its iteration over the data when a ring breaks."""
        self._shell.hear(RestartsExpected())

    def begin_anew(self) -> None:
        """Leave the iteration over the data; the next one begins at the first step that is not trained."""
        if self.voided:
            self._shell.kept.put_back()  # now, as the script may put back more by itself
        if self.shards is not None:
            self.shards.give_up()

    def before_reduce(self) -> None:
        self._ends.check_open()
        self._shell.note_reduction()
        if self._machine.weight_is_due:
            self._samples.weigh()
        if self._machine.supply.weightless or self.voided:
            self._shell.kept.keep_registered()

    def before_update(self) -> None:
        # A state may be under way beside this mini-batch, from here or to here. Then the update is made: it counts.
        self._shell.before_update()
        self._shell.vote(updates=True)
        self._shell.settle_step()

    def await_state(self) -> None:
        self._shell.await_state()
        self._shell.settle_step()

    @property
    def committed(self) -> int:
        return self._machine.step

    @property
    def given_up(self) -> bool:
        return self._ends.given_up

    @property
    def shards(self) -> ShardGenerator[Any] | None:
        return self._samples.shards

    @property
    def standing(self) -> ScriptStanding:
        return self._ends.standing

    # ------------------------------------------------------------------------------------------ the end of a batch

    def notify_batch_end(self, samples: int | None = None) -> bool:
        """End a mini-batch; call it once for each, after the update. Return True if it is committed.

        False: nothing of it is in the model. If it was void, its samples come again; else it had no worker's samples: a
        rehearsal, or a step without samples.

        Here, and only here, rings change. A worker told to leave comes out by `edl.Leaving`. `samples` is how many this
        worker trained, for scripts that cut batches of their own; it is checked against what edl gave it.

        >>> for ids in edl.elastic_shard_generator(8, epochs=1).batches(4):
        ...     train_on(ids)
        ...     if edl.notify_batch_end():
        ...         print("committed:", edl.step() - 1, "steps")
        committed: 1 steps
        committed: 2 steps
        """
        if self._saved:
            self._shell.copier.witness = self._framework.witness()
        due, step = self._updates_due, self._count.step + 1
        is_updated = not due.in_backward and (due.soonest > step or not due.missing(step))
        if samples is None and is_updated and self._count.advance():
            return True
        self.seating.seated("notify_batch_end")
        if self.data.virtual_steps is not None:
            self.data.virtual_steps.begin_anew()
        return self._ends.end(samples)
