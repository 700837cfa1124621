"""What a trainer without Horovod asks its daemon while a ring forms."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from edl.collectives.rendezvous import Rendezvous, RendezvousClient
from edl.collectives.rendezvous_board import TORCH
from edl.errors import RingBroken
from edl.protocol.leader_messages import Phase
from edl.protocol.trainer_messages import TrainerStatus
from tests.model.address_meeting import Gathering
from tests.unit.collectives.test_torch_addresses import row


class Daemon:
    """What the trainer has said."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.parcels: Sequence[bytes] = ()

    def began(self, mesh: str) -> None:
        self.begun.append(mesh)

    def wrote(self, mesh: str, parcels: Sequence[bytes]) -> None:
        self.parcels = parcels


class Served:
    """Rank 1 of three; the daemon's half is on the test's loop, the trainer's in threads."""

    def __init__(self, timeout_s: float = 10.0, hold_s: float = 0.1) -> None:
        self.daemon = Daemon()
        self.server = Rendezvous("w1", 1, 3, self.daemon, hold_s=hold_s)
        self.asking = RendezvousClient(self.server.open(), TORCH, timeout_s)

    async def is_asked(self) -> None:
        while not self.server.awaited:  # noqa: ASYNC110 - the server has no event for what only tests look at
            await asyncio.sleep(0.01)

    async def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(act, *arguments)


async def test_rows_go_out_and_come_in() -> None:
    served = Served()
    await served.do(served.asking.write, 1, row(1, size=3))
    assert served.daemon.begun == [TORCH]
    assert [bool(parcel) for parcel in served.daemon.parcels] == [True, False, True]
    reading = asyncio.create_task(served.do(served.asking.read, 2))
    await served.is_asked()
    await asyncio.sleep(0.15)  # longer than an answer waits: it is asked again
    served.server.deliver(TORCH, {2: served.daemon.parcels[2]})
    assert len(await reading) == len(row(1, size=3))
    await served.do(served.asking.finish, 1)
    await served.server.stop()


async def test_what_is_waited_for_is_given_up() -> None:
    served = Served()
    await served.do(served.asking.write, 1, row(1, size=3))
    threading.Timer(0.2, served.asking.give_up, ["it was aborted"]).start()
    began = time.monotonic()
    with pytest.raises(RingBroken, match="it was aborted"):
        await served.do(served.asking.read, 2)
    assert time.monotonic() - began < 5
    with pytest.raises(RingBroken, match="it was aborted"):
        await served.do(served.asking.finish, 1)
    await served.server.stop()


async def test_waiting_has_an_end() -> None:
    served = Served(timeout_s=0.3)
    with pytest.raises(RingBroken, match=r"not all members came within 0\.3 s"):
        await served.do(served.asking.read, 2)
    await served.server.stop()


async def test_a_daemon_that_is_through_with_the_ring_frees_its_trainer() -> None:
    served = Served(hold_s=20.0)
    reading = asyncio.create_task(served.do(served.asking.read, 2))
    await served.is_asked()
    await served.server.stop()
    with pytest.raises(RingBroken, match="its daemon did not answer"):
        await reading


async def test_members_of_two_sorts_of_ring_learn_that_at_once() -> None:
    """A trainer that asks by HTTP as Horovod does, and one that asks for torch's groups."""
    gathering = Gathering(["w0", "w1"])
    places = await gathering.open()
    groups = RendezvousClient(places[0].rendezvous, TORCH, 30.0)
    horovod = RendezvousClient(places[1].rendezvous, "global", 30.0)
    for asking, rank, own in ((groups, 0, row(0, size=2)), (horovod, 1, bytes(136))):
        await asyncio.to_thread(asking.write, rank, own)
    for asking, rank, other in ((groups, 1, "w1 .* of Horovod"), (horovod, 0, "w0 .* of torch's groups")):
        with pytest.raises(RingBroken, match=f"{other}: say the same --ring on all workers"):
            await asyncio.to_thread(asking.read, rank)
        with pytest.raises(RingBroken, match="say the same --ring on all workers"):
            await asyncio.to_thread(asking.read, rank)
    for daemon in gathering.daemons:  # Horovod would only say that none has answered
        broke = TrainerStatus(phase=Phase.BROKEN, generation=1, reason="no answer came")
        of_another = replace(broke, generation=2)
        prepared = replace(of_another, prepared=(1, "no answer came"))
        daemon.end(1)  # it is told again of what is over
        assert "say the same --ring on all workers" in daemon.explained(broke).reason
        assert daemon.explained(of_another) == of_another
        assert "say the same --ring on all workers" in daemon.explained(prepared).prepared[1]
        for fine in (replace(of_another, prepared=(1, "")), replace(broke, phase=Phase.TRAINING)):
            assert daemon.explained(fine) == fine
    await gathering.stop()


async def test_what_the_daemon_does_not_take() -> None:
    served = Served()
    with pytest.raises(RingBroken, match="400"):
        await served.do(served.asking.write, 1, b"no row")
    with pytest.raises(RingBroken, match="403"):
        await served.do(served.asking.read, 3)
    await served.server.stop()
