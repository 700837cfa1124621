"""A pass of a script over its samples: which step comes next, and which samples it gets.

Owns: the place of one iteration, the epoch that it belongs to, stepping back over a void mini-batch, and passing over
steps that the others have done without this worker. Does not own: which leases there are
(`edl.core.worker.lease_buffer`), nor what becomes of an iteration that is followed by another (`shards`).

All workers make the same passes, whatever their pace. So the epoch of a pass follows from the step that it begins after
and from the leases (I7): it is that of the first step that is not committed. Where a pass begins before that is known,
it waits for the lease of that step, and never takes what has come so far for all that there is.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from edl.errors import UsageError
from edl.protocol.data_nouns import DataSpec, Lease
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.job_port import DataPort
from edl.trainer.data.sample_ids import Ids, SampleIds, first_ids

LEFT = (
    "the samples are iterated again while an earlier iteration goes on: a worker has one "
    "order of samples, so keep one iterator and take all batches from it"
)


class PassState(Enum):
    BUSY = "busy"  # something is asked for, or only a part of `step` is handed out
    IDLE = "idle"  # all of `step` is handed out, and nothing after it is asked for
    ENDED = "ended"  # by itself
    GIVEN_UP = "given up"  # a newer pass has begun, or the last step was void after the end


class PassSoFar(NamedTuple):
    """The place of a script in its pass, for a newcomer that goes on from there."""

    steps: int = 0  # that are committed in this pass
    left: int = 0  # the length, in steps, of the newest pass that the script has left before its end; 0: it left none
    left_before: int = 0  # of the one before that

    @property
    def until_steps(self) -> int:
        """Return the most steps that a pass has, as far as can be seen; 0 if unknown."""
        return self.left if self.left == self.left_before else 0

    def next(self, *, left: bool) -> PassSoFar:
        """Return the place as the next pass begins. `left`: the script left this pass before its end."""
        if not self.steps:
            return self
        if left:
            return PassSoFar(0, self.steps, self.left)
        # What is longer than those that were left shows that these were not left by a count of steps.
        return PassSoFar(0, self.left, self.left_before) if self.steps <= self.left else PassSoFar()


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one step; never empty. Stand-in samples weigh nothing by their lease."""

    ids: Ids
    ends_pass: bool = False  # it may be short, and the script can only tell by the end


