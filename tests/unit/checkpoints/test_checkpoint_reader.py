"""What lies in a folder may be torn, mixed up or made to harm: what was written loads, or a line says why not."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
from stored import TENSORS, check_contents, content, folder_at, save, write

from edl.checkpoints import checkpoint_writer
from edl.checkpoints import manifest as manifests
from edl.checkpoints.checkpoint_names import CheckpointName
from edl.checkpoints.checkpoint_paths import JobFolder, look
from edl.checkpoints.checkpoint_reader import Unfinished, chosen, newest, open_checkpoint
from edl.checkpoints.checkpoint_storage import AlreadyThere
from edl.checkpoints.manifest import checksum_of
from edl.checkpoints.part_layout import lay_out
from edl.checkpoints.publishing import prune
from edl.errors import CheckpointError, UsageError

OLD, NEW = CheckpointName(1, 1, 10), CheckpointName(1, 1, 20)
PART = "part-0001-of-0003.safetensors"


@pytest.fixture
def folder(tmp_path) -> JobFolder:
    found = folder_at(tmp_path)
    save(found, OLD)
    save(found, NEW)
    return found


def at(folder: JobFolder, name: CheckpointName = NEW) -> Path:
    return Path(folder.path(name))


def check_newest(folder: JobFolder) -> None:
    found = newest(folder)
    assert found.checkpoint is not None and not found.passed_over
    assert found.checkpoint.manifest.name == NEW
    check_contents(found.checkpoint)


def passed_over(folder: JobFolder) -> str:
    """Why the new one is of no use; the old one takes its place."""
    found = newest(folder)
    assert found.checkpoint is not None
    assert found.checkpoint.manifest.name == OLD
    check_contents(found.checkpoint)
    [passed] = found.passed_over
    assert passed.name == NEW
    assert "\n" not in passed.reason and str(at(folder)) in passed.reason
    return passed.reason


def test_the_newest_loads(folder) -> None:
    check_newest(folder)
    assert open_checkpoint(folder, NEW).own(7) is None


def test_where_there_is_none_there_is_none(tmp_path) -> None:
    assert newest(folder_at(tmp_path)) == newest(folder_at(tmp_path / "nothing")) == (None, ())


def test_without_a_manifest_it_is_no_checkpoint(folder) -> None:
    (at(folder) / "manifest.json").unlink()
    found = newest(folder)
    assert found.checkpoint.manifest.name == OLD and not found.passed_over
    with pytest.raises(Unfinished):
        open_checkpoint(folder, NEW)


def test_each_file_torn_anywhere_is_noticed(folder) -> None:
    chance = random.Random(7)
    whole = {path: path.read_bytes() for path in at(folder).iterdir()}
    for path, raw in whole.items():
        for length in {0, 1, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(8))}:
            path.write_bytes(raw[:length])
            passed_over(folder)
        path.write_bytes(raw + b"\0")
        passed_over(folder)
        path.write_bytes(raw)
    assert newest(folder).checkpoint.manifest.name == NEW


def test_each_flipped_byte_is_noticed(folder) -> None:
    chance = random.Random(7)
    for path in at(folder).iterdir():
        raw = path.read_bytes()
        for place in {0, 7, 8, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(12))}:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            passed_over(folder)
        path.write_bytes(bytes(len(raw)))  # as a file system may leave what was not flushed
        passed_over(folder)
        path.write_bytes(raw)


def test_a_missing_part_is_noticed(folder) -> None:
    (at(folder) / PART).unlink()
    assert f"there is no {at(folder) / PART}" in passed_over(folder)


def test_a_part_of_another_checkpoint_is_noticed(folder) -> None:
    shutil.copy(at(folder, OLD) / PART, at(folder) / PART)
    assert "the header of part-0001-of-0003.safetensors is not that of the part" in passed_over(folder)


def test_a_header_that_lies_is_noticed_also_under_a_right_checksum(folder) -> None:
    """Another file altogether, of the same size, and a manifest that vouches for it."""
    path = at(folder) / PART
    raw = path.read_bytes().replace(b'"offset":0', b'"offset":9').replace(b'"F32"', b'"I32"')
    path.write_bytes(raw)
    vouch(folder, raw)
    assert "the header of part-0001-of-0003.safetensors is not that of the part" in passed_over(folder)


def test_a_size_that_no_part_can_have_is_noticed(folder) -> None:
    path = at(folder) / PART
    raw = path.read_bytes() + b"more"
    path.write_bytes(raw)
    vouch(folder, raw)
    assert f"would have {len(raw) - 4} bytes, and its manifest says {len(raw)}" in passed_over(folder)


def vouch(folder: JobFolder, raw: bytes) -> None:
    manifest = manifests.decode((at(folder) / "manifest.json").read_bytes())
    sum_of = checksum_of(raw)
    parts = tuple(
        msgspec.structs.replace(part, bytes=len(raw), checksum=sum_of) if part.file == PART else part
        for part in manifest.parts
    )
    (at(folder) / "manifest.json").write_bytes(manifests.encode(msgspec.structs.replace(manifest, parts=parts)))


def test_absurd_sizes_make_no_room(folder) -> None:
    """A tensor of a petabyte is refused by the size of its file, before anything is allocated for it."""
    manifest = manifests.decode((at(folder) / "manifest.json").read_bytes())
    tensor = msgspec.structs.replace(manifest.tensors[0], shape=(1 << 48,), bytes=1 << 50)
    piece = manifests.Slice(tensor.name, 0, 1 << 50)
    header = len(lay_out(folder.title(NEW, 0, 1), (piece,), {tensor.name: tensor}).header)
    part = manifests.StoredPart("part-0000-of-0001.safetensors", header + (1 << 50), "crc32c:00000000", (piece,))
    huge = msgspec.structs.replace(manifest, tensors=(tensor,), parts=(part,))
    (at(folder) / "manifest.json").write_bytes(manifests.encode(huge))
    (at(folder) / "part-0000-of-0001.safetensors").write_bytes(b"little")
    assert "has 6 bytes, and was written with 1125899906842" in passed_over(folder)


def test_a_manifest_larger_than_any_is_not_read(folder) -> None:
    with (at(folder) / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    assert "its manifest has 1099511627776 bytes" in passed_over(folder)


@pytest.mark.parametrize("file", ["manifest.json", PART, "own-0000.msgpack"])
@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_is_no_plain_file_is_not_read(folder, file, kind, tmp_path) -> None:
    path = at(folder) / file
    outside = tmp_path / "outside"
    path.rename(outside)
    match kind:
        case "link":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    assert file in passed_over(folder)


def test_a_folder_that_is_a_link_is_not_followed(folder, tmp_path) -> None:
    at(folder).rename(tmp_path / "elsewhere")
    at(folder).symlink_to(tmp_path / "elsewhere")
    passed_over(folder)
    assert prune(folder, 1).removed == ()
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


def test_a_checkpoint_of_another_job_or_step_is_no_good_here(folder) -> None:
    save(folder_at(Path(folder.files.where), "other"), NEW)
    shutil.rmtree(at(folder))
    at(folder).parent.parent.joinpath("other", str(NEW)).rename(at(folder))
    assert "its manifest is that of checkpoint 0001-000001-000000000020 of job other" in passed_over(folder)
    shutil.rmtree(at(folder))
    shutil.copytree(at(folder, OLD), at(folder))
    assert "its manifest is that of checkpoint 0001-000001-000000000010 of job mnist" in passed_over(folder)


def test_nothing_older_takes_the_place_of_what_cannot_be_read_now(folder, monkeypatch) -> None:
    """Else a disk's hiccup, or an edl of last year, would cost what was told durable."""
    real = os.pread

    def fails(file: int, size: int, offset: int) -> bytes:
        if size > 100 and offset == 0 and str(Path(f"/proc/self/fd/{file}").readlink()).endswith(f"{NEW}/{PART}"):
            raise OSError(5, "Input/output error")
        return real(file, size, offset)

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(CheckpointError, match=f"cannot read .*{PART}: Input/output error; look at that disk"):
        newest(folder)
    with pytest.raises(CheckpointError, match="Input/output"):
        prune(folder, 1)
    monkeypatch.undo()
    path = at(folder) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format":3', b'"format":4'))
    with pytest.raises(CheckpointError, match=f"{NEW} was written by a newer edl .*install that edl"):
        newest(folder)


