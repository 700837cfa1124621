"""Each byte of a state is in exactly one worker's part, and all parts are of nearly one size."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stored import tensor

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.manifest import StoredTensor
from edl.checkpoints.part_files import ALIGNED, cut, shares
from edl.checkpoints.part_layout import HEADER_ALIGNED, PartTitle, lay_out
from edl.checkpoints.worker_stages import ElementRun

DTYPES = ["float32", "float64", "bfloat16", "uint8", "bool", "complex64", "<U5"]


@st.composite
def states(draw: st.DrawFn) -> tuple[StoredTensor, ...]:
    shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
    large = st.tuples(st.integers(0, 40_000))
    forms = draw(st.lists(st.tuples(st.sampled_from(DTYPES), shapes | large), max_size=12))
    return tuple(tensor(f"t{number}", *form) for number, form in enumerate(forms))


@given(states(), st.integers(1, 9))
def test_each_byte_is_in_one_part(tensors: tuple[StoredTensor, ...], parts: int) -> None:
    found = shares(tensors, parts)
    assert len(found) == parts
    times = {one.name: np.zeros(one.bytes, np.uint8) for one in tensors}
    for piece in (piece for slices in found for piece in slices):
        assert piece.end <= len(times[piece.tensor])
        times[piece.tensor][piece.offset : piece.end] += 1
    assert all((counted == 1).all() for counted in times.values())


@given(states(), st.integers(1, 9))
def test_parts_are_of_nearly_one_size_and_cut_where_memory_is_aligned(
    tensors: tuple[StoredTensor, ...], parts: int
) -> None:
    total = sum(one.bytes for one in tensors)
    for slices in shares(tensors, parts):
        assert abs(sum(piece.bytes for piece in slices) - total / parts) <= ALIGNED + 1
        assert all(piece.offset % ALIGNED == 0 and piece.bytes for piece in slices)


@given(states(), st.integers(1, 9))
def test_every_element_lies_where_its_type_may_lie(tensors: tuple[StoredTensor, ...], parts: int) -> None:
    by_name = {one.name: one for one in tensors}
    for number, slices in enumerate(shares(tensors, parts)):
        title = PartTitle("mnist", CheckpointName(1, 1, 1), number, parts)
        layout = lay_out(title, slices, by_name)
        assert len(layout.header) % HEADER_ALIGNED == 0
        assert layout.bytes == len(layout.header) + sum(piece.bytes for piece in slices)
        for piece, begin in zip(slices, layout.begins, strict=True):
            assert begin % by_name[piece.tensor].element_bytes == 0


@given(states(), states(), st.integers(1, 4), st.integers(1, 4), st.data())
def test_what_processes_hold_in_shards_is_written_once(
    early: tuple[StoredTensor, ...], late: tuple[StoredTensor, ...], workers: int, processes: int, data: st.DataObject
) -> None:
    """Of what scripts change, by the processes of the first worker alone."""
    early = tuple(msgspec.structs.replace(one, name=f"early {one.name}") for one in early)
    holdings = {one.name: in_turns(one, processes) for one in (*early, *late) if data.draw(st.booleans())}
    plan = cut(early, late, workers, processes, holdings)
    times = {one.name: np.zeros(one.bytes, np.uint8) for one in (*early, *late)}
    for number, (slices, here) in enumerate(zip(plan.slices, plan.here, strict=True)):
        assert sum(piece.bytes for piece in slices) == sum(piece.bytes for piece in here)
        assert number < processes or not any(piece.tensor.startswith("early") for piece in slices)
        for piece in slices:
            times[piece.tensor][piece.offset : piece.end] += 1
    assert all((counted == 1).all() for counted in times.values())


def in_turns(one: StoredTensor, processes: int) -> tuple[tuple[ElementRun, ...], ...]:
    """A tensor in runs of up to three elements, which go to the processes in turn."""
    size = 3 * one.element_bytes
    runs = [ElementRun(at, min(size, one.bytes - at)) for at in range(0, one.bytes, size)] if one.bytes < 9000 else []
    runs = runs or [ElementRun(0, one.bytes)]
    return tuple(tuple(runs[process::processes]) for process in range(processes))


def test_a_state_of_nothing_is_parts_of_nothing() -> None:
    assert shares((), 3) == ((), (), ())
