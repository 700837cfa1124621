"""Gradients of one optimizer, averaged by a process group in a few buckets, as DistributedDataParallel does.

Owns: which gradients travel together, and the operations of one reduction. Does not own: the groups
(`edl.torch.process_groups`), nor when a reduction begins and ends (`edl.torch.torch_reducer`).

Operations of a group pair up by the order in which members begin them. So buckets are cut by what all members know
alike, the parameters in their order, and begin in that order, last parameters first, as backward computes them: a
bucket that is full early waits for those before it. Where there are several optimizers, a pass of backward may reach
them in another order on each worker: then no bucket begins before its end.

A large gradient travels where it lies. Small ones are copied together, and back.

Before the first bucket in a ring, and of other parameters than before, members tell each other the types and shapes of
all: gradients that differ would be garbage, or gloo would end the process. A usual step has none of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from edl.errors import CollectiveRefused, UsageError
from edl.protocol.leader_messages import GRADIENTS
from edl.torch.absence import AbsentGradients, no_rows
from edl.torch.group_collectives import form
from edl.torch.process_groups import ROW_BYTES, ProcessGroups
from edl.torch.sharded import local_of, placement_of
from edl.torch.tensor_ring import scale

LARGE_BYTES = 1 << 20  # of a gradient that travels alone
FULL_BYTES = 1 << 22  # of a bucket of others
ROWS_SUMMED_AS = {torch.float16: torch.float32}  # which PyTorch cannot add to sparse rows
FIRST_BYTES = 1 << 20  # of the first one, so that the group has something to do early
END = "."  # after the last parameter


class GroupSeat(Protocol):
    """The part of the ring that buckets use."""

    @property
    def groups(self) -> ProcessGroups: ...

    @property
    def overlaps(self) -> bool:
        """Tell whether a bucket may begin before all gradients of a pass are there."""


class _Bucket:
    """Parameters whose gradients travel together, and those of their gradients that are here."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self.here: dict[int, torch.Tensor] = {}  # by the parameter's id: a tensor's own hash is a call of Python
        self.factor = 1.0
        self._together: torch.Tensor | None = None
        self._pieces: list[torch.Tensor] = []  # of it, as the gradients that it is of

    @property
    def is_full(self) -> bool:
        return len(self.here) == len(self.parameters)

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the gradients with their parameters, in the same order on all workers."""
        return [(one, self.here[id(one)]) for one in self.parameters if id(one) in self.here]

    def together(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copy the gradients, one after the other, into memory that is the bucket's: fresh pages in each step cost more
        than the copy.
        """
        first = gradients[0]
        usual = len(gradients) == len(self.parameters) == len(self._pieces)
        if self._together is None or not usual or self._together.dtype != first.dtype:
            lengths = [gradient.numel() for gradient in gradients]
            self._together = torch.empty(sum(lengths), dtype=first.dtype, device=first.device)
            pieces = zip(torch.split(self._together, lengths), gradients, strict=True)
            self._pieces = [piece.view(gradient.shape) for piece, gradient in pieces]
        torch._foreach_copy_(self._pieces, list(gradients))
        return self._together

    def apart(self, gradients: Sequence[torch.Tensor], factor: float) -> None:
        """Copy the sums back into the gradients, times `factor`. In the host's memory a single pass does both; a device
        is better off with one call for all.
        """
        assert self._together is not None  # it was filled
        if factor != 1.0 and self._together.device.type == "cpu":
            for gradient, piece in zip(gradients, self._pieces, strict=True):
                torch.mul(piece, factor, out=gradient)
            return
        if factor != 1.0:
            self._together.mul_(factor)
        torch._foreach_copy_(list(gradients), self._pieces)


