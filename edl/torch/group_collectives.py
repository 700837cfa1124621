"""Collectives on tensors by a ring of process groups, each begun here and waited for later.

Owns: what goes into an operation of the group, and what comes of it: any shape and layout, any number of rows. Does not
own: what scripts call these (`edl.torch.group_names`), nor the groups (`edl.torch.groups`).

Operations pair up by their order. So all workers begin the same ones in the same order, as with torch.distributed.
In a ring of one nothing travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch._C._distributed_c10d import AllreduceOptions, BroadcastOptions, ReduceOp

from edl.errors import UsageError
from edl.torch.groups import ProcessGroups

SUMMED = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


class Op(IntEnum):
    """What a reduction does, by Horovod's names."""

    Average = 0
    Sum = 1
    Min = 3
    Max = 4
    Product = 5


_NATIVE = {
    Op.Average: ReduceOp.SUM,
    Op.Sum: ReduceOp.SUM,
    Op.Min: ReduceOp.MIN,
    Op.Max: ReduceOp.MAX,
    Op.Product: ReduceOp.PRODUCT,
}


class Handle:
    """An operation under way."""

    def __init__(self, groups: ProcessGroups, works: Sequence[Any], outcome: Callable[[], Any]) -> None:
        """`outcome` is called once, when all are through."""
        self._groups = groups
        self._works = [groups.begun(work) for work in works]
        self._outcome: Callable[[], Any] | None = outcome
        self._found: Any = None

    def is_done(self) -> bool:
        """`result` would not wait."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> Any:
        """Raises RingBroken."""
        if self._outcome is not None:
            for work in self._works:
                self._groups.wait(work)
            self._found, self._outcome = self._outcome(), None
        return self._found


def reduce(
    groups: ProcessGroups, tensor: torch.Tensor, into: torch.Tensor, op: Op, before: float, after: float
) -> Handle:
    """All members' tensors, times `before`, by `op`, times `after`, are to be in `into`, which may be the same."""
    if tensor.dtype not in SUMMED:
        raise UsageError(f"a tensor of {tensor.dtype} cannot be reduced: cast it, say to torch.float32")
    working = tensor.detach().clone(memory_format=torch.contiguous_format)
    _scale(working, before)
    works = [] if groups.place.size == 1 else [groups.rest.allreduce([working], _reducing(op))]

    def outcome() -> torch.Tensor:
        if op is Op.Average:
            _divide(working, groups.place.size)
        _scale(working, after)
        with torch.no_grad():
            into.copy_(working)
        return into

    return Handle(groups, works, outcome)


def broadcast(groups: ProcessGroups, into: torch.Tensor, root: int) -> Handle:
    """`into` is to hold what that of rank `root` does."""
    if not 0 <= root < groups.place.size:
        raise UsageError(f"root_rank={root}: there are ranks 0 to {groups.place.size - 1}")
    working = into.detach().contiguous()
    works = [] if groups.place.size == 1 else [groups.rest.broadcast([_bytes(working)], rooted(root))]

    def outcome() -> torch.Tensor:
        if working.data_ptr() != into.data_ptr():
            with torch.no_grad():
                into.copy_(working)
        return into

    return Handle(groups, works, outcome)


def gather(groups: ProcessGroups, tensor: torch.Tensor) -> Handle:
    """All members' rows, one member after the other. How many each has is waited for here."""
    rows = _rows(tensor)
    if groups.place.size == 1:
        return Handle(groups, [], rows.clone)
    counts = row_counts(groups, len(rows))
    most = max(counts)
    own = rows.new_zeros((most, *rows.shape[1:]))
    own[: len(rows)] = rows
    gathered = [torch.empty_like(own) for _ in counts]
    works = [groups.rest.allgather([[_bytes(one) for one in gathered]], [_bytes(own)])]
    return Handle(groups, works, lambda: torch.cat([one[:count] for one, count in zip(gathered, counts, strict=True)]))


def all_to_all(groups: ProcessGroups, tensor: torch.Tensor, splits: Sequence[int] | None) -> Handle:
    """Some rows to each member; the outcome is all that came for this one, and how many rows came from each."""
    size, rows = groups.place.size, _rows(tensor)
    sent = _checked(splits, len(rows), size)
    if size == 1:
        return Handle(groups, [], lambda: (rows.clone(), torch.tensor(sent, dtype=torch.int32)))
    coming = torch.empty(size, dtype=torch.int64)
    groups.wait(groups.begun(groups.rest.alltoall_base(coming, torch.tensor(sent, dtype=torch.int64), [], [])))
    received = coming.tolist()
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    works = [groups.rest.alltoall_base(_row_bytes(found), _row_bytes(rows), received, list(sent))]
    return Handle(groups, works, lambda: (found, coming.to(torch.int32)))


def row_counts(groups: ProcessGroups, own: int) -> list[int]:
    """How many rows each member has."""
    if groups.place.size == 1:
        return [own]
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(groups.place.size)]
    groups.wait(groups.begun(groups.rest.allgather([counts], [torch.tensor([own])])))
    return [int(count) for count in counts]


def share_of(rows: int, rank: int, size: int) -> slice:
    """Of so many rows: the first ranks have one more where they do not divide."""
    each, more = divmod(rows, size)
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))


def rooted(root: int) -> Any:
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return options


def _reducing(op: Op) -> Any:
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(_NATIVE[op])
    return options


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A number is one row."""
    tensor = tensor.detach().contiguous()
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory: any type travels."""
    return tensor.reshape(-1).view(torch.uint8)


def _row_bytes(rows: torch.Tensor) -> torch.Tensor:
    width = rows.element_size()
    for length in rows.shape[1:]:
        width *= length
    return _bytes(rows).view(len(rows), width)


def _checked(splits: Sequence[int] | None, rows: int, size: int) -> list[int]:
    if splits is None:
        if rows % size:
            raise UsageError(f"alltoall: {rows} rows do not divide among {size} workers: pass splits")
        return [rows // size] * size
    found = [int(split) for split in splits]
    if len(found) != size or min(found) < 0 or sum(found) != rows:
        raise UsageError(f"alltoall: splits={found} are not {rows} rows in {size} parts")
    return found


def _scale(tensor: torch.Tensor, factor: float) -> None:
    if factor != 1.0:
        tensor.copy_(tensor * factor)  # a whole number stays one


def _divide(tensor: torch.Tensor, by: int) -> None:
    if by == 1:
        return
    if tensor.is_floating_point():
        tensor.div_(by)
    else:
        tensor.copy_(torch.div(tensor, by, rounding_mode="trunc"))
