"""The end of each mini-batch, and what the coming one needs. Here, and only here, rings change.

Owns: in which order that is done, for a mini-batch that counts, a void one, a rehearsal, and where the ring of an
evaluation breaks; and where a newcomer goes on that comes after an epoch's last step. Does not own: any decision
(`edl.core.worker.worker_machine`), carrying it out (`edl.trainer.worker_shell`), nor what each part does in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from edl.core.worker.compute_check import ComputeVerdict
from edl.core.worker.digest import final
from edl.core.worker.next_move import changes_after, given_up
from edl.core.worker.worker_inputs import StatesEqual
from edl.core.worker.worker_states import ENDING
from edl.errors import EdlError, JobFailed, RingBroken, UsageError
from edl.host.imported_modules import tell_imported
from edl.protocol.divergence_report import Fingerprint
from edl.trainer.data.epoch_cursor import PassSoFar
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.divergence_check import DivergenceCheck
from edl.trainer.first_state import FirstState
from edl.trainer.framework_port import Framework
from edl.trainer.learning_rates import RateFactors
from edl.trainer.registered_state import RegisteredState
from edl.trainer.reported_metrics import FigureSender
from edl.trainer.sample_source import END_IT, SampleSource
from edl.trainer.script_position import LastStep, ScriptStanding
from edl.trainer.shared_evaluation import Results, SharedEvaluation, Work
from edl.trainer.void_batches import CUT, UpdateCheck
from edl.trainer.worker_shell import WorkerShell

logger = logging.getLogger("edl")

EVALUATION_ROUNDS = 4  # in a step time-out: no worker waits for another one that long


class BatchEnds:
    """End the mini-batches of one trainer, on the training thread. Implements
    `edl.trainer.shared_evaluation.Between`.
    """

    def __init__(  # noqa: PLR0913 - the parts of a trainer
        self,
        *,
        framework: Framework,
        shell: WorkerShell,
        leases: SharedLeases,
        extras: RegisteredState,
        samples: SampleSource,
        rates: RateFactors,
        resuming: FirstState,
        figures: FigureSender,
    ) -> None:
        self._framework = framework
        self._extras = extras
        self._shell = shell
        self._machine = shell.machine
        self._leases = leases
        self._samples = samples
        self._rates = rates
        self._resuming = resuming
        self._figures = figures
        self._comparison = DivergenceCheck(framework, shell, extras)
        self._updates = UpdateCheck(framework, shell.machine)
        self._evaluations = SharedEvaluation(lambda: framework.ring, self)
        self._ring_broke = False  # in the mini-batch that ends
        self._is_known = False  # what the script trains
        self._told_imported = False
        self._at_end = False  # the script has ended the newest step, and has not come to the end of another one
        self._end_open: Callable[[], object] | None = None  # ends the mini-batch that a loader has given out
        self._ended_open = False  # an evaluation has ended it, and the loader was not asked for the next one
        self.standing = ScriptStanding(extras)
        self.resized: list[Callable[[int, int], object]] = []  # what is called with the old size and the new one
        self.saved = False  # the job is
        shell.state_came = self._take_standing
        shell.state_changes = self._comparison.before_update

    # ----------------------------------------------------------------------------------------------------- each end

    def end(self, samples: int | None) -> bool:
        """End a mini-batch that the fast path does not count, such as the first or a void one. Tell if it counts."""
        self._ask_of_update()
        self._hear_comparison()  # before the ring may change
        committed = self._end(samples)
        if self._machine.check_is_due:
            self._compare()
        if committed and self._leases.ends_before(self._machine.step + 1):
            self._comparison.read_last(self._leases.epochs_before(self._machine.step + 1) or 1)
        if self._ring_broke:  # after the comparison, as in `renew_ring`: all members call the same in the same order
            self._ring_broke = False
            self._settle_evaluations()
        if self.saved:
            self._shell.copier.witness = self._framework.witness()  # another's state may have come
            if committed:
                self._shell.prepare_copies()
        return committed

    def _ask_of_update(self) -> None:
        """Ask the others whether they left out an update that this worker misses.

        A comparison that each worker answers by itself is finished before, as it would meet that question in the ring.
        Other comparisons need the others' part, so this worker must not wait for them.
        """
        if not self._updates.is_missing:
            return
        if self._comparison.is_asked:
            self._hear_comparison()
        skipped = self._updates.ask(self._shell.step_timeout_s)
        if skipped is not None:
            self._shell.void(skipped, keep=False)

    def _end(self, samples: int | None) -> bool:
        shell, machine = self._shell, self._machine
        if samples is not None:
            self._samples.check_trained(samples)
        self._evaluations.begin_batch()
        shell.vote_at_end()
        self._note_end()
        shell.kept.put_back()
        shell.end_beside()
        if not machine.generation and shell.rehearsals.left > 1:
            self._rates.rehearse()
            shell.rehearsals.end_one()
            return False
        if machine.void is not None or not machine.generation:
            return self._end_uncommitted()
        if machine.model.may_differ and self._resuming.not_taken_over is not None:
            self._begin_late()
            return False
        old, weightless, done = machine.size, machine.supply.weightless, machine.step + 1
        if weightless:
            self._rates.skip()
        else:
            noise = self._rates.count()
            if noise is not None:
                self._figures.take({"grad_sqr": noise.sqr, "grad_var": noise.var})
        self._at_end = True
        self._tell_standing(done, [])
        shell.end_batch(attention=shell.looks_after(done))
        if not weightless:
            shell.measure_state()
        self._pass_over(done)
        self._tell_resized(old)
        self._prepare_step()
        shell.weigh_if_known()
        self._tell_imported()
        return not weightless

    def _end_uncommitted(self) -> bool:
        shell, machine = self._shell, self._machine
        old, before, void, rank = machine.size, machine.step, machine.void, machine.rank
        if void is None:
            self._rehearse()
        else:
            self._at_end = False  # of step `before`: what the script does after that one is done
        self._tell_standing(before, self._evaluations.results)
        shell.end_uncommitted_batch()
        self._ring_broke = True
        if void is not None and machine.step > before:
            self._at_end = True
        if void is not None:  # not where the job is over, which is said in its own words
            logger.warning("step %d is void on rank %d: %s", before + 1, rank, void.partition("\n")[0])
        self._pass_over(before + 1)
        self._prepare_step()
        rehearsed = shell.rehearsals.left > 0
        shell.rehearsals.end_all()
        self._tell_resized(old)
        if rehearsed:
            return False
        if machine.step > before:
            return True  # a peer had applied it: with that peer's state it is committed here too (I5)
        if not self._samples.redeliver(before):  # before the script asks for the next batch
            if void is not None and CUT in void:
                self._shell.void(RingBroken(void), keep=False)  # should the script catch this, too
                raise EdlError(f"step {before + 1} is void: {CUT}, and asked for another mini-batch: {END_IT}")
            raise JobFailed(
                f"step {before + 1} is void, and the input pipeline has read ahead of it, so its samples cannot come "
                "again in order: put shards.in_step(...) around the outermost iterable of the training loop"
            )
        return False

    def _begin_late(self) -> None:
        """Take over the saved state after the first mini-batch, which was computed on another one and comes again.

        Nothing has told when it began, as its data are the script's own, or come from a pipeline's thread.
        """
        self._framework.applied()
        self._shell.begin_again()
        self._resuming.begin_batch()
        if not self._samples.redeliver(self._machine.step):
            raise JobFailed(
                "this job goes on from a checkpoint, and its input pipeline has read ahead of the first step, so the "
                "samples of that cannot come again in order: put shards.in_step(...) around the outermost iterable of "
                "the training loop"
            )

    # -------------------------------------------------------------------------------------------- the parts of an end

    def _prepare_step(self) -> None:
        self._updates.begin_step()
        try:
            self._rates.tune()
        except RingBroken as error:
            self._shell.void(error, keep=False)
        self._rates.follow()
        self._resuming.begin_batch()

    def _rehearse(self) -> None:
        """Do alone what a newcomer first does in a ring, as all others would wait for it there (I4)."""
        self._rates.rehearse()
        self._comparison.rehearse()
        self._shell.beside.rehearse()
        self._tell_imported()

    def _tell_imported(self) -> None:
        """Report once what the script has imported by the end of a whole mini-batch."""
        if not self._told_imported:
            self._told_imported = True
            tell_imported(self._shell.link.folder)

    def _pass_over(self, done: int) -> None:
        if not self._samples.pass_over(done):
            raise JobFailed(
                f"the other workers have gone on to step {self._machine.step}, where none has samples, and the input "
                f"pipeline has read ahead of step {done}, so what it gives next is trained already: put "
                "shards.in_step(...) around the outermost iterable of the training loop"
            )

    def _tell_resized(self, old: int) -> None:
        if old != self._machine.size:
            for callback in self.resized:
                callback(old, self._machine.size)

    # ----------------------------------------------------------------------------------------------- the comparison

    def _compare(self) -> None:
        # It comes after the script's callbacks and in the ring that goes on: there all workers have done the same.
        if not (self._is_known or self._framework.knows or self._extras.compared()):
            logger.warning(
                "after step %d edl knows of nothing that this script trains: no optimizer was given to edl.Optimizer, "
                "so nothing is averaged over %d workers, nor sent to a newcomer",
                self._machine.step,
                self._machine.size,
            )
        self._is_known = True  # or it was said
        try:
            if self._comparison.begin():
                return
            self._comparison.make(self._shell.step_timeout_s)
        except RingBroken as error:
            self._shell.void(error, keep=False)  # the coming one, which the script has not begun
        else:
            self._shell.hear(StatesEqual())

    def _hear_comparison(self) -> None:
        if self._comparison.finish(self._shell.step_timeout_s):
            self._shell.hear(StatesEqual())

    def judge(self, found: ComputeVerdict) -> None:
        """Act on parts of this step that came out otherwise the second time. Raises what `DivergenceCheck.judge`
        does.
        """
        self._comparison.judge(found, self._shell.step_timeout_s)

    @property
    def corrupt_since(self) -> int:
        return self._comparison.corrupt_since

    def state_at_end(self) -> tuple[Fingerprint, ...]:
        """Return what the leader compares when the script has ended; nothing if it never trained, has failed, or has
        changed its model so that edl cannot read it.
        """
        machine, due = self._machine, self._framework.updates_due
        if machine.failure or machine.state in ENDING or not machine.generation or not machine.step:
            return ()
        try:
            updates = 0 if machine.void is not None else due.made_after(machine.step)
            return final(machine.step, self._comparison.last(), updates)
        except Exception as error:  # noqa: BLE001 - whatever a script and its framework make of it
            logger.warning(
                "what this script has trained cannot be compared with the other workers', as it was changed after the "
                "last step in a way that edl cannot read: %s: %s",
                type(error).__name__,
                error,
            )
            return ()

    # ------------------------------------------------------------------------------------ evaluations between batches

    def evaluate(self, work: Work) -> tuple[bytes, ...]:
        """Return what each worker has found, each unit once; in a rehearsal, one unit's."""
        if not self._machine.generation:
            work.compute(range(min(work.units, 1)), lambda: True)
            return (work.found(),)
        if self._shell.has_gradients:
            self._end_before()
        self._at_end = True
        return self._evaluations.make(work)

    def give_out(self, end: Callable[[], object] | None) -> None:
        """Note that a loader has given out a mini-batch, which `end` ends; None: the loader has ended it."""
        self._end_open = end
        if end is not None:
            self._ended_open = False

    def check_open(self) -> None:
        """Raise UsageError, on all workers alike, for gradients of a mini-batch that an evaluation has ended."""
        if self._ended_open:
            raise UsageError(
                f"edl.evaluate() has ended step {self._machine.step}, and gradients came after it: in a loop over a "
                "prepared loader call it after optimizer.step()"
            )

    def _end_before(self) -> None:
        """End the mini-batch in which an evaluation is called: its update may be made, so it must count before a ring
        can break. Raises UsageError, on all workers alike, where the script ends its mini-batches itself.

        Where the ring changes after it, the evaluation comes first: a newcomer's script is not at this place. Void, it
        comes again.
        """
        machine, orders, end = self._machine, self._shell.link.orders, self._end_open
        step = machine.step + 1
        if end is None:
            raise UsageError(
                f"edl.evaluate() in the middle of step {step}, which has come to its gradients: call "
                "notify_batch_end() before it"
            )
        if machine.void is None and orders is not None and changes_after(machine.generation, step, orders):
            return
        self._ended_open = True
        end()

    @property
    def committed(self) -> int:
        return self._machine.step

    @property
    def round_s(self) -> float:
        return self._shell.step_timeout_s / EVALUATION_ROUNDS

    @property
    def given_up(self) -> bool:
        orders = self._shell.link.orders
        return orders is not None and self._machine.generation in given_up(orders)

    def begin_evaluation(self) -> None:
        """Give all members the weights of the newest step, and rank 0's batch statistics. Raises RingBroken."""
        self._resuming.begin_batch()  # before the first one, too
        self._shell.complete_state()  # a newcomer's may be on its way beside the coming step
        if self._machine.void is not None:
            raise RingBroken(self._machine.void)
        if self._machine.size > 1:
            self._framework.synchronize_rest(0, only_statistics=True)

    def renew_ring(self, error: RingBroken) -> None:
        if self._shell.has_gradients:
            raise JobFailed(f"the ring broke in an evaluation in step {self._machine.step + 1}: {error}") from error
        self._hear_comparison()
        self._shell.void(error, keep=False)
        old, before = self._machine.size, self._machine.step
        self._tell_standing(before, self._evaluations.results)
        self._shell.end_uncommitted_batch()
        if self._machine.step < before:
            raise JobFailed(f"the others go back to before step {before}, and the script of this newcomer is past it")
        self._pass_over(before)
        self._prepare_step()
        self._tell_resized(old)
        if self._machine.check_is_due:
            self._compare()

    def _settle_evaluations(self) -> None:
        # Another worker may have missed the results of an evaluation as the ring before broke.
        while True:
            try:
                return self._evaluations.settle()
            except RingBroken as error:
                self.renew_ring(error)

    # -------------------------------------------------------------------------------------- where the script stands

    def _note_end(self) -> None:
        # The mini-batch may be void: a peer's state may yet make it committed.
        step = self._machine.step + 1
        lease = self._leases.at(step)
        if lease is not None:
            self.standing.note_end(LastStep(step, lease.epoch))

    def _tell_standing(self, step: int, results: Results) -> None:
        shards = self._samples.shards
        so_far = PassSoFar() if shards is None else shards.so_far(step)
        self.standing.tell(step, results, at_end=self._at_end, so_far=so_far)

    def _take_standing(self) -> None:
        # A newcomer has another worker's state, and none of its samples yet.
        heard, step = self.standing.heard, self._machine.begins_after
        if self._shell.rehearsals.left == 0 or heard.get("step") != step:
            return
        self._evaluations.take(step, heard["results"])
        self._at_end = heard.get("at_end", False)
        self.standing.note_end(LastStep(step, heard["epoch"]))  # others may get it from here
        if self._samples.shards is not None:
            # While they are in the pass of that step, what lies between two passes is ahead of them all.
            so_far = PassSoFar(*heard.get("pass", ()))
            self._samples.shards.join(step, heard["epoch"] if self._at_end and so_far.steps else None, so_far)