class Pass:
    """A pass that one thread may pull and another one may step back."""

    def __init__(
        self,
        spec: DataSpec,
        port: DataPort,
        ids: SampleIds,
        audit: Audit,
        *,
        one_epoch: bool,
        epoch: int | None = None,
    ) -> None:
        self._spec = spec
        self._port = port
        self._leases = port.leases
        self._ids = ids
        self._audit = audit
        self._one_epoch = one_epoch
        self._lock = threading.Lock()  # not held while waiting for samples
        self._rehearsed = 0  # mini-batches that do not count, up to the newest that was handed out
        self._lease: Lease | None = None  # of the step handed out
        self._first: int | None = None  # what it handed out first
        self._left_out: list[range] = []  # of what came after that, the steps that the others did without this worker
        self.state = PassState.BUSY
        self.epoch = epoch  # None: not known yet
        self.began_after: int | None = None if port.rehearsals.left else port.step() - 1  # for all workers
        self.until: int | None = None  # the other workers leave this pass after that step; None: not known
        self.made_anew = False  # it is left for a ring that has changed, or a last step that was void, on all workers
        # Handed out up to and with this one. None before this worker's first one, which may wait for another ring.
        self.step = port.step() - 1 if self._leases.handed_out else None

    def next(self, *, wait: bool = True) -> Batch | None:
        """Return the next samples; None when the pass is over, or, without `wait`, when their lease is not here."""
        self._enter(PassState.BUSY)
        if (batch := self._rehearsal()) is not None:
            return batch
        awaited = self._lease  # its other steps need no waiting for
        while True:
            with self._lock:
                self._check_current()
                step = self._coming_step
                if self._is_cut(step):
                    return None
                lease = self._leases.wanted_at(step)
                if lease is not None and self._is_beyond(lease):
                    return None
                if lease is not None and lease is awaited and self._leases.hand_out(lease, step):
                    return self._take(lease, step)
            if not self._port.await_samples(None if self.step is None else step, wait=wait):
                if (batch := self._rehearsal()) is not None:
                    return batch  # as the ring is gone before its data came
                if not wait or not self._find_epoch():
                    return None
            awaited = self._leases.wanted_at(self._coming_step)

    def _rehearsal(self) -> Batch | None:
        """Return a rehearsal if one is due; a pipeline that reads ahead gets no more than that."""
        rehearsals = self._port.rehearsals
        over = max(self._rehearsed, rehearsals.ended)
        if over >= rehearsals.due:
            return None
        self._rehearsed = over + 1
        return Batch(first_ids(self._spec, 0, self._spec.batch))

    def next_usual(self) -> Ids | None:
        """Return what `next` would, if the step before had the same lease; its `rest` included. None: call `next`.

        A step leaves the caches cold, where what counts is how many functions are gone through.
        """
        with self._lock:
            block, step = self._ids.block, (self.step or 0) + 1
            if self.state is not PassState.IDLE or block is None or block.lease is not self._lease:
                return None
            if self._audit.on or self.until is not None:
                return None
            if not block.after_step < step <= block.until_step:
                return None
            ids = block.of(step)
            if not ids.size or not self._leases.hand_out(block.lease, step):
                return None
            self.step = step
            return ids

    def coming(self, steps: int) -> list[Ids]:
        """Look at the samples of the next `steps`, as far as they are leased."""
        found: list[Ids] = []
        with self._lock:
            while self.step is not None and len(found) < steps:
                step = self.step + 1 + len(found)
                lease = self._leases.wanted_at(step)
                if lease is None or self._is_beyond(lease):
                    break
                found.append(self._ids.of(self._spec, lease, step))
        return [ids for ids in found if ids.size]

    def rest(self) -> None:
        """Note that the last of what `next` gave is about to be handed out."""
        self._enter(PassState.IDLE)

    def end(self) -> None:
        self._enter(PassState.ENDED)
        if self.step is not None and not self.is_cut and (epochs := self._epochs_over()) is not None:
            self._audit.ended(epochs, self.step)

    def join(self, after: int, epoch: int | None, so_far: PassSoFar) -> None:
        """Make this pass, which has had rehearsals at most, the rest of the others' pass after step `after`.

        Nothing may be left of it. `epoch`: of their pass; None: that of the coming step.
        """
        with self._lock:
            if self.step is not None:
                return
            self.began_after = after - so_far.steps
            if so_far.until_steps >= max(so_far.steps, 1):
                self.until = self.began_after + so_far.until_steps
            if epoch is not None and self.epoch is None:
                self.epoch = epoch
                self._leases.want(epoch + 1)

    @property
    def is_cut(self) -> bool:
        """Tell whether the pass ends where the other workers left theirs, though its epoch may go on."""
        return self._is_cut(self._coming_step)

    def made_by(self, committed: int) -> int:
        """Count the steps of this pass that were committed."""
        return 0 if self.began_after is None else committed - self.began_after

    def give_up(self) -> None:
        """End this pass for any pipeline that still pulls it."""
        with self._lock:
            self.state = PassState.GIVEN_UP

    def leave(self) -> None:
        """End the script's iteration, complete or not; a pipeline that still waits gets an error."""
        with self._lock:
            if self.state is not PassState.ENDED:
                self.state = PassState.GIVEN_UP

    def step_back(self, void: int, more: int = 0) -> bool:
        """Step back to `void`, so that it comes again, and `more` steps after it.

        True: `next` gives it next, or the pass that follows does.
        """
        with self._lock:
            if self.step != void + more:
                return False
            if self.state is PassState.ENDED:
                self.state, self.made_anew = PassState.GIVEN_UP, True  # the pass that follows begins with it
                return self._one_epoch  # of a stream, none may follow
            if self.state is not PassState.IDLE:
                return False
            if self._spec.by_sample and self._one_epoch and self._leases.ends_pass(void):
                # As on workers whose batch was short: their scripts have asked for the next sample, and heard of none.
                self.state, self.made_anew = PassState.GIVEN_UP, True
            self.step = void - 1
            return True

    def pass_over(self, step: int) -> None:
        """Skip everything up to `step`, which is trained, whatever was handed out of it."""
        with self._lock:
            if self.step is not None and self.step < step:
                self._leave_out(step)
                self.step, self._lease = step, None

    def gave(self, after: int, until_step: int) -> int:
        """Count the steps after `after`, up to `until_step`, of which something was handed out.

        A newcomer may ask about all of a long job: the steps are not gone through.
        """
        with self._lock:
            if self._first is None or self.step is None:
                return 0
            begin, end = max(after + 1, self._first), min(until_step, self.step) + 1
            left_out = sum(max(0, min(end, one.stop) - max(begin, one.start)) for one in self._left_out)
            return max(0, end - begin) - left_out

    def _leave_out(self, until_step: int) -> None:
        if self.step is not None and self.step < until_step:
            self._left_out.append(range(self.step + 1, until_step + 1))

    def _enter(self, state: PassState) -> None:
        with self._lock:
            self._check_current()
            self.state = state

    def _check_current(self) -> None:
        if self.state is PassState.GIVEN_UP:
            raise UsageError(LEFT)

    def _epochs_over(self) -> int | None:
        if not self._one_epoch:
            return self._spec.epochs
        return None if self.epoch is None else self.epoch + 1

    @property
    def _coming_step(self) -> int:
        working_at = self._port.step()
        return working_at if self.step is None else max(self.step + 1, working_at)

    def _is_cut(self, step: int) -> bool:
        return self.until is not None and step > self.until

    def _find_epoch(self) -> bool:
        """Find out which epoch this pass belongs to, and ask for its leases. False: there is no more to know."""
        with self._lock:
            if not self._one_epoch or self.epoch is not None or self._port.rehearsals.left or self._leases.closed:
                return False
            self.epoch = self._leases.epochs_before(self._coming_step)
            wanted = 0 if self.epoch is None else self.epoch + 1
        if wanted > self._spec.epochs:
            # Without the lock, as the leader's answer may be waited for.
            self._port.open(msgspec.structs.replace(self._spec, epochs=wanted))
        return wanted > 0

    def _is_beyond(self, lease: Lease) -> bool:
        return self._one_epoch and self.epoch is not None and lease.epoch > self.epoch

    def _take(self, lease: Lease, step: int) -> Batch:
        self._leave_out(step - 1)
        self._first = step if self._first is None else self._first
        self.began_after = step - 1 if self.began_after is None else self.began_after
        self.step, self._lease = step, lease
        self.epoch = lease.epoch if self.epoch is None else self.epoch
        ends_pass = lease.final and step == lease.until_step
        ids = self._ids.of(self._spec, lease, step)
        if self._audit.on:
            self._audit.given(lease, step, ids)
        if ids.size == 0:
            # What fills a batch, as the others have: a script that cuts batches itself must get that, and one that goes
            # through a batch in parts may have collectives of its own in each. The end of the pass is short for all: of
            # two, as batch norm cannot do with one.
            full = max(1, self._spec.batch if self._spec.by_sample else lease.batch)
            ids = first_ids(self._spec, lease.epoch, min(2, full) if ends_pass else full)
        return Batch(ids, ends_pass)
