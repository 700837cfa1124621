"""What a daemon tells of a part that cannot be made durable (I16): its reason, always."""

from __future__ import annotations

import msgspec

from edl.checkpoints.manifest import StoredTensor
from edl.checkpoints.part_files import PartCopy, cut
from edl.checkpoints.worker_stages import ElementRun
from edl.daemon.part_store import PartStore
from edl.protocol.checkpoint_record import PartInfo, Save
from edl.protocol.trainer_messages import CopiedPart

SIZE = 1 << 16


def handed_over(folder, where, content):
    """What a trainer leaves in the folder that it shares."""
    tensors = (StoredTensor("weight", "float32", (SIZE // 4,), SIZE, "model"),)
    save = Save(1, 1, 10, 0, 1, f"{where}/job/0001-000001-000000000010")
    copied = PartCopy(save, tensors, cut((), tensors, 1).slices[0], b"")
    (folder / "about").write_bytes(msgspec.msgpack.encode(copied) if content is None else content)
    (folder / "bytes").write_bytes(bytes(SIZE))
    return CopiedPart(1, ("about", "bytes"), 0.5)


async def told(folder, where, content=None):
    heard: list[tuple[int, PartInfo | str]] = []
    store = PartStore(folder, lambda *one: heard.append(one), lambda *one: heard.append(one))
    store.take(handed_over(folder, where, content))
    await store.wait_idle(10.0)
    store.close()
    [(number, what)] = heard
    assert number == 1
    assert {path.name for path in folder.iterdir()} - {"ck", "file"} == {"copy.spare"}
    return what


async def test_a_part_is_durable(tmp_path):
    info = await told(tmp_path, tmp_path / "ck")
    assert isinstance(info, PartInfo) and info.stall_ms == 0.5


async def test_the_parts_of_several_processes_lie_each_in_a_folder_of_its_own(tmp_path):
    tensors = (StoredTensor("weight", "float32", (SIZE // 4,), SIZE, "model"),)
    held = {"weight": [[ElementRun(0, SIZE // 2)], [ElementRun(SIZE // 2, SIZE // 2)]]}
    slices, _ = cut((), tensors, 1, 2, held)
    files = []
    for limb in range(2):
        folder = tmp_path / str(limb)
        folder.mkdir()
        save = Save(1, 1, 10, limb, 2, f"{tmp_path / 'ck'}/job/0001-000001-000000000010")
        copied = PartCopy(save, tensors, slices[limb], b"")
        (folder / "about").write_bytes(msgspec.msgpack.encode(copied))
        (folder / "bytes").write_bytes(bytes(SIZE // 2))
        files += [str(folder / "about"), str(folder / "bytes")]
    heard = []
    store = PartStore(tmp_path, lambda *one: heard.append(one), lambda *one: heard.append(one))
    store.take(CopiedPart(1, tuple(files), 0.5))
    await store.wait_idle(10.0)
    store.close()
    [(_, info)] = heard
    names = [file.name for file in info.files]
    assert names[::2] == ["part-0000-of-0002.safetensors", "part-0001-of-0002.safetensors"]
    assert names[1::2] == ["own-0000.msgpack", "own-0001.msgpack"]
    assert [path.name for limb in range(2) for path in (tmp_path / str(limb)).iterdir()] == ["copy.spare"] * 2


async def test_a_place_that_cannot_be_written_is_told(tmp_path):
    """The error still has views of what the trainer has copied, which holds up nothing."""
    (tmp_path / "file").touch()
    assert "is a symbolic link or no folder" in await told(tmp_path, tmp_path / "file")


async def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(_folder, _title, slices, _tensors, contents):
        views = [contents[0][piece.offset : piece.end] for piece in slices]
        raise OSError(28, f"No space left for {len(views)}")

    monkeypatch.setattr("edl.checkpoints.part_files.write_part", full)
    assert "No space left" in await told(tmp_path, tmp_path / "ck")


async def test_what_is_no_copy_is_told(tmp_path):
    assert "ValidationError" in await told(tmp_path, tmp_path / "ck", msgspec.msgpack.encode([1]))