def test_room_must_be_that_of_the_tensor(folder) -> None:
    found = open_checkpoint(folder, NEW)
    with pytest.raises(UsageError, match="has 160 bytes, and 159 have room"):
        found.read("layer.bias", memoryview(bytearray(159)))


# ------------------------------------------------------------------------------------------------------- publishing


def test_publishing_twice_is_publishing_once(folder) -> None:
    manifest = open_checkpoint(folder, NEW).manifest
    again = msgspec.structs.replace(manifest, at=manifest.at + 5)  # by the next leader's clock
    assert checkpoint_writer.publish(folder, again) == folder.path(NEW)
    assert open_checkpoint(folder, NEW).manifest == manifest


def test_what_another_leader_has_published_is_flushed_before_it_is_told_durable(folder, monkeypatch) -> None:
    """That one may have died before it came to it."""
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(str(Path(f"/proc/self/fd/{file}").readlink())))
    checkpoint_writer.publish(folder, open_checkpoint(folder, NEW).manifest)
    assert flushed[-1] == str(at(folder))


def test_two_leaders_cannot_publish_different_ones_under_one_name(folder) -> None:
    manifest = write(folder, NEW)  # the same step again, its parts beside those that are durable
    assert [part.file for part in manifest.parts] == [f"part-000{n}-of-0003.1.safetensors" for n in range(3)]
    with pytest.raises(AlreadyThere, match=r"another checkpoint lies at .*: it stays"):
        checkpoint_writer.publish(folder, manifest)
    check_newest(folder)


