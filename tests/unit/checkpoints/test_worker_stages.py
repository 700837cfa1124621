"""Which processes of a worker are a stage, and what the tensors of several stages are called in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from stored import content, folder_at

from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_reader import open_checkpoint
from edl.checkpoints.manifest import StoredTensor
from edl.checkpoints.part_files import Own, PartCopy, StateHead, cut, joined, store
from edl.checkpoints.publishing import publish_saving
from edl.checkpoints.worker_stages import Holding, WorkerStage, difference_within, stage_with, stages_of, whole
from edl.errors import CheckpointError
from edl.protocol.checkpoint_record import DurablePart, PartInfo, Save, Saving, Why


def holding(*parameters: str, beside: tuple[int, ...] = (), sample: str = "", buffers: tuple[str, ...] = ()) -> Holding:
    return Holding(" ".join((*parameters, *buffers)), parameters, buffers, beside, sample)


def grouped(*holdings: Holding) -> list[tuple[int, ...]]:
    return [stage.processes for stage in stages_of(holdings)]


def test_processes_of_one_mesh_are_one_stage_whatever_they_contain() -> None:
    parted = [holding("w", beside=(0, 1), sample=str(number)) for number in range(2)]
    assert stages_of(parted) == [whole(2)]
    assert not whole(2).judged


def connected(*names: str, averaged: bool = False, placed: str = "", piece: str = "", first: bytes = b"") -> Holding:
    """One of two processes that a mesh, or `among=`, connects."""
    each, among = len(names), (0, 1) if averaged else ()
    return Holding("", names, (), (0, 1), "", among, (placed,) * each, (piece,) * each, (first,) * each)


def whole_there(first: bytes = b"") -> Holding:
    return Holding("", ("w",), placed=("",), pieces=("",), firsts=(first,))


ROWS, COLUMNS = "(Shard(dim=0),) over (2,)", "(Shard(dim=1),) over (2,)"


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (connected("w", placed=ROWS), connected("w", placed=COLUMNS), "w is (Shard(dim=0),) over (2,) on process 0"),
        (connected("w", placed=ROWS), whole_there(), "and whole on process 1"),
        (whole_there(), connected("w", placed=ROWS), "w is whole on process 0"),
        (connected("w", first=b"1"), connected("w", first=b"2"), "w differs between processes 0 and 1"),
        (connected("w", piece="0", first=b"1"), connected("w", piece="0", first=b"2"), "w differs between processes 0"),
        (connected("v", averaged=True), connected("v", "w", averaged=True), "only one of them trains w"),
    ],
)
def test_what_processes_would_train_wrongly_is_said(one: Holding, other: Holding, said: str) -> None:
    assert said in difference_within([one, other], contents=True)


@pytest.mark.parametrize(
    ("one", "other", "contents"),
    [
        (connected("w", placed=ROWS), connected("w", placed=ROWS), True),
        (connected("w", averaged=True, first=b"1"), connected("w", averaged=True, first=b"1"), True),
        (connected("w", first=b"1"), connected("w", first=b"2"), False),
        (connected("v"), connected("w"), True),
        (connected("w", piece="0", first=b"1"), connected("w", piece="1", first=b"2"), True),
        (whole_there(b"1"), whole_there(b"2"), True),
    ],
)
def test_processes_that_train_rightly_and_stages_of_a_pipeline_may_differ(
    one: Holding, other: Holding, contents: bool
) -> None:
    assert not difference_within([one, other], contents=contents)


def test_stages_may_be_sharded_over_some_processes_each_in_any_order() -> None:
    one, other = holding("w", beside=(0, 1)), holding("w", beside=(2, 3))
    assert grouped(one, one, other, other) == [(0, 1), (2, 3)]
    one, other = holding("w", beside=(0, 2)), holding("w", beside=(1, 3))
    assert grouped(one, other, one, other) == [(0, 2), (1, 3)]


def test_what_a_mesh_and_among_connect_in_turn_is_one_stage() -> None:
    assert grouped(*(holding("w", beside=pair) for pair in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)))) == [
        (0, 1, 2, 3)
    ]
    assert grouped(holding("w", beside=(0, 1)), holding("w", beside=(1, 2)), holding("w", beside=(1, 2))) == [(0, 1, 2)]
    assert grouped(*[holding("w")] * 3, holding("w", beside=(0, 1, 2))) == [(0, 1, 2, 3)]


def test_processes_apart_are_copies_only_if_names_forms_and_contents_are_the_same() -> None:
    [found] = stages_of([holding("w", sample="a"), holding("w", sample="a")])
    assert found == WorkerStage(0, 1, (0, 1), judged=True)
    assert grouped(holding("w", sample="a"), holding("w", sample="b")) == [(0,), (1,)]
    assert grouped(holding("w", sample="a"), holding("v", sample="a")) == [(0,), (1,)]
    alone, shared = holding("w", sample="a"), holding("w", sample="a", beside=(1, 2))
    assert grouped(alone, shared, shared) == [(0,), (1, 2)]


def test_a_process_that_another_one_names_is_not_alone() -> None:
    named, naming, like = holding("w", beside=()), holding("w", beside=(0,)), holding("w")
    assert grouped(named, naming, like) == [(0, 1), (2,)]


def test_names_that_are_distinct_over_stages_stay() -> None:
    first, second = stages_of([holding("layers.0.weight"), holding("layers.1.weight")])
    assert (first.model_name("layers.0.weight"), second.model_name("layers.1.weight")) == (
        "layers.0.weight",
        "layers.1.weight",
    )
    assert second.name("optimizer/0/x") == "stage/1/optimizer/0/x"
    assert whole(2).name("optimizer/0/x") == "optimizer/0/x"
    assert [stage_with((first, second), process).number for process in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (holding("0.weight"), holding("0.weight", "0.bias")),
        (holding("a", buffers=("0.weight",)), holding("0.weight")),
        (holding("0.weight"), holding("a", buffers=("0.weight",))),
    ],
)
def test_stages_that_use_a_parameters_name_twice_are_told_apart_by_their_numbers(
    first: Holding, second: Holding
) -> None:
    stages = stages_of([first, second])
    assert [stage.model_name("0.weight") for stage in stages] == ["0.0.weight", "1.0.weight"]


def test_a_buffer_that_several_stages_have_is_the_models_once() -> None:
    stages = stages_of([holding(name, buffers=("angles",)) for name in ("a", "b")])
    assert [stage.model_name("angles") for stage in stages] == ["angles", "stage/1/angles"]
    assert [stage.again for stage in stages] == [frozenset(), {"angles"}]
    assert [stage.model_name(name) for stage, name in zip(stages, "ab", strict=True)] == ["a", "b"]


# ------------------------------------------------------------------------------------------------ parts and manifest

NAME = CheckpointName(1, 1, 30)
WORKERS = 2


def tensors(stage: int) -> tuple[tuple[StoredTensor, ...], tuple[StoredTensor, ...]]:
    """What scripts and forward passes may change, and the rest."""
    early = StoredTensor(f"{stage}.mean", "float32", (3,), 12)
    late = StoredTensor(f"{stage}.weight", "float32", (4000,), 16_000)
    return (early,), (late, StoredTensor(f"stage/{stage}/optimizer/0/x", "float32", (9,), 36, "optimizer"))


def saved(root: Path, stages: tuple[tuple[int, ...], ...], **changes: Any) -> Saving:
    """All that the processes of workers do: each stage is held by these processes. `changes`: of what 1 tells."""
    processes, infos = sum(map(len, stages)), []
    path = str(root / "mnist" / str(NAME))
    for rank in range(WORKERS):
        files = []
        for process in range(processes):
            number = next(number for number, members in enumerate(stages) if process in members)
            (early, late), members = tensors(number), stages[number]
            plan = cut(early, late, WORKERS, processes, {}, members)
            part = rank * processes + process
            known = {one.name: one for one in (*early, *late)}
            head = StateHead("torch", b"stage %d" % number, b"", (*early, *late), plan.slices, {}, members)
            own = Own({}, head if part == members[0] else None, f"layout {number}", number)
            if process == 1:
                own = msgspec.structs.replace(own, **changes)
            slices = plan.slices[part]
            raw = b"".join(content(30, one.tensor, known[one.tensor].bytes)[one.offset : one.end] for one in slices)
            save = Save(1, 1, 30, part, WORKERS * processes, path)
            copied = PartCopy(save, (*early, *late), slices, msgspec.msgpack.encode(own))
            files += store(copied, memoryview(raw))
        infos.append(DurablePart(f"w{rank}", PartInfo(tuple(files))))
    return Saving(1, Why.STEPS, 1, 30, ("w0", "w1"), path, None, tuple(infos))


def publish(saving: Saving) -> None:
    record: Any = SimpleNamespace(job="mnist", checkpoints=SimpleNamespace(saving=saving, resumed=None))
    publish_saving(record, 7.0)


@pytest.mark.parametrize("stages", [((0,), (1,)), ((0, 1), (2, 3)), ((0, 2), (1, 3))])
def test_the_tensors_of_all_stages_are_in_the_checkpoint(tmp_path, stages) -> None:
    publish(saved(tmp_path, stages))
    found = open_checkpoint(folder_at(tmp_path), NAME)
    found.verify()
    assert len(found.tensors) == 6
    for one in found.manifest.tensors:
        into = bytearray(one.bytes)
        found.read(one.name, memoryview(into))
        assert bytes(into) == content(30, one.name, one.bytes), one.name
    assert [(one.processes, one.tensors, one.state) for one in found.manifest.heads] == [
        (members, 3, b"stage %d" % number) for number, members in enumerate(stages)
    ]
    assert (found.manifest.state, found.manifest.processes) == (b"", len(stages) * len(stages[0]))


def test_one_stage_is_described_as_ever(tmp_path) -> None:
    publish(saved(tmp_path, ((0, 1),)))
    manifest = open_checkpoint(folder_at(tmp_path), NAME).manifest
    assert (manifest.state, manifest.stages) == (b"stage 0", ())
    assert [(one.processes, one.tensors, one.state) for one in manifest.heads] == [((0, 1), 3, b"stage 0")]


def test_processes_of_a_stage_that_found_different_tensors_make_no_checkpoint(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="do not hold the same: such a model is not saved; build it alike") as of:
        publish(saved(tmp_path, ((0, 1),), layout="another"))
    assert "\n" not in str(of.value)
    publish(saved(tmp_path / "apart", ((0,), (1,)), layout="another"))


def test_a_stage_that_is_not_described_makes_no_checkpoint(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="does not say what the state is"):
        publish(saved(tmp_path, ((0,), (1,)), head=None))


def test_a_state_that_was_cut_for_another_number_of_processes_makes_no_checkpoint() -> None:
    head = StateHead("torch", b"", b"", (), ((), ()))
    with pytest.raises(CheckpointError, match="rank 0 has cut the state for 2 processes, and 3 have written it"):
        joined([head], 3)
