"""Begin and end the job's steps in a training loop that a library owns, and say what each worker does in between.

Owns: which steps of such a loop count, and that all workers go on alike after each, the newcomer and who was behind
too. Does not own: the loop (`edl.lightning.loops`, `edl.transformers.hf_loop`).

Between two steps a loop evaluates, asks callbacks, saves; and there the ring may break, and a newcomer may come with
the next one. It goes through all that lies between from its beginning, so whatever the workers ask each other there is
an evaluation of edl's: a newcomer learns what came of those that it has missed. And it gets the loop's state as that
was when the step had ended.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, Mapping
from enum import StrEnum
from typing import Any, Protocol

import torch

from edl.errors import RingBroken, UsageError
from edl.trainer.shared_evaluation import Work

TENSOR = "\0tensor"  # marks one of a callback's state: it travels as bytes, as it need not be the same on all workers


class Travels(Mapping[str, Any]):
    replaced = False  # it is plain all through: what comes stands in its place, and nothing in it is compared

    @abstractmethod
    def now(self) -> dict[str, Any]:
        """Return the whole state, as of one moment."""

    def __getitem__(self, key: str) -> Any:
        return self.now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def __len__(self) -> int:
        return len(self.now())

    def items(self) -> ItemsView[str, Any]:
        """Ask `now` once for all items."""
        return self.now().items()


def as_plain(value: Any) -> Any:
    """Replace the tensors in `value` by plain values."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape), raw]}
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(as_plain(item) for item in value)
    return value


def from_plain(value: Any) -> Any:
    """Replace plain values by the tensors that they stand for."""
    if isinstance(value, Mapping):
        if TENSOR in value:
            return _tensor(*value[TENSOR])
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(from_plain(item) for item in value)
    return value


def _tensor(dtype: str, shape: list[int], raw: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"the state of a callback has a tensor of {dtype}, which PyTorch here does not know")
    if not raw:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(kind).reshape(shape)


STANDS = "stands"  # in a state that travels: whose it is stands between the end of that step and the next one


class StepEnd(StrEnum):
    COUNTED = "counted"
    EMPTY = "empty"  # no worker had samples: nothing comes again
    AGAIN = "again"  # void: its samples come again


class StepSeat(Protocol):
    """The part of edl's trainer that such a loop uses."""

    @property
    def voided(self) -> bool:
        """Tell whether the mini-batch being worked on is void."""

    @property
    def weightless(self) -> bool:
        """Tell whether no worker has samples in this mini-batch."""

    def rehearsing(self) -> bool:
        """Tell whether this mini-batch is a newcomer's throw-away one."""

    def epoch(self) -> int: ...

    def generation(self) -> int: ...

    @property
    def committed(self) -> int:
        """Return the newest step that counts."""

    def void_beside(self, error: BaseException) -> None:
        """Make the coming mini-batch void because of an error beside it."""

    def evaluate_shared(self, work: Work) -> tuple[bytes, ...]:
        """Return what all workers have found, between two steps; the ring may change meanwhile."""

    def before_reduce(self) -> None:
        """Note that the step's samples are known, on all workers."""

    def settle_step(self) -> None:
        """Make the step count: a failure beside it no longer voids it."""

    def notify_batch_end(self, samples: int | None = None) -> bool:
        """End the step; here the ring may change."""


class LoopState(Travels):
    """The part of a loop's state that travels, with how the loop's newest step has ended."""

    ended = StepEnd.AGAIN
    open_pass: int | None = None  # of the newest step that counts, until the loop's next epoch begins
    _at_end: dict[str, Any] | None = None  # what it was as the newest step had ended, where a newcomer goes on

    @abstractmethod
    def read(self) -> dict[str, Any]: ...

    def now(self) -> dict[str, Any]:
        """Return the state as of the end of the newest step, if a worker has asked for it before the next step; else as
        of now.
        """
        return {**self.read(), STANDS: False} if self._at_end is None else {**self._at_end, STANDS: True}

    def stand(self) -> None:
        """Keep the present state: it is what travels from here on."""
        if self._at_end is None:
            self._at_end = self.read()

    def go_on(self) -> None:
        """Let the state travel as it is when it is sent."""
        self._at_end = None

    @abstractmethod
    def take(self, found: Mapping[str, Any]) -> None:
        """Take over a state that another worker, or an earlier life of the job, has sent."""