def test_a_manifest_is_not_written_before_its_parts(folder) -> None:
    name = CheckpointName(1, 1, 30)
    manifest = write(folder, name)
    (at(folder, name) / PART).unlink()
    with pytest.raises(CheckpointError, match=PART):
        checkpoint_writer.publish(folder, manifest)
    assert not (at(folder, name) / "manifest.json").exists()


def test_a_manifest_goes_to_its_own_job(folder, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="job mnist cannot lie with those of job other"):
        checkpoint_writer.publish(folder_at(tmp_path, "other"), open_checkpoint(folder, NEW).manifest)


def test_a_part_has_the_bytes_of_its_slices(folder) -> None:
    slices = open_checkpoint(folder, NEW).manifest.parts[1].tensors
    tensors = {one.name: one for one in TENSORS}
    with pytest.raises(CheckpointError, match="has 4096 bytes, and 4095 have come for it"):
        checkpoint_writer.write_part(folder, folder.title(NEW, 1, 3), slices, tensors, [memoryview(bytes(4095))])


def test_the_checksum_is_that_of_what_was_written_whatever_becomes_of_the_memory(folder, monkeypatch) -> None:
    name = CheckpointName(1, 1, 30)
    slices = write(folder, name, parts=1).parts[0].tensors
    memory = bytearray(sum(piece.bytes for piece in slices))
    real = os.write

    def changing(file: int, chunk: memoryview) -> int:
        memory[:] = b"\xff" * len(memory)
        return real(file, chunk)

    monkeypatch.setattr(os, "write", changing)
    by_name = {one.name: one for one in TENSORS}
    stored = checkpoint_writer.write_part(folder, folder.title(name, 0, 1), slices, by_name, [memoryview(memory)])
    raw = (at(folder, name) / stored.file).read_bytes()
    assert stored.checksum == checksum_of(raw)


