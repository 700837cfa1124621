"""Stores in which torch's process groups look for each other: edl's own, so that none of torch's has to listen.

A group's constructor writes where its rank listens, under its rank, and reads what the others have written. Nothing
else is asked of a store.

Owns: the two ways in which what is written reaches the others. Does not own: the groups (`edl.torch.process_groups`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

from edl.collectives.rendezvous_client import RendezvousClient

LENGTH_BYTES = 4


class _RankStore(Store):
    """The store of a group that is being formed. It is called on the thread that forms the group."""

    def set(self, key: str, value: Any) -> None:
        """Raises RingBroken."""
        self._write(_rank(key), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Raises RingBroken."""
        return self._read(_rank(key))

    def check(self, keys: list[str]) -> bool:
        raise NotImplementedError("no group of torch's has asked for that")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: `get` waits until a key is there, so that each is asked for once."""

    def _write(self, rank: int, row: bytes) -> None:
        raise NotImplementedError

    def _read(self, rank: int) -> bytes:
        raise NotImplementedError


class DaemonStore(_RankStore):
    """Pass rows on by the members' daemons."""

    def __init__(self, asking: RendezvousClient, own_rank: int, heard: Callable[[int, bytes], None]) -> None:
        """`heard` is told each row, also our own, before anything comes of it."""
        super().__init__()
        self._asking = asking
        self._own_rank = own_rank
        self._heard = heard
        self._own = b""

    def _write(self, rank: int, row: bytes) -> None:
        self._own = row
        self._heard(rank, row)
        self._asking.write(rank, row)

    def _read(self, rank: int) -> bytes:
        row = self._own if rank == self._own_rank else self._asking.read(rank)
        self._heard(rank, row)
        return row


class PeerStore(_RankStore):
    """Pass rows on by a ring that the members have already. `beside`: what each member has said besides, by rank."""

    def __init__(self, of_all: Callable[[bytes], list[bytes]], says: bytes) -> None:
        """`of_all` gives each member's bytes, by rank. `says`: what goes along with ours."""
        super().__init__()
        self._of_all = of_all
        self._says = says
        self._rows: list[bytes] = []
        self.beside: list[bytes] = []

    def _write(self, rank: int, row: bytes) -> None:  # noqa: ARG002 - what it gives is by rank
        found = self._of_all(len(row).to_bytes(LENGTH_BYTES, "little") + row + self._says)
        ends = [LENGTH_BYTES + int.from_bytes(one[:LENGTH_BYTES], "little") for one in found]
        self._rows = [one[LENGTH_BYTES:end] for one, end in zip(found, ends, strict=True)]
        self.beside = [one[end:] for one, end in zip(found, ends, strict=True)]

    def _read(self, rank: int) -> bytes:
        return self._rows[rank]


def _rank(key: str) -> int:
    """A key has gloo's folder in front of it."""
    return int(key.rpartition("/")[2])