class Registered(Protocol):
    """The value that `edl.register(loop=...)` returned."""

    loop: Any


class LoopSteps:
    registered: Registered

    def __init__(self, seat: StepSeat, state: LoopState) -> None:
        """The adapter that makes one has given `seat` a callback for changes of size: so a newcomer's state comes at
        the switch, where its loop goes on as the others', and not beside its first step.
        """
        self.seat, self.state = seat, state
        self.in_step = False
        self.between = False  # the newest step has ended, and the next one has not begun
        self.begun_anew = False  # another worker's state has come, and no batch was fetched since
        self._fetched_in: int | None = None  # the generation in which the newest batch was
        self._passed: int | None = None  # the newest step after which this worker has done all that follows a step

    def take_over(self) -> bool:
        """Take over another worker's state of the loop, if one has come, and return whether this worker did. It keeps
        its own state where the one that came is of the end of a step after which this worker has already gone on:
        the sender has still to do what this worker has done since.
        """
        found = self.registered.loop
        if found is self.state:
            return False
        self.registered.loop = self.state
        if found[STANDS] and self._passed == self.seat.committed:
            return False
        self.state.take(found)
        return True

    def begin_step(self) -> None:
        """Begin a step whose first batch was fetched. The samples are another step's by now if the ring has changed
        since.
        """
        self.state.go_on()
        if self.between:
            self._passed = self.seat.committed
        self.state.ended = StepEnd.AGAIN
        self.in_step, self.between = True, False
        if self._fetched_in not in (None, self.seat.generation()):
            self.seat.void_beside(
                RingBroken("a worker was lost between two steps, and this batch is of the ring before")
            )
        self.seat.before_reduce()

    def note_fetched(self) -> None:
        self._fetched_in = self.seat.generation()

    def ask(self, work: Work) -> tuple[bytes, ...]:
        """Ask all workers between two steps. If the ring changes meanwhile, the loop's state comes from another worker.
        It is of the same step, and that worker may have come less far since, or farther: each goes on with its own.
        """
        self.state.stand()
        found = self.seat.evaluate_shared(work)
        self.registered.loop = self.state
        return found

    @property
    def counts(self) -> bool:
        """Tell whether the step under way counts, as far as its update is made."""
        return not (self.seat.voided or self.seat.weightless or self.seat.rehearsing())

    def settle(self) -> bool:
        """Tell, after its update, whether the step under way counts. If so, it does from here on."""
        if counts := self.counts:
            self.seat.settle_step()
        return counts

    def ending(self) -> StepEnd:
        """Return how the newest step has ended; of a step under way, how it will end unless it counts."""
        if not self.in_step:
            return self.state.ended
        empty = self.seat.weightless and not self.seat.voided and not self.seat.rehearsing()
        return StepEnd.EMPTY if empty else StepEnd.AGAIN

    def end_step(self, *, counted: bool) -> StepEnd:
        """End the step and return how it has ended, the same on all workers: newcomers and workers that were behind are
        told.
        """
        self.state.ended = StepEnd.COUNTED if counted else self.ending()
        if counted:
            self.state.open_pass = self.seat.epoch()
        self.in_step, self.between = False, True
        self.seat.notify_batch_end()
        self.begun_anew = self.take_over()
        return self.state.ended

    def is_beyond(self) -> bool:
        """Tell whether the batch that was fetched belongs to another pass than the newest that is trained."""
        open_pass = self.state.open_pass
        return open_pass is not None and self.seat.epoch() > open_pass
