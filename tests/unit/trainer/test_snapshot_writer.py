"""What a trainer copies for a checkpoint lies in its file one behind the other; no garbage is collected meanwhile, and
what cannot be copied ends no script.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from edl.checkpoints.part_files import Own, PartCopy
from edl.checkpoints.worker_stages import WorkerStage
from edl.core.worker.worker_inputs import CopyFailed, CopyTaken
from edl.errors import UsageError
from edl.protocol.assignment import Place
from edl.protocol.checkpoint_record import SPARE, Save
from edl.trainer import snapshot_writer
from edl.trainer.framework_port import StatePiece
from edl.trainer.registered_state import RegisteredState
from edl.trainer.value_tree import Arrays


def test_pieces_of_all_sizes_lie_one_behind_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "TOGETHER", 64)
    sizes = [1, 0, 7, 200, *[3] * 1200, 0]
    contents = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    monkeypatch.setattr(os, "writev", lambda file, views: os.write(file, b"".join(views)[:29]))
    with (tmp_path / "part").open("wb", buffering=0) as opened:
        snapshot_writer.write_together(opened.fileno(), (memoryview(one) for one in contents))
    assert (tmp_path / "part").read_bytes() == b"".join(contents)


def test_small_pieces_are_written_together(monkeypatch):
    calls = []

    def writev(_file: int, views: list[memoryview]) -> int:
        calls.append(len(views))
        return sum(map(len, views))

    monkeypatch.setattr(os, "writev", writev)
    snapshot_writer.write_together(0, (memoryview(b"abc") for _ in range(2000)))
    assert calls == [512, 512, 512, 464]


@pytest.mark.parametrize("collects", [True, False])
def test_collection_waits_for_a_description_and_is_afterwards_as_it_was(collects, tmp_path):
    seen = []

    def describe(*, beside):
        seen.append(gc.isenabled())
        raise UsageError("a session")

    (gc.enable if collects else gc.disable)()
    try:
        snapshot_writer.SnapshotWriter(SimpleNamespace(snapshot=describe), RegisteredState(), lambda _: None).prepare(
            Place(1, 0, 1, "w"), tmp_path
        )
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert seen == [False]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("sparse"), "RuntimeError: sparse"),
        (UsageError("not built"), "not built"),
        (OSError("full"), "full"),
    ],
)
def test_whatever_cannot_be_copied_costs_the_checkpoint_and_not_the_script(tmp_path, error, said):
    def fail(*, beside):
        raise error

    heard = []
    one = snapshot_writer.SnapshotWriter(SimpleNamespace(snapshot=fail), RegisteredState(), heard.append)
    one.take(Save(3, 1, 20, 0, 2, "/c/j/0001-000003-000000000020"), tmp_path)
    assert heard == [CopyFailed(3, said)]
    assert one.idle
    one.finish()


def test_memory_for_the_first_copy_is_touched_once_beforehand(tmp_path, monkeypatch):
    framework: Any = Weights(b"step 20!" * 100_000)
    heard: Any = queue.Queue()
    one = snapshot_writer.SnapshotWriter(framework, RegisteredState(), heard.put)
    touched = []
    allocate = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda *how: touched.append(threading.current_thread()) or allocate(*how)
    )
    for _ in range(2):
        one.prepare(Place(1, 1, 2, "w"), tmp_path)
    one.take(Save(1, 1, 20, 1, 2, "/c/j/0001-000001-000000000020"), tmp_path)
    taken = heard.get(timeout=10)
    assert isinstance(taken, CopyTaken)
    assert len(touched) == 1 and touched[0] is not threading.main_thread()
    copied = (tmp_path / taken.files[1]).read_bytes()
    assert 300_000 < len(copied) < 500_000, "the second half of the row"
    assert copied == framework.weight[-len(copied) :]
    assert not (tmp_path / SPARE).exists(), "it was written into that"


@pytest.fixture
def threads(monkeypatch):
    """The threads of all writers."""
    found = []

    def begun(*of: Any) -> ThreadPoolExecutor:
        found.append(ThreadPoolExecutor(*of))
        return found[-1]

    monkeypatch.setattr(snapshot_writer, "ThreadPoolExecutor", begun)
    return found


def test_memory_is_there_before_anything_is_copied(tmp_path, threads):
    framework: Any = Weights(b"step 20!" * 100_000)
    one = snapshot_writer.SnapshotWriter(framework, RegisteredState(), lambda _: None)
    one.prepare(Place(1, 0, 1, "w"), tmp_path)
    threads[-1].shutdown(wait=True)
    assert not framework.reads.is_set()
    found = (tmp_path / SPARE).stat()
    assert (found.st_size, found.st_mode & 0o777) == (800_000, 0o600)
    assert found.st_blocks * 512 >= 800_000


def test_what_cannot_be_touched_beforehand_costs_nothing(tmp_path, threads):
    def refuse(*, beside):
        raise UsageError("a session")

    one = snapshot_writer.SnapshotWriter(SimpleNamespace(snapshot=refuse), RegisteredState(), lambda _: None)
    one.prepare(Place(1, 0, 1, "w"), tmp_path)
    framework: Any = Weights()
    gone = snapshot_writer.SnapshotWriter(framework, RegisteredState(), lambda _: None)
    gone.prepare(Place(1, 0, 1, "w"), tmp_path / "gone")
    threads[-1].shutdown(wait=True)
    assert not list(tmp_path.iterdir())


STANDS = Save(3, 1, 20, 0, 1, "/c/j/0001-000003-000000000020", stands=True)


class Weights:
    """A framework with one tensor, which an update replaces."""

    name, stored_sort = "torch", Arrays()

    def __init__(self, weight=b"step 20!"):
        self.weight, self.reads = weight, threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()

    def snapshot(self, *, beside):
        size = len(self.weight)
        piece = StatePiece(("weight", "uint8", (size,), size), self._read, of_model=True)
        return SimpleNamespace(early=[], late=[piece], description=b"", whole=lambda: True)

    def held_by(self, contents, processes):
        return ()

    def _read(self):
        self.reads.set()
        assert self.may_read.wait(10)
        return memoryview(self.weight)

    def witness(self):
        return self.weight

    def is_as(self, witness):
        return self.weight == witness

    def random_states(self):
        return {}


@pytest.fixture
def standing():
    """A copier whose script is at something of its own after step 20, its framework, and what came of copies."""
    framework: Any = Weights()
    heard: Any = queue.Queue()
    one = snapshot_writer.SnapshotWriter(framework, RegisteredState(), heard.put)
    one.witness = framework.witness()
    return one, framework, heard


def test_beside_a_script_that_stands_it_copies_at_once(standing, tmp_path):
    one, _, heard = standing
    one.take_beside(STANDS, tmp_path, lambda: True)
    taken = heard.get(timeout=10)
    assert isinstance(taken, CopyTaken)
    assert (tmp_path / taken.files[1]).read_bytes() == b"step 20!"


def test_no_update_begins_while_it_copies(standing, tmp_path):
    one, framework, heard = standing
    framework.may_read.clear()
    one.take_beside(STANDS, tmp_path, lambda: True)
    assert framework.reads.wait(10)
    threading.Timer(0.1, framework.may_read.set).start()
    one.before_update(20)
    framework.weight = b"step 21!"
    taken = heard.get(timeout=10)
    assert isinstance(taken, CopyTaken)
    assert (tmp_path / taken.files[1]).read_bytes() == b"step 20!"


@pytest.mark.parametrize("why", [snapshot_writer.BEGUN, snapshot_writer.OTHERS])
def test_what_is_not_of_that_step_is_not_copied(standing, tmp_path, why):
    one, framework, heard = standing
    if why == snapshot_writer.BEGUN:
        one.before_update(20)
    else:
        framework.weight = b"average!"
    one.take_beside(STANDS, tmp_path, lambda: True)
    assert heard.get(timeout=10) == CopyFailed(3, why)
    if why == snapshot_writer.BEGUN:
        one.note_no_update()
        one.take_beside(STANDS, tmp_path, lambda: True)
        assert isinstance(heard.get(timeout=10), CopyTaken)


def test_a_script_that_has_gone_on_has_no_part_to_give(standing, tmp_path):
    one, _, heard = standing
    one.take_beside(STANDS, tmp_path, lambda: False)
    assert heard.get(timeout=10) == CopyFailed(3, snapshot_writer.BEGUN)


class Parted(Weights):
    """A framework with a statistic and a weight of the model, and a moment of the optimizer, 8 bytes each."""

    bytes_of = staticmethod(bytes)

    def snapshot(self, *, beside):
        def piece(name: str, content: bytes, *, of_model: bool) -> StatePiece:
            return StatePiece((name, "uint8", (8,), 8), lambda: memoryview(content), of_model=of_model)

        late = [piece("weight", b"weights!", of_model=True), piece("optimizer/0/x", b"moments!", of_model=False)]
        early = [piece("mean", b"the mean", of_model=True)]
        return SimpleNamespace(early=early, late=late, description=b"described", whole=lambda: True)


def copied(folder: Any, stage: WorkerStage, limb: int, rank: int = 0, witness: str = "") -> tuple[PartCopy, Own, bytes]:
    """What process `limb` of three copies at one of two workers."""
    heard: Any = queue.Queue()
    framework: Any = Parted()
    extras = RegisteredState()
    extras.add({"note": np.frombuffer(b"noted it", dtype="uint8")})
    one = snapshot_writer.SnapshotWriter(framework, extras, heard.put)
    stages: Any = SimpleNamespace(stage=stage, witness=lambda: witness)
    one.join_limbs(limb, 3, stages)
    one.take(Save(3, 1, 20, rank, 2, "/c/j/0001-000003-000000000020"), folder)
    taken = heard.get(timeout=10)
    assert isinstance(taken, CopyTaken)
    content = msgspec.msgpack.decode((folder / taken.files[0]).read_bytes(), type=PartCopy)
    return content, msgspec.msgpack.decode(content.own, type=Own), (folder / taken.files[1]).read_bytes()


FIRST, SECOND = (
    WorkerStage(0, 2, (0,), "0."),
    WorkerStage(1, 2, (1, 2), "1.", frozenset({"mean"})),
)


def test_each_stage_of_a_worker_is_a_state_of_its_own(tmp_path):
    for number, (stage, limb) in enumerate(((FIRST, 0), (SECOND, 1))):
        content, own, raw = copied(tmp_path, stage, limb)
        mean = "stage/1/mean" if number else "0.mean"
        assert own.stage == number and own.head is not None
        assert own.head.processes == stage.processes
        assert [(one.name, one.belongs) for one in own.head.tensors] == [
            (mean, "stage" if number else "model"),
            (f"stage/{number}/registered/0.edl.register(note=...)", "registered"),
            (f"{number}.weight", "model"),
            (f"stage/{number}/optimizer/0/x", "optimizer"),
        ]
        assert (content.save.part, content.save.parts) == (limb, 6)
        assert [one.tensor for one in content.slices] == [one.name for one in own.head.tensors[:3]]
        assert raw == b"the mean" + b"noted it" + b"weights!"  # and the other worker the optimizer's
        assert [bool(one) for one in own.head.parts] == [part % 3 == limb for part in range(6)]


def test_only_the_first_process_of_a_stage_at_rank_0_describes_it(tmp_path):
    assert copied(tmp_path, SECOND, 1)[1].head is not None
    for limb, rank, written in ((2, 0, b""), (1, 1, b"moments!"), (2, 1, b"")):
        content, own, raw = copied(tmp_path, SECOND, limb, rank)
        assert own.head is None and own.stage == 1
        assert (content.save.part, raw) == (3 * rank + limb, written)


def test_copies_that_contain_different_things_tell_different_layouts(tmp_path):
    layouts = {copied(tmp_path, SECOND, limb, 0, witness)[1].layout for limb, witness in ((1, "a"), (2, "a"), (2, "b"))}
    assert len(layouts) == 2