class Buckets(AbsentGradients):
    """`edl.torch.tensor_ring.Averaging`."""

    def __init__(self, ring: GroupSeat) -> None:
        super().__init__()
        self._ring = ring
        self._known: list[int] = []  # ids of the parameters that the buckets are for
        self._groups: ProcessGroups | None = None  # and the ring
        self._buckets: list[_Bucket] = []
        self._alike: Alike | None = None  # whether all members have the same; None: they have
        self._of: dict[int, _Bucket] = {}  # by the parameter's id
        self._next = 0  # the bucket that begins next
        self._waits: list[Callable[[], object]] = []

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        known = list(map(id, wanted))
        if known != self._known or self._groups is not self._ring.groups:
            # What the operations of a ring that broke still write is no part of the next one's steps.
            self._known, self._groups = known, self._ring.groups
            self._buckets = [_Bucket(some) for some in cut(wanted)]
            self._alike = Alike(self._groups, wanted)
            if self._ring.overlaps:
                self._alike.ask()
            self._of = {id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._groups.look_at_sums()

    def begin(self, parameter: torch.Tensor, gradient: torch.Tensor, name: str, factor: float) -> None:
        bucket = self._of.get(id(parameter))
        if bucket is None:
            raise UsageError(
                f"edl.Optimizer: {name} wants a gradient since backward() has begun; set requires_grad before it"
            )
        bucket.here[id(parameter)] = gradient
        bucket.factor = factor
        if bucket.is_full and self._ring.overlaps and self._may_begin():
            while self._next < len(self._buckets) and self._buckets[self._next].is_full:
                self._begin_next()

    def flush(self) -> None:
        while self._may_begin() and self._next < len(self._buckets):
            self._begin_next()

    def wait(self) -> None:
        if self._alike is not None and self._groups is self._ring.groups:  # not what a ring that broke has left
            self._alike.check()
            self._alike = None
            self.flush()
        for wait in self._waits:
            wait()
        if self._waits:
            self._ring.groups.settle()

    def drop(self) -> None:
        self._next = 0
        self._waits.clear()
        for bucket in self._buckets:
            bucket.here.clear()

    def _may_begin(self) -> bool:
        """Tell whether all members are known to have the same buckets. Where that is open, `wait` waits for it, and no
        call before: a worker may be at a collective of the script's own, which it makes before it averages.
        """
        if self._alike is not None and self._alike.is_known():
            self._alike.check()
            self._alike = None
        return self._alike is None

    def _begin_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        groups = self._ring.groups
        share = bucket.factor / groups.place.size  # the average of (own share * size * gradient) is the sum of shares
        dense = []
        for parameter, gradient in bucket.gradients():
            if gradient.is_sparse:
                self.know_sparse(parameter, gradient.sparse_dim())
            if self._sparse and parameter in self._sparse:
                rows = _rows_of(gradient, self._sparse[parameter], share)
                self._waits.append(_sparse_begun(groups, parameter, rows))
            else:
                dense.append(gradient)
        if dense:
            self._waits.append(_dense_begun(groups, bucket, dense))


class Alike:
    """The question whether all members train parameters of these types and shapes, in this order."""

    def __init__(self, groups: ProcessGroups, parameters: Sequence[torch.Tensor]) -> None:
        self._groups = groups
        self._forms = [" ".join(filter(None, (form(local_of(one)), placement_of(one)))) for one in parameters]
        self._asked: tuple[Any, Callable[[], list[bytes]]] | None = None

    def ask(self) -> None:
        """Begin to ask, at the same place among the group's operations on all members."""
        digest = hashlib.blake2b("\n".join(self._forms).encode()).digest()
        self._asked = self._groups.of_all_begun(digest, self._groups.gradients)

    def is_known(self) -> bool:
        """Tell whether `check` would return at once."""
        return self._asked is not None and bool(self._asked[0].is_completed())

    def check(self) -> None:
        """Raise RingBroken, and CollectiveRefused where members train parameters of other types or shapes."""
        if self._asked is None:
            self.ask()
        digests = self._told()
        if len(set(digests)) == 1:
            return
        told = "\n".join([str(len(self._forms)), *self._forms, END]).encode()[: ROW_BYTES - 8]
        self._asked = self._groups.of_all_begun(told, self._groups.gradients)
        said = [row.decode().splitlines() for row in self._told()]
        rank = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        raise CollectiveRefused(
            f"the workers train different models: {difference(said[0], said[rank], rank)}. All workers must build the "
            "same model, and train the same of its parameters"
        )

    def _told(self) -> list[bytes]:
        assert self._asked is not None  # it was begun
        work, told = self._asked
        self._asked = None
        self._groups.wait(work, GRADIENTS)
        return told()


def difference(first: Sequence[str], other: Sequence[str], rank: int) -> str:
    """Say where the model of `rank` differs from rank 0's. Each says how many parameters it has, and then types and
    shapes, as far as there was room; the last line may be cut off.
    """
    if first[0] == other[0]:
        for number, (one, its) in enumerate(zip(first[1:-1], other[1:-1], strict=False), 1):
            if one != its:
                return f"parameter {number} is {one} on rank 0, {its} on rank {rank}"
    return f"{first[0]} parameters on rank 0, {other[0]} on rank {rank}, of other types or shapes"


def cut(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Cut parameters into buckets, in the order in which they begin. Each bucket has one type,
    and lies on one device.
    """
    bucket: list[torch.Tensor] = []
    room = FIRST_BYTES
    for parameter in reversed(parameters):
        size = local_of(parameter).numel() * parameter.element_size()
        if size >= LARGE_BYTES:
            yield [parameter]
            continue
        if bucket and (room <= 0 or _kind(bucket[0]) != _kind(parameter)):
            yield bucket
            bucket, room = [], FULL_BYTES
        bucket.append(parameter)
        room -= size
    if bucket:
        yield bucket


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _dense_begun(groups: ProcessGroups, bucket: _Bucket, gradients: list[torch.Tensor]) -> Callable[[], None]:
    """Begin to average dense gradients, in a way that follows from the bucket, which is the same on all workers. A sum
    that is divided by the size must have room.
    """
    size = groups.place.size
    copied = len(bucket.parameters) > 1 or not gradients[0].is_contiguous() or gradients[0].is_conj()
    divided_after = len(bucket.parameters) > 1 and bucket.parameters[0].dtype in {torch.float32, torch.float64}
    together = bucket.together(gradients) if copied else gradients[0]
    scale(together, bucket.factor if divided_after else bucket.factor / size)
    wait_for_sum = groups.sum_begun(together)

    def wait() -> None:
        wait_for_sum()
        if copied:
            bucket.apart(gradients, 1 / size if divided_after else 1.0)

    return wait


def _rows_of(gradient: torch.Tensor, dimensions: int, share: float) -> torch.Tensor:
    """A worker that got no gradient has zeros for all rows, which is as good as none."""
    rows: Any = gradient if gradient.is_sparse else gradient.to_sparse(dimensions)
    if share:
        return rows.mul(share).coalesce()  # type: ignore[no-any-return]
    return no_rows(rows.shape, rows._values(), rows.sparse_dim())


def _sparse_begun(groups: ProcessGroups, parameter: torch.Tensor, rows: torch.Tensor) -> Callable[[], None]:
    summed = rows.to(ROWS_SUMMED_AS.get(rows.dtype, rows.dtype)).coalesce()
    work = groups.begun(groups.gradients.allreduce([summed]))

    def wait() -> None:
        groups.wait(work)
        parameter.grad = summed.to(rows.dtype)

    return wait