def test_each_life_has_a_number_of_its_own(tmp_path) -> None:
    folder, lives = folder_at(tmp_path), list[int]()
    threads = [threading.Thread(target=lambda: lives.append(checkpoint_writer.begin_life(folder))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lives) == list(range(1, 9))
    save(folder, CheckpointName(11, 1, 5))
    assert checkpoint_writer.begin_life(folder) == 12
    assert folder.names() == [CheckpointName(11, 1, 5)]


# ---------------------------------------------------------------------------------------------------------- pruning


def test_the_newest_are_kept(folder) -> None:
    for step in (30, 40, 50):
        save(folder, CheckpointName(1, 1, step))
    found = prune(folder, 2)
    assert [name.step for name in found.kept] == [50, 40]
    assert [name.step for name in found.removed] == [30, 20, 10]
    assert [name.step for name in folder.names()] == [50, 40]
    assert prune(folder, 0).kept == (CheckpointName(1, 1, 50),)  # at least one


def test_nothing_goes_while_no_newer_one_verifies(folder) -> None:
    (at(folder) / PART).write_bytes(b"torn")
    (at(folder, OLD) / PART).write_bytes(b"torn")
    assert prune(folder, 1) == ((), ())
    assert folder.names() == [NEW, OLD]


def test_a_broken_one_does_not_count_as_kept(folder) -> None:
    save(folder, CheckpointName(1, 1, 30))
    (at(folder) / PART).write_bytes(b"torn")
    found = prune(folder, 2)
    assert found.kept == (CheckpointName(1, 1, 30), OLD)
    assert folder.names() == [CheckpointName(1, 1, 30), NEW, OLD]  # the broken one is there to be looked at
    assert prune(folder, 1).removed == (NEW, OLD)


def test_remains_of_unfinished_ones_go_unless_they_are_newer(folder) -> None:
    before, after, other = CheckpointName(1, 1, 15), CheckpointName(1, 1, 25), CheckpointName(2, 1, 5)
    for name in (before, after, other):
        write(folder, name)
        (at(folder, name) / ".part-0000-of-0003.safetensors.0123abcd.tmp").write_bytes(b"half")
    assert prune(folder, 5).removed == (before,)
    assert folder.names() == [other, after, NEW, OLD]
    save(folder, CheckpointName(2, 1, 9))
    assert set(prune(folder, 5).removed) == {after, other}


def test_what_people_have_put_there_stays(folder) -> None:
    (at(folder, OLD) / "notes.txt").write_text("the good one")
    assert prune(folder, 1).removed == (OLD,)
    assert [path.name for path in at(folder, OLD).iterdir()] == ["notes.txt"]
    assert newest(folder).checkpoint.manifest.name == NEW


# ------------------------------------------------------------------------------------------------------------ paths


def test_a_path_is_a_folder_of_jobs_of_one_job_or_a_checkpoint(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path), f"{tmp_path}/mnist", f"{tmp_path}/mnist/", "mnist", ".", f"file://{tmp_path}"):
        assert chosen(look(path)).checkpoint.manifest.name == NEW, path
    for path in (f"{tmp_path}/mnist/{OLD}", f"mnist/{OLD}/", f"file://{tmp_path}/mnist/{OLD}"):
        assert chosen(look(path)).checkpoint.manifest.name == OLD, path


def test_of_several_jobs_one_must_be_named(folder, tmp_path) -> None:
    save(folder_at(tmp_path, "other"), OLD)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has checkpoints of jobs mnist, other: name the folder of one of them"):
        chosen(look(str(tmp_path)))
    assert chosen(look(str(tmp_path), "other")).checkpoint.manifest.job == "other"
    with pytest.raises(UsageError, match=r"no checkpoint of job third in .*; there are those of mnist, other"):
        look(str(tmp_path), "third")


def test_what_was_asked_for_by_name_is_not_replaced_by_an_older_one(folder, tmp_path) -> None:
    (at(folder) / PART).write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="is broken"):
        chosen(look(folder.path(NEW)))
    (at(folder, OLD) / PART).write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"no checkpoint of job mnist in .* is durable; .*20 is broken"):
        chosen(look(str(tmp_path)))
    with pytest.raises(UsageError, match=r"there is no checkpoint in .*nothing"):
        look(str(tmp_path / "nothing"))


def test_files_are_private_to_their_user(folder, tmp_path) -> None:
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_contents_of_the_tests_differ_from_step_to_step() -> None:
    assert content(10, "layer.bias", 160) != content(20, "layer.bias", 160)
