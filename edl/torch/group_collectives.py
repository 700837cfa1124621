"""Collectives on tensors by a ring of process groups, each begun here and waited for later.

Owns: what goes into an operation of the group, and what comes of it: any shape and layout, any number of rows. Does not
own: what scripts call these (`edl.torch.torch_ring_names`), nor the groups (`edl.torch.process_groups`).

Each begins once all workers have announced it (`edl.torch.announcing`): by name in any order, without a name in the
same order. In a ring of one nothing travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions

from edl.core.worker.collective_matching import Match, announcement
from edl.errors import UsageError
from edl.torch.announcing import Begun
from edl.torch.process_groups import ProcessGroups

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
    """Kinds of reductions, by Horovod's names."""

    Average = 0
    Sum = 1
    Adasum = 2  # has no operation here
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


class CollectiveCall(NamedTuple):
    """The name of a collective, for people."""

    kind: str
    name: str | None = None


class Handle(Protocol):
    """An operation under way."""

    def is_done(self) -> bool:
        """Tell whether `result` would return at once."""

    def result(self) -> Any:
        """Raises RingBroken, and CollectiveRefused where workers do not agree on it."""


class Through:
    """The handle of an operation that needs no other worker."""

    def __init__(self, outcome: Callable[[], Any]) -> None:
        """`outcome` is called once."""
        self._outcome: Callable[[], Any] | None = outcome
        self._found: Any = None

    def is_done(self) -> bool:
        return True

    def result(self) -> Any:
        if self._outcome is not None:
            self._found, self._outcome = self._outcome(), None
        return self._found


class Together:
    def __init__(self, handles: Sequence[Handle], outcome: Callable[[list[Any]], Any]) -> None:
        self._handles = handles
        self._outcome = outcome

    def is_done(self) -> bool:
        return all(handle.is_done() for handle in self._handles)

    def result(self) -> Any:
        return self._outcome([handle.result() for handle in self._handles])


def reduce(
    groups: ProcessGroups,
    tensor: torch.Tensor,
    into: torch.Tensor,
    op: Op,
    scales: tuple[float, float],
    call: CollectiveCall,
) -> Handle:
    """Begin to reduce all members' tensors by `op` into `into`: times the first of `scales` before, times the second
    after.
    """
    before, after = scales
    if tensor.dtype not in SUMMED:
        raise UsageError(f"a tensor of {tensor.dtype} cannot be reduced: cast it, say to torch.float32")
    working = tensor.detach().clone(memory_format=torch.contiguous_format)
    _scale(working, before)

    def outcome() -> torch.Tensor:
        if op is Op.Average:
            _divide(working, groups.place.size)
        _scale(working, after)
        with torch.no_grad():
            into.copy_(working)
        return into

    def start(_: Match) -> Begun:
        return [groups.rest.allreduce([working], _reducing(op))], outcome

    scaled = "" if before == after == 1.0 else f", times {before} before and {after} after"
    return begun(groups, call, f"{form(tensor)}, {op.name}{scaled}", start, outcome)


def reduce_sparse(groups: ProcessGroups, rows: torch.Tensor, op: Op, name: str | None = None) -> Handle:
    """Reduce a sparse tensor of its own memory by `op`."""

    def outcome() -> torch.Tensor:
        return rows / groups.place.size if op is Op.Average else rows

    def start(_: Match) -> Begun:
        return [groups.rest.allreduce([rows])], outcome

    said = f"{form(rows)}, sparse in {rows.sparse_dim()}, {op.name}"
    return begun(groups, CollectiveCall("sparse_allreduce", name), said, start, outcome)


