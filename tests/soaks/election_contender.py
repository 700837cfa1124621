"""One contender of `tests/soaks/election.py`: a process that stands for election and, when it leads, writes a log.

It is stubborn: a reign's writer goes on until a write is *refused*. It heeds neither the news that the reign is over
nor a broken connection, as a leader paused between two instructions would not. So only the fence stands between two
leaders, and `--unfenced` shows what happens without.

Commands come in as lines (expire, resign, quit), news go out as JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from benchmarks.harness import lines, tell
from edl.coordination import coordinator_settings
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.election import Candidate, Reign
from edl.coordination.store import Create, Link, Store, connect
from edl.errors import ConfigError, Fenced, StoreUnavailable
from tests.soaks.coordinator_faults import expire

ROOT = "/chaos/election"
LOG = "/chaos/log"
WRITE_EVERY_S = 0.01
UNFENCED_WRITES = 100  # after the reign ended; then even a stubborn one gives up


class Contender:
    def __init__(self, store: Store, coordinator: Coordinator, ident: str, *, fenced: bool) -> None:
        self._store = store
        self._coordinator = coordinator
        self._ident = ident
        self._fenced = fenced
        self._candidate = Candidate(store, ROOT, ident, self._changed)
        self._writers: set[asyncio.Task[None]] = set()
        self._counts = {"accepted": 0, "refused": 0, "unanswered": 0}

    async def run(self) -> None:
        self._store.watch_link(lambda link: tell("link", link=link.value))
        tell("link", link=self._store.link.value)
        self._candidate.stand()
        async for command in lines(sys.stdin):
            match command:
                case "expire":
                    await expire(self._store, self._coordinator)
                case "resign":
                    tell("resigning")
                    await self._candidate.resign()
                    self._candidate.stand()
                case "quit":
                    break
        await self._candidate.resign()
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)
        tell("counts", **self._counts)

    def _changed(self, reign: Reign | None) -> None:
        tell("reign", term=reign.term if reign else None)
        if reign is not None:
            writer = asyncio.get_running_loop().create_task(self._write(reign))
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)

    async def _write(self, reign: Reign) -> None:
        entry = Create(f"{LOG}/e-", json.dumps([reign.term, self._ident]).encode(), sequence=True)
        patience = UNFENCED_WRITES
        while patience:
            try:
                await self._store.commit([entry], fence=reign.fence if self._fenced else None)
                self._counts["accepted"] += 1
            except Fenced:
                self._counts["refused"] += 1
                return
            except StoreUnavailable:
                self._counts["unanswered"] += 1
            if not self._fenced and self._candidate.reign != reign and self._store.link is Link.CONNECTED:
                patience -= 1
            await asyncio.sleep(WRITE_EVERY_S)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ident")
    parser.add_argument("--session-timeout", type=float, required=True)
    parser.add_argument("--unfenced", action="store_true")
    args = parser.parse_args()
    coordinator = coordinator_settings.from_environment()
    if coordinator is None:
        parser.error("EDL_COORDINATOR is not set")
    try:
        store = await connect(coordinator, args.session_timeout, connect_timeout_s=30)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        await Contender(store, coordinator, args.ident, fenced=not args.unfenced).run()
    finally:
        await store.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
