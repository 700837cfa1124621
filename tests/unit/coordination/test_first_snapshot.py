"""The snapshot that a local ZooKeeper begins with, by its bytes; a real server loads it in `test_closed_server`."""

from __future__ import annotations

import struct
import zlib

import pytest

from edl.coordination.coordinator_settings import Digest
from edl.coordination.zookeeper_server import RESERVED, holds_data, put_first, rights_of, snapshot_of

CLOSED = snapshot_of(*rights_of(Digest("edl", "a" * 64)))


@pytest.fixture
def kept(tmp_path):
    """Where a ZooKeeper has its snapshots, and its logs of changes."""
    folder = tmp_path / "version-2"
    folder.mkdir()
    return folder


def test_with_a_digest_all_of_the_tree_opens_to_that_digest_alone():
    root, reserved = rights_of(Digest("edl", "a" * 64))
    assert root == reserved
    assert (root.permissions, root.scheme) == (31, "digest")
    assert root.identity.startswith("edl:") and "a" * 64 not in root.identity
    assert b"world" not in CLOSED


def test_without_one_clients_still_change_nothing_of_zookeepers_own():
    root, reserved = rights_of(None)
    assert (root.permissions, reserved.permissions, reserved.identity) == (31, 1, "anyone")


def test_it_ends_with_the_checksum_that_zookeeper_compares():
    content, end = CLOSED[:-13], CLOSED[-13:]
    assert struct.unpack(">qi", end[:12]) == (zlib.adler32(content), 1)
    assert all(path.encode() in content for path in RESERVED)


def test_it_is_put_where_no_tree_is_and_is_whole(tmp_path):
    put_first(tmp_path, CLOSED)
    assert [path.name for path in (tmp_path / "version-2").iterdir()] == ["snapshot.0"]
    assert (tmp_path / "version-2" / "snapshot.0").read_bytes() == CLOSED
    assert holds_data(tmp_path)


@pytest.mark.parametrize("name", ["snapshot.2f", "log.1"])
def test_a_tree_that_is_there_is_left_alone(tmp_path, kept, name):
    """Of a log of changes alone, ZooKeeper says that its snapshot is gone, and does not start."""
    (kept / name).write_bytes(CLOSED)
    put_first(tmp_path, b"another")
    assert [path.name for path in kept.iterdir()] == [name]


@pytest.mark.parametrize("torn", [b"", CLOSED[:-1], CLOSED[:20]])
def test_a_snapshot_without_its_end_is_none(tmp_path, kept, torn):
    """ZooKeeper would pass over it, and begin with a tree that is open to all."""
    (kept / "snapshot.0").write_bytes(torn)
    assert not holds_data(tmp_path)
    put_first(tmp_path, CLOSED)
    assert (kept / "snapshot.0").read_bytes() == CLOSED
