"""Samples for the script's generator: the leases that this worker holds, and waiting for more.

Owns: telling the job what is trained on, and how long a generator waits, on whichever thread pulls it. Does not own:
what is handed out (`edl.trainer.data.shards`), nor which leases there are (`edl.core.worker.lease_buffer`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from edl.core.worker.worker_inputs import DataWanted, StreamRead
from edl.errors import UsageError
from edl.protocol.data_nouns import DataSpec, ShardPart
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.shards import CurrentItem, ShardGenerator
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.first_state import FirstState
from edl.trainer.learning_rates import RateFactors
from edl.trainer.worker_shell import WorkerShell

logger = logging.getLogger("edl")

UNENDED = "this script has taken all mini-batches that it was given, and has ended none"
END_EACH = (
    "call edl.notify_batch_end() after the update of each one; with Keras's fit, give it edl.KerasCallback(); over a "
    "loader of edl.prepare(), asking for the next one does it"
)
END_IT = (
    "call edl.notify_batch_end() in each mini-batch, also where an exception is caught, or let the exception end this "
    "worker, whose samples the others train then"
)
COMMIT_POLL_S = 0.0005  # the end of a mini-batch wakes no thread: that would cost every step


class SampleSource:
    """The `DataPort` of one trainer. Any thread may use it, but for what belongs to the training thread."""

    def __init__(self, shell: WorkerShell, leases: SharedLeases, rates: RateFactors, resuming: FirstState) -> None:
        self._shell = shell
        self._machine = shell.machine
        self._leases = leases
        self._rates = rates
        self._resuming = resuming
        self.shards: ShardGenerator[Any] | None = None  # the script's, where edl deals out its data
        self._told_unended = False  # a script that never ends a mini-batch was told so

    # ---------------------------------------------------------------------------------------- the generator's port

    def open(self, spec: DataSpec) -> None:
        opened = self._machine.status.data
        if opened is not None and (differences := spec.differences(opened)):
            told = ", ".join(f"{name}={getattr(spec, name)!r} for {getattr(opened, name)!r}" for name in differences)
            remedy = ": make one of several streams by edl.ElasticStream.mix" if spec.shards and opened.shards else ""
            if bool(spec.shards) != bool(opened.shards):
                told = "a stream and samples with numbers, such as an ElasticDataLoader for validation"
                remedy = ": validate by edl.evaluate, or by a plain DataLoader"
            raise UsageError(f"a job trains on one source, and another is open already ({told}){remedy}")
        if opened is None:
            self._rates.begin(spec)
        if spec != opened:
            self._shell.audit.opened(spec)
        self._shell.hear(DataWanted(spec))
        if opened is None:  # never again: a pipeline's thread may begin a pass while the training thread ends a step
            self._rates.follow()

    def found(self, parts: tuple[ShardPart, ...]) -> None:
        self._shell.hear(StreamRead(parts))

    @property
    def leases(self) -> SharedLeases:
        return self._leases

    @property
    def rehearsals(self) -> Rehearsals:
        return self._shell.rehearsals

    def step(self) -> int:
        return self._machine.step + 1

    def begin_batch(self) -> None:
        self._resuming.begin_batch()

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        self.begin_batch()
        machine, leases = self._machine, self._leases
        leases.forget_before(machine.step)  # else a job of weeks would search through all that it has trained
        if not leases.offers(max(step or 0, machine.step + 1)) and not (
            wait and leases.wait_offered(step, lambda: machine.step, self._patience(step))
        ):
            return False
        coming = machine.step + 1
        if (step or 0) <= coming and machine.weight_is_due:
            # A pipeline's thread asks for the samples of the coming step, whose weight could not be known when the
            # training thread passed by. That one cannot begin the step before it has them: set the weight first.
            self.weigh()
        return True

    def check_ended(self, step: int) -> None:
        if self._shell.is_training_thread:  # a pipeline may read ahead on another
            raise UsageError(f"this script asks for another mini-batch, and has not ended step {step}: {END_IT}")

    def loaded(self, nanoseconds: int) -> None:
        self._shell.link.page.add_loaded(nanoseconds)

    def weigh(self) -> None:
        """Set this worker's weight, once what all workers train in the coming step is known."""
        self._shell.weigh(self._while_waiting)

    # ------------------------------------------------------------------------------------------ pipelines that read

    def hold(self) -> CurrentItem:
        """Let the caller keep the item that is being trained, as the script's pipeline reads ahead."""
        return CurrentItem() if self.shards is None else self.shards.hold()

    def keep_in_step(self) -> None:
        # The pipeline is inside a graph, where a void mini-batch can come again only if nothing was read beyond it.
        if self.shards is not None:
            self.shards.keep_in_step(self._wait_committed)

    def _wait_committed(self, handed_out: Callable[[], int]) -> None:
        """Wait, on the pipeline's thread, until the step handed out last is committed, or void and stepped back."""
        while self._machine.step < handed_out() and not self._leases.closed:
            if self.shards is not None:
                self.shards.check_goes_on()
            time.sleep(COMMIT_POLL_S)

    def _patience(self, step: int | None) -> Callable[[], bool]:
        """Return a test whether to go on waiting for `step`; it raises UsageError once no samples of it can come."""
        since, machine = time.monotonic(), self._machine

        def goes_on() -> bool:
            is_over = time.monotonic() - since > self._shell.step_timeout_s
            if is_over and step is not None and step > machine.step + 1:
                self._tell_unended(machine.step)
            return self._goes_on_waiting()

        return goes_on

    def _tell_unended(self, step: int) -> None:
        # The leader leases more once steps have ended, and the script has taken all samples and ended no step since
        # `step`.
        if self._shell.is_training_thread:  # which alone could end one, and waits
            raise UsageError(f"{UNENDED} since step {step}: {END_EACH}")
        if step == 0 and not self._told_unended:  # it may be at its first one for long
            self._told_unended = True
            logger.warning("%s: %s", UNENDED, END_EACH)

    def _goes_on_waiting(self) -> bool:
        """Return False once, so that the script gets a placeholder batch and reaches the end of its step."""
        self._while_waiting()
        if self.shards is not None:
            self.shards.check_read()
        due, self._shell.stand_ins_due = self._shell.stand_ins_due, False
        return not due

    def _while_waiting(self) -> None:
        if self._shell.is_training_thread:
            self._shell.while_waiting()
        else:
            if self.shards is not None:
                self.shards.check_goes_on()
            self._shell.while_pipeline_waits()

    # ------------------------------------------------------------------- the end of a mini-batch (training thread)

    def check_trained(self, samples: int) -> None:
        """Check the number of samples that the script has trained in the mini-batch that ends. Raises UsageError."""
        step, rank = self._machine.step + 1, self._machine.rank
        if self.shards is None or self.rehearsals.left > 0 or not self._leases.covers(step):
            return
        if samples != (share := self.shards.share(step)) and share:  # without a share of its own it has stand-ins
            raise UsageError(
                f"edl.notify_batch_end(samples={samples}): step {step} has {share} samples on rank {rank}; "
                f"cut batches as large as edl was told (edl.init(batch_size={samples}), or EDL_BATCH_SIZE={samples})"
            )

    def redeliver(self, before: int) -> bool:
        """Hand out again what comes after step `before`. False: the pipeline has read ahead.

        A newcomer without a state may be ahead of the ring that it comes to: members with a state have not applied its
        steps, which weigh nothing and are made again by all.
        """
        if self.shards is None:
            return True
        step = self._machine.step
        one_epoch = self._leases.epoch(step + 1) == self._leases.epoch(before + 1)
        return (step == before or one_epoch) and self.shards.redeliver(before - step)

    def pass_over(self, done: int) -> bool:
        """Skip what lies between step `done`, to which the script has come, and the state that it was given.

        False: the pipeline has read ahead.
        """
        step = self._machine.step
        if step <= done or self.shards is None:
            return True
        return self.shards.pass_over(done, step) or self._machine.restarts
