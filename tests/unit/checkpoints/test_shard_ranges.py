"""Blocks of tensors over meshes: as PyTorch divides them, each element once, and read back into other blocks."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.checkpoints.manifest import StoredTensor
from edl.checkpoints.part_files import cut
from edl.checkpoints.worker_stages import ElementRun, Sharding, Split, block, within, writes
from edl.errors import CheckpointError

torch = pytest.importorskip("torch")


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    splits = tuple(None if (dimension := draw(st.integers(-1, len(shape) - 1))) < 0 else Split(dimension) for _ in mesh)
    return Sharding(shape, mesh, splits)


def coordinates(sharding: Sharding) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sharding.mesh)))


def divided(sharding: Sharding, coordinate: tuple[int, ...]) -> list[int]:
    """The same by torch.chunk."""
    numbers = torch.arange(math.prod(sharding.shape)).reshape(sharding.shape)
    for split, size, at in zip(sharding.splits, sharding.mesh, coordinate, strict=True):
        if split is not None:
            chunks = torch.chunk(numbers, size, split.dimension)
            numbers = chunks[at] if at < len(chunks) else numbers.narrow(split.dimension, 0, 0)
    return numbers.flatten().tolist()


@given(shardings())
def test_a_block_has_the_elements_that_torch_gives_to_a_process(sharding: Sharding) -> None:
    for coordinate in coordinates(sharding):
        held = [number for begin, length in block(sharding, coordinate) for number in range(begin, begin + length)]
        assert held == divided(sharding, coordinate)


@given(shardings())
def test_of_those_that_write_each_element_is_written_once(sharding: Sharding) -> None:
    written = [
        number
        for coordinate in coordinates(sharding)
        if writes(sharding, coordinate)
        for begin, length in block(sharding, coordinate)
        for number in range(begin, begin + length)
    ]
    assert sorted(written) == list(range(math.prod(sharding.shape)))


def test_a_strided_dimension_is_divided_within_the_pieces_of_another_one() -> None:
    """As FSDP over tensor parallel: rows 0 to 3 are of the first process of tensor parallel, 4 to 7 of the second."""
    sharding = Sharding((8, 2), (2, 2), (Split(0, 2), Split(0)))
    assert {at: block(sharding, at) for at in coordinates(sharding)} == {
        (0, 0): (ElementRun(0, 4),),
        (0, 1): (ElementRun(8, 4),),
        (1, 0): (ElementRun(4, 4),),
        (1, 1): (ElementRun(12, 4),),
    }


def test_a_tensor_in_too_many_runs_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"a tensor of \[40000, 4\] is sharded into more than 32768 runs"):
        block(Sharding((40_000, 4), (2,), (Split(1),)), (0,))
    assert len(block(Sharding((40_000, 4), (2,), (Split(0),)), (1,))) == 1


def test_within_a_memory() -> None:
    ranges = (ElementRun(10, 3), ElementRun(20, 2))
    assert list(within(ranges, 2, 4)) == [ElementRun(12, 1), ElementRun(20, 1)]
    assert list(within(ranges, 0, 5)) == list(ranges)
    assert list(within(ranges, 3, 3)) == []


@given(st.lists(shardings(), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 4))
def test_parts_have_each_byte_once_and_say_where_it_lies(found: list[Sharding], workers: int, processes: int) -> None:
    """Of tensors that are sharded over meshes of these processes, and of some that are not."""
    late, holdings = [StoredTensor("plain", "float32", (5,), 20)], {}
    for number, sharding in enumerate(found):
        if math.prod(sharding.mesh) == processes:
            places = dict(enumerate(coordinates(sharding)))
            late.append(StoredTensor(f"t{number}", "float32", sharding.shape, 4 * math.prod(sharding.shape)))
            holdings[f"t{number}"] = [
                [ElementRun(4 * one.offset, 4 * one.length) for one in block(sharding, at)]
                if writes(sharding, at)
                else []
                for at in places.values()
            ]
    early = [StoredTensor("early", "uint8", (3,), 3)]
    slices, here = cut(early, late, workers, processes, holdings)
    assert len(slices) == len(here) == workers * processes
    reached = {one.name: bytearray(one.bytes) for one in (*early, *late)}
    for number, (whole, local) in enumerate(zip(slices, here, strict=True)):
        assert sum(one.bytes for one in whole) == sum(one.bytes for one in local)
        for one in whole:
            for at in range(one.offset, one.end):
                reached[one.tensor][at] += 1
        if number % processes:
            assert {one.tensor for one in whole}.isdisjoint({"plain", "early"})
    assert all(set(one) == {1} for one in reached.values())
