"""The training thread's side of a job, behind `import edl.torch as edl` and `import edl.tensorflow as edl`.

Owns: the calls that scripts and adapters make, and how a worker's life begins and ends. Does not own: what the end of a
mini-batch is made of (`edl.trainer.step_end`), where this process sits and how it changes seats
(`edl.trainer.worker_shell`), the framework (`edl.trainer.framework_port`), the data (`edl.trainer.sample_source`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from edl import ownership
from edl.config import Settings
from edl.core.data.batching import microbatches
from edl.core.worker.worker_inputs import (
    BitsStand,
    CheckpointWished,
    LeaveWanted,
    RestartsExpected,
    ScriptEnded,
    ScriptFailed,
)
from edl.core.worker.worker_states import ENDING
from edl.errors import ConfigError, UsageError
from edl.host.job_discovery import check_again, check_one_ring, joined
from edl.policy.learning import RAMP_STEPS, MeasuredNoise
from edl.protocol.checkpoint_record import Origin
from edl.protocol.divergence_report import Fingerprint
from edl.protocol.ring_places import RingKind, ring_kind
from edl.sources.source_port import Source
from edl.sources.streams.elastic_stream import ElasticStream
from edl.trainer import fork_stand_in
from edl.trainer.daemon_link import DaemonLink
from edl.trainer.data.among import Among
from edl.trainer.data.audit_files import AuditedCount, AuditFile
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.sample_ids import Ids
from edl.trainer.data.shards import CurrentItem, ShardGenerator
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.data.source import files_of
from edl.trainer.exit_paths import Leaving, leave_on_sigterm, note_failures, spare_the_collector
from edl.trainer.first_state import FirstState, life_begun
from edl.trainer.framework_port import Framework
from edl.trainer.limb_agreement import LimbAgreement, LimbWorld
from edl.trainer.part_finder import PartFinder
from edl.trainer.rates.factors import EVERY, RateFactors
from edl.trainer.rates.rate_factors import AnySchedule, Rule
from edl.trainer.rates.tuner import RateTuner
from edl.trainer.recomputed_parts import StepTrial
from edl.trainer.registered_state import RegisteredState, RegisteredValues
from edl.trainer.reported_metrics import FigureSender
from edl.trainer.sample_source import SampleSource
from edl.trainer.script_metrics import ScriptMetrics
from edl.trainer.script_position import ScriptStanding
from edl.trainer.shared_evaluation import Work
from edl.trainer.step_end import BatchEnds
from edl.trainer.virtual_steps import NAME as VIRTUAL
from edl.trainer.virtual_steps import PartLoad, VirtualParts, VirtualSteps
from edl.trainer.wait_bounds import RingWatch
from edl.trainer.worker_shell import WorkerShell
from edl.transport.shared_page import StepCounter

logger = logging.getLogger("edl")

T = TypeVar("T")

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
        world: Callable[[int, int, Path], LimbWorld] | None = None,
    ) -> None:
        """`kind` returns the framework's ring for these settings, or raises ConfigError. `rehearsals`: mini-batches
        until the framework has traced and compiled all for a script. `shell`: of this trainer, where the caller needs
        to hold it too. `world` joins the other processes of this worker, where the framework can be in several: with
        this one's number, their count, and a folder that they share.
        """
        self._world = world
        self._framework = framework
        self._kind = kind
        self._settings: Settings | None = None
        self._shell = shell or WorkerShell(framework, SharedLeases(), RegisteredState(framework.sort), rehearsals)
        self._leases, self._extras = self._shell.leases, self._shell.extras
        # The shell's own; here, as each look at a cold object costs the hot path.
        self._count: StepCounter | AuditedCount = self._shell.count
        self._machine = self._shell.machine
        self._updates_due = framework.updates_due
        self._stand_in = 0  # the process that horovodrun takes for this worker
        self._rates = RateFactors(framework, self._shell, self._leases, self._extras)
        self._resuming = FirstState(framework, self._extras, self._shell)
        self._samples = SampleSource(self._shell, self._leases, self._rates, self._resuming)
        self._figures = FigureSender(self._shell.report)
        self._ends = BatchEnds(
            framework=framework,
            shell=self._shell,
            leases=self._leases,
            extras=self._extras,
            samples=self._samples,
            rates=self._rates,
            resuming=self._resuming,
            figures=self._figures,
        )
        self._watch = RingWatch(self._shell)
        self._metrics = ScriptMetrics(framework, self._machine, self._ends, self._own_samples)
        self._epoch = 0
        self._saved = False  # the job is
        self._left = False
        self._virtual: VirtualSteps | None = None
        self._parts = PartFinder(self._machine, self._leases, lambda: self.steps_before, self._ends.judge)
        self.imports_only = False  # this process imports the script of the one that has spawned it, or has done so

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
        if self.imports_only:
            self._set_imports_only(False, None)
        if self._shell.inherited:
            raise UsageError(f"edl.init(): {ownership.FORKED}")
        if self._settings is not None:
            check_again(self._settings, given, left=self._left)
            return
        if fork_stand_in.is_due(os.environ):
            told = {"EDL_JOB": job, "EDL_COORDINATOR": coordinator}
            os.environ.update({name: value for name, value in told.items() if value is not None})
            fork_stand_in.split()
        settings = joined(os.environ, **given)
        self._check_processes(settings)
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
        self._shell.introduce()
        link.start()
        if self._world is not None and settings.processes > 1:
            rows, exchange = self._world(settings.limb, settings.processes, link.home)
            agreement = LimbAgreement(rows, self._machine, settings.limb)
            self._shell.join_limbs(agreement, settings.processes, exchange)
        self._watch.begin(self._framework.ring)
        self._shell.take_first()

    def _check_processes(self, settings: Settings) -> None:
        """Raise ConfigError where this process cannot be one of several of its worker."""
        if settings.processes == 1:
            return
        if self._world is None:
            raise ConfigError(
                f"--processes {settings.processes} (EDL_PROCESSES): workers of several processes are PyTorch's; leave "
                "it away"
            )
        if settings.meeting is None or settings.limb >= settings.processes:
            raise ConfigError(
                f"EDL_PROCESSES={settings.processes}: the processes of a worker are started together: by `edl run "
                f"--processes {settings.processes}`"
            )

    def take_seat(self, settings: Settings, link: DaemonLink) -> None:
        """Begin by these settings, with a link to a daemon that need not be started yet. `init` does it."""
        self._settings = settings
        self._saved = self._ends.saved = bool(settings.checkpoint)
        self._shell.thread = threading.get_ident()
        self._shell.step_timeout_s = settings.step_timeout_s
        self._shell.link = link
        self._count = self._shell.count
        if settings.virtual_workers:
            self._parts.virtual = settings.virtual_workers
            self._virtual = VirtualSteps(
                self._framework.part_sums(self), self._framework.sort, self, settings.virtual_workers
            )
            self._extras.add({VIRTUAL: self._virtual.scales})
            self._shell.kept.merges = True
        if self._shell.audit.on:
            self._count = AuditedCount(
                self._shell.count, self._shell.audit, lambda: self._machine.generation, self._framework.applied
            )

    def shutdown(self) -> None:
        """Leave the job; implied at exit. Harmless twice.

        >>> edl.shutdown()
        """
        if self._settings is None or self._left:
            return
        self._left = True
        self._leases.close()
        if self.shards is not None:
            self.shards.close()
        link = self._shell.link
        origin = self._resuming.not_taken_over
        if origin is not None and self._machine.models_may_differ and not self._machine.failure:
            logger.warning(
                "this worker had nothing left to train, and its script has ended without the state of %s: put "
                "shards.in_step(...) around the outermost iterable of the training loop",
                origin.path,
            )
        self._shell.copier.finish()
        self._shell.hear(ScriptEnded(self._state_at_end()))
        link.wait_noted(self._settings.session_timeout_s)
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
        self.imports_only = self._left = self._shell.inherited = imports_only
        self._settings = settings

    def _state_at_end(self) -> tuple[Fingerprint, ...]:
        """Return what the leader compares; empty if the script has changed its model so that edl cannot read it."""
        if self._machine.failure or self._machine.state in ENDING:
            return ()
        try:
            return self._ends.state_at_end()
        except Exception as error:  # noqa: BLE001 - whatever a script and its framework make of it
            logger.warning(
                "what this script has trained cannot be compared with the other workers', as it was changed after the "
                "last step in a way that edl cannot read: %s: %s",
                type(error).__name__,
                error,
            )
            return ()

    def _ask_to_leave(self) -> None:
        # A launcher that dies asks all processes below it to end: behind a stand-in, the stand-in judges that.
        if self._stand_in and os.getppid() == self._stand_in:
            os.kill(self._stand_in, signal.SIGTERM)
        else:
            self._shell.hear(LeaveWanted())  # noted first: whichever daemon there is hears it now or in the story

    def _note_failure(self, reason: str, foreign: bool = False) -> str:
        """Note that the script has failed, and what it had awaited. Return the leader's reason for a wait in vain."""
        waited = self._shell.waited_in_vain()
        self._shell.hear(ScriptFailed(f"{reason}; {waited}" if waited else reason, foreign))
        return self._shell.hear_why(reason) if waited else ""

    # ------------------------------------------------------------------------------------------------ who and where

    @property
    def began(self) -> bool:
        return self._settings is not None

    def rank(self) -> int:
        """Return this worker's place in the roster of the current generation.

        >>> if edl.rank() == 0:
        ...     print("only one worker prints this")
        only one worker prints this
        """
        self._started()
        return self._told("rank") if self.imports_only else self._machine.rank

    def size(self) -> int:
        """Return the number of workers in the current generation.

        >>> batch_of_all = 32 * edl.size()
        >>> batch_of_all
        32
        """
        self._started()
        return self._told("size") if self.imports_only else self._machine.size

    def local_rank(self) -> int:
        """Return this worker's number among the workers of its host, for life: what pins a device.

        >>> f"cuda:{edl.local_rank()}"
        'cuda:0'
        """
        self._started()
        return self._told("local_rank") if self.imports_only else self._machine.local_rank

    def group_rank(self) -> int:
        """Return this process's number among the processes of its worker (`--processes`), from 0.

        >>> edl.group_rank()
        0
        """
        return self._started().limb

    def group_size(self) -> int:
        """Return the number of processes of each worker: 1, unless the job was started with `--processes`.

        >>> edl.group_size()
        1
        """
        return self._started().processes

    def part_weight(self) -> float:
        """Return what to multiply this process's loss by, a mean over its part of the worker's samples: 1.0, but for a
        short step that does not divide among the processes of `among=`.

        >>> edl.part_weight()
        1.0
        """
        self._joined("part_weight")
        shards, own = self.shards, None if self.rehearsing() else self._leases.own(self._machine.step + 1)
        return 1.0 if shards is None or not own else shards.among.weight(own)

    @property
    def among(self) -> Among:
        return Among() if self.shards is None else self.shards.among

    def generation(self) -> int:
        """Return the number of the roster that trains now; 0 for a newcomer before its first switch.

        >>> edl.generation()
        1
        """
        self._joined("generation")
        return self._machine.generation

    def step(self) -> int:
        """Return the number of the mini-batch being worked on, from 1: committed mini-batches of the job, plus one.

        >>> edl.step()
        1
        """
        self._joined("step")
        return self._machine.step + 1

    def epoch(self) -> int:
        """Return the pass over the data that this mini-batch belongs to, from 0; between two passes, the next one.

        >>> edl.epoch()
        0
        """
        self._joined("epoch")
        epoch = self._leases.epoch(self._machine.step + 1)
        if epoch is None:  # no sample of the next mini-batch is leased yet
            epoch = max(self._epoch, 0 if self.shards is None else self.shards.epochs_known_done)
        self._epoch = epoch
        return epoch

    def own_samples(self) -> int:
        """Return how many samples of the mini-batch being worked on are this worker's own.

        0: the loop handed out stand-ins, which weigh nothing, as no sample was left for this worker; and in a
        rehearsal.

        >>> for ids in edl.elastic_shard_generator(5, epochs=1).batches(4):
        ...     print(edl.own_samples())
        ...     train_on(ids)
        ...     committed = edl.notify_batch_end()
        4
        1
        """
        self._joined("own_samples")
        if self.rehearsing():
            return 0
        step = self._machine.step + 1
        own = self._leases.own(step)
        if own is None:
            raise UsageError(
                f"edl.own_samples(): step {step} has no mini-batch yet; ask in the loop over elastic_shard_generator()"
            )
        return own

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
        if not self._seated("checkpoint").checkpoint:
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
        self._joined("resumed")
        return self._resuming.origin

    @property
    def steps_before(self) -> int:
        """Steps of all lives before this one."""
        origin = self.resumed()
        return 0 if origin is None else origin.step

    def _goes_on_in(self) -> int:
        """Return the epoch in which this life of the job begins."""
        origin = self.resumed()
        return 0 if origin is None else origin.epoch

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

    @overload
    def elastic_shard_generator(  # type: ignore[overload-overlap] # a text has a length, too
        self,
        source: str | os.PathLike[str] | Sequence[os.PathLike[str]],
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[list[Any]]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: Sequence[str],
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[Any]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: ElasticStream,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[list[Any]]: ...

    @overload
    def elastic_shard_generator(
        self,
        source: int | Sized,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: None = None,
        *,
        among: Any = None,
    ) -> ShardGenerator[Ids]: ...

    def elastic_shard_generator(
        self,
        source: int | Sized | os.PathLike[str] | ElasticStream,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,  # noqa: A002 - the contract's name
        *,
        among: Any = None,
    ) -> ShardGenerator[Any]:
        """Return this worker's samples of `source`: each sample of an epoch goes to exactly one worker, at any size.

        `source` is a number of samples, anything with `len()`, or files: paths, globs, folders, URLs; `format` is
        theirs where their names do not say it. Use `.batches(n)` for one numpy array of sample ids per step (of files:
        one list of records), or iterate (or call) it for one sample at a time. `epochs=None`: each iteration is one
        more epoch.

        `among`: of a worker of several processes, the dimension of its mesh over which they divide its samples, such as
        `mesh["shard"]`. Those that only differ in another dimension take the same samples. None: all take all of them.

        >>> for ids in edl.elastic_shard_generator(6, epochs=1).batches(4):
        ...     print(ids)
        ...     train_on(ids)
        ...     committed = edl.notify_batch_end()
        [0 1 2 3]
        [4 5]
        """
        settings = self._started() if self.imports_only else self._seated("elastic_shard_generator")
        if settings.processes > 1 and isinstance(source, ElasticStream):
            raise UsageError(
                "a stream is not read by workers of several processes (--processes) yet: train on ids or files"
            )
        self._ends.standing.register()
        shards: ShardGenerator[Any] = ShardGenerator(
            source,
            self._samples,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            format=format,
            default_batch=settings.batch_size,
            step_timeout_s=settings.step_timeout_s,
            home=settings.home,
            audit=self._shell.audit,
            goes_on_in=self._goes_on_in,
            earlier=self.shards,
            virtual=settings.virtual_workers or 0,
            among=Among.of(among),
        )
        self._samples.shards = shards
        return shards

    def evaluate(self, function: Callable[[Any], Any], source: int | Sized, batch_size: int) -> dict[str, Any]:
        """Sum over all samples of a validation set, each of which one worker computes, at any number of workers.

        Call it between two mini-batches, at the same place on all workers: after the loop over an epoch, or after
        `notify_batch_end()`; in a loop over a prepared loader, after the update. It returns the same on all of them. If
        workers die meanwhile, the others compute what those had not told yet.

        Args:
            function: is given the numbers of some samples, a numpy array. It returns a dict of sums over them: numbers,
                arrays (a confusion matrix, say), or tensors; or `edl.gather_for_metrics(rows)`, with a row for each
                sample.
            source: a number of samples, or anything with `len()`.
            batch_size: as many samples as `function` is given at once; fewer in the last batch.

        Returns a dict of the same names: numbers, numpy arrays, and rows of all samples in their order.

        >>> edl.evaluate(lambda ids: {"seen": len(ids), "sum": float(ids.sum())}, 10, batch_size=4)
        {'seen': 10, 'sum': 45.0}
        """
        self._seated("evaluate")
        self.check_alone("edl.evaluate()")
        return self._metrics.evaluate(function, source, batch_size)

    def evaluate_shared(self, work: Work) -> tuple[bytes, ...]:
        """Return what each worker has found, each unit once; in a rehearsal, one unit's."""
        self._seated("evaluate")
        return self._ends.evaluate(work)

    def gather_for_metrics(self, values: Any) -> Any:
        """Return the rows of all workers' mini-batches, by rank, as numpy arrays; stand-ins are left out.

        `values`: a tensor or array with a row for each sample, or tuples, lists and dicts of such. Call it on all
        workers alike, between the item of the loop and `notify_batch_end()`. If the ring breaks, a worker gets its own.

        Inside of the function of `edl.evaluate`, return what this returns: the rows of all samples, in their order, are
        in what `edl.evaluate` returns.

        >>> for ids in edl.elastic_shard_generator(5, epochs=1).batches(4):
        ...     train_on(ids)
        ...     print(edl.gather_for_metrics(10 * ids))
        ...     committed = edl.notify_batch_end()
        [ 0 10 20 30]
        [40]
        """
        self._seated("gather_for_metrics")
        self.check_alone("edl.gather_for_metrics()")
        return self._metrics.gather(values)

    def _own_samples(self) -> int | None:
        return None if self.shards is None else self.own_samples()

    def report(self, **figures: float) -> None:
        """Tell the job figures of the script's own, such as `edl.report(loss=0.3)`, for its policy.

        The newest of each name counts; they travel twice a second at most.

        >>> edl.report(loss=0.3, accuracy=0.9)
        """
        self._seated("report")
        self._figures.take(figures)

    def scale_rate(self, rule: Rule, base_batch: int, steps: int = RAMP_STEPS) -> None:
        """Multiply learning rates by what the batch of all workers asks for, and go there in a few steps.

        Args:
            rule: "linear", "sqrt" or "none", or a function of k; k is the samples of a step of all workers over
                `base_batch`. Or "adascale": by the gradient noise, see `measure_noise`.
            base_batch: the batch that the optimizer's own learning rate is meant for.
            steps: when the batch changes, the factor goes to its new value in a straight line over so many steps.

        Call it before the first mini-batch, on all workers alike. The script's own schedule goes on unchanged, and what
        it reads is without the factor.

        >>> edl.scale_rate("linear", base_batch=128)  # twice the rate at 256 samples a step
        """
        self._started()
        if rule == "adascale":
            self.check_alone('edl.scale_rate("adascale")')
        if not self.imports_only:
            self._rates.scale(rule, base_batch, steps)

    def schedule_rate(self, schedule: AnySchedule, epochs: int | None = None) -> None:
        """Multiply learning rates by a schedule of the samples trained: the same at any size and batch.

        Args:
            schedule: `edl.Knee(...)`, `edl.Warmup(...)`, a function of progress, or an object whose `at(progress)` is
                one; with a `state_dict()`, it travels to newcomers. Progress is what is trained of all samples of all
                epochs, from 0.0 to 1.0. Or `edl.RateTuner(...)`.
            epochs: of the whole training, where `elastic_shard_generator(epochs=...)` does not say it.

        Call it before the first mini-batch, on all workers alike. It goes with `scale_rate`, and with the script's own
        schedule: all are multiplied, and what the script reads is without edl's.

        >>> edl.schedule_rate(lambda progress: 1.0 - progress, epochs=10)
        """
        self._started()
        if isinstance(schedule, RateTuner):
            self.check_alone("edl.schedule_rate(edl.RateTuner(...))")
        if not self.imports_only:
            self._rates.schedule(schedule, epochs)

    def measure_noise(self, every: int = EVERY) -> None:
        """Measure the gradient noise in each `every`-th step: `edl.gradient_noise()` has it, and the job's policy, as
        figures `grad_sqr` and `grad_var`. `edl.scale_rate("adascale", ...)` does so by itself.

        It takes the norms of all gradients, before and after they are averaged, so at least two workers. Call it before
        the first mini-batch, on all workers alike. Not in graphs of TensorFlow 1.

        >>> edl.measure_noise(every=10)
        """
        self._started()
        self.check_alone("edl.measure_noise()")
        if not self.imports_only:
            self._rates.measure(every)

    def gradient_noise(self) -> MeasuredNoise | None:
        """Return the noise as measured so far; None before the first time.

        `sqr` is the squared norm of the true gradient, `var` the variance of one sample's, and `scale` the batch in
        which the two are equal.

        >>> noise = edl.gradient_noise()
        >>> noise.scale if noise else "not measured yet"
        'not measured yet'
        """
        return self._rates.noise

    def microbatches(self, batch: T, most: int | None = None) -> Iterator[tuple[T, float]]:
        """Cut a batch that is too large for the memory at once. Yield its parts, each with its share of the batch.

        Parts have at most `most` samples, as evenly as can be. Multiply the loss of each part, a mean, by its share,
        and make one update after the last: the gradient is that of the whole batch. In PyTorch, `backward()` only adds
        up until the last part. With virtual workers each part is one of theirs.

        >>> [(part, share) for part, share in edl.microbatches([7, 8, 9, 10], most=2)]
        [([7, 8], 0.5), ([9, 10], 0.5)]
        """
        self._started()
        if most is not None and (type(most) is not int or most < 1):
            raise UsageError(f"edl.microbatches(batch, most={most!r}): must be a whole number of at least 1")
        if self._virtual is not None:
            return self._virtual.parts(batch, most)
        if most is None:
            return iter([(batch, 1.0)])
        if not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__"):
            raise UsageError(
                f"edl.microbatches(batch, most): a {type(batch).__name__} cannot be cut; give it ids, or a list"
            )
        return self._microbatches(batch, most)

    def _microbatches(self, batch: Any, most: int) -> Iterator[tuple[Any, float]]:
        begin, parts = 0, microbatches(len(batch), most)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            with contextlib.nullcontext() if last else self._framework.adding_up():
                yield batch[begin : begin + part], part / len(batch)
            begin += part

    def begin_part(self) -> None:
        """Begin the newest part of `microbatches` once more: its random numbers, and the statistics of its model."""
        assert self._virtual is not None  # there are parts
        self._virtual.begin_part()

    def opening(self, source: Any, format_name: str | None) -> Callable[[], Source]:
        """Return how to open files as samples, in this process and in others that load for it."""
        return partial(files_of, source, format_name, self._started().home, 5 * self._started().step_timeout_s)

    # -------------------------------------------------------------------------------------- the port of the adapters

    @property
    def epochs_done(self) -> int | None:
        """Finished epochs of the script's `elastic_shard_generator`; None without one."""
        return None if self.shards is None else self.shards.epochs_done

    @property
    def ends_pass(self) -> bool:
        """Tell whether this mini-batch is the last one of its epoch, on all workers of this generation alike."""
        return self._leases.ends_pass(self._machine.step + 1)

    def check_alone(self, what: str) -> None:
        """Raise UsageError for what workers of several processes cannot do yet."""
        if self.began and (processes := self._started().processes) > 1:
            raise UsageError(f"{what}: not with workers of several processes (--processes {processes}) yet")

    @property
    def virtual(self) -> int:
        return 0 if self._settings is None else self._settings.virtual_workers or 0

    def adding_up(self) -> contextlib.AbstractContextManager[None]:
        return self._framework.adding_up()

    def step_of_all_lives(self) -> int:
        return self.steps_before + self.step()

    def tell_bits(self, bits: str) -> None:
        self._shell.hear(BitsStand(bits))

    @property
    def keeps_digests(self) -> bool:
        return self._shell.audit.on

    def keep_digests(self, loop: int, digests: Sequence[tuple[int, int]]) -> None:
        """Keep the digests of this step's parts in the audit. Raises SystemExit where a replay ends."""
        step = self.step_of_all_lives()
        self._shell.audit.computed(step, loop, digests)
        if (until := self._started().replay_until) is not None and step >= until:
            raise SystemExit(0)

    def parts_of_step(self, batch: Any) -> VirtualParts:
        """Return this worker's parts of the mini-batch being worked on."""
        return self._parts.of_step(batch, rehearses=self.rehearsing())

    def trial(self, batch: Any, parts: VirtualParts) -> StepTrial:
        return self._parts.trial(batch, parts)

    def ids_of(self, virtual: int) -> Ids:
        return self._parts.ids_of(virtual)

    @property
    def corrupt_since(self) -> int:
        since = self._ends.corrupt_since
        return since and self.steps_before + since

    def loads_of(self, ids: Ids) -> list[PartLoad]:
        """Return what the parts of the mini-batch being worked on are loaded from."""
        return self._parts.loads_of(ids, rehearses=self.rehearsing())

    def loads_coming(self, count: int) -> list[PartLoad]:
        """Return the next `count` parts after this step, of its epoch, as far as they are leased."""
        return [] if self.rehearsing() else self._parts.loads_coming(count)

    def begin_numbers(self, ids: Ids) -> None:
        """Begin the script's random numbers for the mini-batch being worked on."""
        assert self._virtual is not None  # its loader gives parts
        self._virtual.begin_numbers(ids)

    @property
    def voided(self) -> bool:
        return self._machine.void is not None

    @property
    def weightless(self) -> bool:
        return self._machine.weightless

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
        if self._machine.weightless or self.voided:
            self._shell.kept.keep_registered()

    def before_update(self) -> None:
        # A state may be under way beside this mini-batch, from here or to here. Then the update is made: it counts.
        self._shell.before_update()
        self._shell.vote()
        self._shell.settle_step()

    def await_state(self) -> None:
        self._shell.await_state()
        self._shell.settle_step()

    @property
    def committed(self) -> int:
        return self._machine.step

    @property
    def given_up(self) -> bool:
        """Tell whether the ring is given up: the next one waits for this worker."""
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
        self._seated("notify_batch_end")
        if self._virtual is not None:
            self._virtual.begin_anew()
        return self._ends.end(samples)

    # -------------------------------------------------------------------------------------------------- small parts

    def _started(self) -> Settings:
        if self._settings is None:
            raise UsageError("edl is not initialized: call edl.init() first")
        return self._settings

    def _seated(self, call: str) -> Settings:
        """Raise UsageError in a child of the script's, for a `call` that needs the other workers, or the daemon."""
        if self._shell.inherited:
            raise UsageError(f"edl.{call}(): {ownership.refusal()}")
        return self._started()

    def _joined(self, call: str) -> None:
        """Raise UsageError in a spawned child, for a `call` about what only a forked one knows."""
        if self.imports_only:
            raise UsageError(f"edl.{call}(): {ownership.SPAWNED}")
        self._started()

    def _told(self, call: str) -> int:
        """Return what the parent of a spawned child had put into the environment. Raises UsageError."""
        told = os.environ.get(f"HOROVOD_{call.upper()}")
        if told is None:
            raise UsageError(f"edl.{call}(): {ownership.SPAWNED}")
        return int(told)
