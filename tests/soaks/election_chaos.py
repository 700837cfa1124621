"""The services and faults of `tests/soaks/election.py`.

Owns: starting and breaking ZooKeeper, etcd or the embedded coordinator, and the contenders' processes, one planned
fault after the other, each followed by a settled election. Does not own: the verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from edl.coordination.child_server import ChildServer
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.embedded.embedded_server import LocalEmbedded
from edl.coordination.etcd.etcd_server import LocalEtcd
from edl.coordination.zookeeper_server import LocalServer
from tests.soaks.coordinator_faults import Ensemble, etcd_ensemble, zookeeper_ensemble

SETTLE_S = 60.0


class Standalone:
    """One server; its fault is to be killed and come back."""

    def __init__(self, kind: type[ChildServer], folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._server: ChildServer

    async def start(self) -> Coordinator:
        """Start it closed by a password, and an etcd at a port."""
        self._server = await self._kind.start(self._folder, digest=Digest("edl", "chaos"), address="127.0.0.1")
        return self._server.coordinator

    async def break_server(self, _: random.Random) -> None:
        self._server.signal(signal.SIGKILL)
        await self._server.wait_exit()
        await self._server.restart()

    async def stop(self) -> None:
        await self._server.stop()


class Trio:
    """Three servers, of which one at a time is killed and comes back."""

    def __init__(self, several: Callable[[Path], Ensemble], folder: Path) -> None:
        self._ensemble = several(folder)

    async def start(self) -> Coordinator:
        await self._ensemble.start()
        return self._ensemble.coordinator

    async def break_server(self, rng: random.Random) -> None:
        index = rng.randrange(len(self._ensemble.servers))
        await self._ensemble.kill(index)
        await self._ensemble.restart(index)

    async def stop(self) -> None:
        await self._ensemble.stop()


SERVICES: dict[tuple[str, str], Callable[[Path], Standalone | Trio]] = {
    ("zookeeper", "standalone"): functools.partial(Standalone, LocalServer),
    ("zookeeper", "ensemble"): functools.partial(Trio, zookeeper_ensemble),
    ("etcd", "standalone"): functools.partial(Standalone, LocalEtcd),
    ("etcd", "ensemble"): functools.partial(Trio, etcd_ensemble),
    ("embedded", "standalone"): functools.partial(Standalone, LocalEmbedded),
}


class Contender:
    """The parent's view of a contender's process."""

    def __init__(self, ident: str, process: asyncio.subprocess.Process, changed: asyncio.Event) -> None:
        self.ident = ident
        self.link = ""
        self.term: int | None = None
        self.reigns: list[tuple[int, float]] = []  # term, and when it began
        self.resigned_at: list[float] = []
        self.counts: Counter[str] = Counter()
        self.frozen = False
        self.ended = False
        self._process = process
        self._changed = changed
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while line := await self._process.stdout.readline():
            news = json.loads(line)
            match news["what"]:
                case "link":
                    self.link = news["link"]
                case "reign":
                    self.term = news["term"]
                    if self.term is not None:
                        self.reigns.append((self.term, news["at"]))
                case "resigning":
                    self.resigned_at.append(news["at"])
                case "counts":
                    self.counts.update({key: news[key] for key in ("accepted", "refused", "unanswered")})
            self._changed.set()
        self.ended = True
        self._changed.set()

    def command(self, word: str) -> None:
        self._process.stdin.write(f"{word}\n".encode())

    def freeze(self) -> None:
        self.frozen = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        self._process.send_signal(signal.SIGCONT)

    async def quit(self) -> None:
        self.command("quit")
        async with asyncio.timeout(SETTLE_S):
            await self._process.wait()
            await self._listening

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


class Chaos:
    """Faults one after the other, each followed by a settled election; some come two at a time."""

    def __init__(self, service: Any, args: argparse.Namespace) -> None:
        self._service = service
        self._args = args
        self._rng = random.Random(args.seed)
        self._changed = asyncio.Event()
        self.contenders: list[Contender] = []
        self.faults: Counter[str] = Counter()
        self.recovery_s: dict[str, list[float]] = {}

    async def run(self, coordinator: Coordinator) -> None:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        } | coordinator.environment()
        for number in range(self._args.contenders):
            await self._spawn(f"contender-{number}", environment)
        await self._settled()
        end = time.monotonic() + self._args.seconds
        bad = (
            self.expire_leader,
            self.kill_server,
            self.freeze_leader,
            self.expire_two,
            self.freeze_and_kill,
            self.freeze_and_expire,
        )
        for fault in itertools.cycle(fault for each in bad for fault in (self.resign, each)):
            if time.monotonic() > end:
                return
            began = time.monotonic()
            await fault()
            await self._settled()
            self.recovery_s.setdefault(fault.__name__, []).append(time.monotonic() - began)
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))  # let it write a little

    async def _spawn(self, ident: str, environment: dict[str, str]) -> None:
        flags = ["--session-timeout", str(self._args.session_timeout), *(["--unfenced"] if self._args.unfenced else [])]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.soaks.election_contender", ident, *flags,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        self.contenders.append(Contender(ident, process, self._changed))

    # ---------------------------------------------------------------------------------------------------- faults

    async def resign(self) -> None:
        self.faults["clean resignations"] += 1
        await self._depose(lambda leader: leader.command("resign"))

    async def expire_leader(self) -> None:
        await self._depose(self._expire)

    async def expire_two(self) -> None:
        self._expire(self._rng.choice([contender for contender in self.contenders if contender.term is None]))
        await self.expire_leader()

    def _expire(self, contender: Contender) -> None:
        self.faults["sessions expired"] += 1
        contender.command("expire")

    async def kill_server(self) -> None:
        self.faults["servers killed"] += 1
        await self._service.break_server(self._rng)

    async def freeze_leader(self) -> None:
        await self._freeze(self._settled)

    async def freeze_and_kill(self) -> None:
        await self._freeze(self.kill_server)

    async def freeze_and_expire(self) -> None:
        await self._freeze(self.expire_leader)

    async def _freeze(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self.faults["leaders frozen"] += 1
        leader = await self._depose(Contender.freeze)
        await self._settled()
        await meanwhile()
        leader.term = None  # it does not know yet; its next news may say so, or that it leads again
        leader.thaw()

    async def _depose(self, act: Callable[[Contender], None]) -> Contender:
        """Act on the leader, and wait until another reign begins."""
        leader = next(contender for contender in self.contenders if self._leads(contender))
        before = self._newest_term()
        act(leader)
        await self._until(lambda: self._newest_term() > before)
        return leader

    # ---------------------------------------------------------------------------------------------------- waiting

    async def _settled(self) -> None:
        """One leader, which is the one of the newest term, and every contender connected that is not frozen."""
        await self._until(
            lambda: (
                all(contender.frozen or contender.link == "connected" for contender in self.contenders)
                and [c.term for c in self.contenders if self._leads(c)] == [self._newest_term()]
            )
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SETTLE_S):
            while not condition():
                if ended := [contender.ident for contender in self.contenders if contender.ended]:
                    raise RuntimeError(f"{', '.join(ended)} ended on its own; see above")
                self._changed.clear()
                await self._changed.wait()

    def _leads(self, contender: Contender) -> bool:
        return contender.term is not None and not contender.frozen

    def _newest_term(self) -> int:
        return max((term for contender in self.contenders for term, _ in contender.reigns), default=0)