def broadcast(groups: ProcessGroups, into: torch.Tensor, root: int, name: str | None = None) -> Handle:
    """Begin to fill `into`, on all members, with the tensor of rank `root`."""
    check_root(groups, root)
    working = into.detach().contiguous()

    def outcome() -> torch.Tensor:
        if working.data_ptr() != into.data_ptr():
            with torch.no_grad():
                into.copy_(working)
        return into

    def start(_: Match) -> Begun:
        return [groups.rest.broadcast([_bytes(working)], rooted(root))], outcome

    return begun(groups, CollectiveCall("broadcast", name), f"{form(into)}, root_rank {root}", start, outcome)


def gather(groups: ProcessGroups, tensor: torch.Tensor, name: str | None = None) -> Handle:
    """Begin to gather all members' rows, one member after the other; the outcome is the rows, and how many each member
    has.
    """
    rows = _rows(tensor)

    def start(match: Match) -> Begun:
        counts = [member[0] for member in match.rows]
        own = rows.new_zeros((max(counts), *rows.shape[1:]))
        own[: len(rows)] = rows
        gathered = [torch.empty_like(own) for _ in counts]
        works = [groups.rest.allgather([[_bytes(one) for one in gathered]], [_bytes(own)])]
        return works, lambda: (
            torch.cat([one[:count] for one, count in zip(gathered, counts, strict=True)]),
            counts,
        )

    return begun(
        groups,
        CollectiveCall("allgather", name),
        _form_of_rows(rows),
        start,
        lambda: (rows.clone(), [len(rows)]),
        [len(rows)],
    )


def all_to_all(
    groups: ProcessGroups, tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None = None
) -> Handle:
    """Begin to send some rows to each member; the outcome is all rows that came for this one, and how many came from
    each.
    """
    place, rows = groups.place, _rows(tensor)
    sent = _checked(splits, len(rows), place.size)

    def start(match: Match) -> Begun:
        received = [member[place.rank] for member in match.rows]
        found = rows.new_empty((sum(received), *rows.shape[1:]))
        works = [groups.rest.alltoall_base(_row_bytes(found), _row_bytes(rows), received, sent)]
        return works, lambda: (found, torch.tensor(received, dtype=torch.int32))

    def alone() -> Any:
        return rows.clone(), torch.tensor(sent, dtype=torch.int32)

    return begun(groups, CollectiveCall("alltoall", name), _form_of_rows(rows), start, alone, sent)


def agreed(groups: ProcessGroups, call: CollectiveCall, said: str, act: Callable[[], Any] = lambda: None) -> Any:
    """Return what comes of `act`, which begins once all members have announced the same. Raises RingBroken, and
    CollectiveRefused where they have not.
    """

    def start(_: Match) -> Begun:
        found = act()
        return (), lambda: found

    return begun(groups, call, said, start, act).result()


def begun(
    groups: ProcessGroups,
    call: CollectiveCall,
    said: str,
    start: Callable[[Match], Begun],
    alone: Callable[[], Any],
    rows: Sequence[int] = (),
) -> Handle:
    """Begin a collective of which all members have to say the same; in a ring of one, `alone` gives the outcome."""
    if groups.place.size == 1:
        return Through(alone)
    what = announcement(call.kind, call.name, said, rows)
    return groups.announcing.begin(what, start, named=call.name is not None)


def check_root(groups: ProcessGroups, root: int) -> None:
    """Raise UsageError where `root` is no rank of the ring."""
    if not 0 <= root < groups.place.size:
        raise UsageError(f"root_rank={root}: there are ranks 0 to {groups.place.size - 1}")


def form(tensor: torch.Tensor) -> str:
    """Describe type and shape, for people."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _form_of_rows(rows: torch.Tensor) -> str:
    """Describe type and shape, without the number of rows."""
    return f"{str(rows.dtype).removeprefix('torch.')} rows of shape {list(rows.shape[1:])}"


def share_of(rows: int, rank: int, size: int) -> slice:
    """Return which rows are those of `rank`: the first ranks have one more where rows do not divide."""
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
    """Return the tensor's rows; a number is a single row."""
    tensor = tensor.detach().contiguous()
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory as bytes, so that any type travels."""
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
