"""The leader and its ledger at size: a thousand simulated workers over real sockets, and a ledger of 10^9 samples.

    python -m benchmarks.ledger  # --workers 1000, --seconds 30, --steps-per-s 3, --scrape-every 5, --only, --json

One real leader in a process of its own, a real ZooKeeper, and workers that talk to the leader as daemons do, each over
a connection of its own (`ledger_workers.py`). What is counted and timed:

- *waits*: a worker asked for the batch of its next step, and its lease was not there. Must be none.
- *grants*: the leader grants all workers more steps at once, when a report says that half of the lead times is used up,
and
  each worker hears of it when its call for orders ends (at once, if it would run dry before that). From that moment
  until the new leases are in the worker's hands: one figure for each grant and worker. `decided`, `written` (the
  durable write at the coordinator, I9) and `published` are the leader's own parts, from the report's arrival; *all* is
  from telling of that step until a worker has its leases, most of which is waiting for its turn.
- *asked*: a call for orders that need not be held, as of a daemon that was just started anew: from the call until its
  leases are there, all day long, whatever else goes on.
- *scraped*, with `--scrape-every`: the leader's metrics, from asking for them over HTTP until they are read, and what
  making them takes of a processor: in the leader's loop, and in a thread.
- *cores*: CPU time of the leader's process per elapsed time, from the first step on.

Leader, workers, ZooKeeper and whatever else the machine does share its cores: look at `uptime`, printed with it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import secrets
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.ledger_leader import SetUp
from edl.coordination import zookeeper
from edl.coordination.election import read_leader
from edl.coordination.zookeeper_server import LocalServer
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.core.data.permutation import samples_at
from edl.core.data.sample_ledger import Ledger
from edl.daemon.metrics.metrics_server import KEPT_S
from edl.host.credentials import digest_of
from edl.protocol import leader_messages, node_paths
from edl.protocol.data_nouns import DataSpec, LedgerSnapshot, Range
from edl.transport.rpc import Client

JOB = "size"
READ_LIMIT = 2**28  # a process tells all its figures in one line
JOIN_S = 180.0
SOON_S = 2.0
ASK_EVERY_S = 0.05


class Child:
    """A process that says JSON lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, about: SetUp) -> Child:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"benchmarks.{module}",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment, limit=READ_LIMIT,
        )  # fmt: skip
        child = cls(process)
        child.command(msgspec.json.encode(about).decode())
        return child

    def command(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n".encode())

    async def told(self, what: str) -> dict:
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended before it said {what!r}: see above")
        news = json.loads(line)
        assert news["what"] == what, news
        return news

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def ask(about: SetUp, until: float, worker: str) -> list[float]:
    """Seconds that each of many calls for leases took, made now and then in the name of `worker`."""
    store = await zookeeper.connect(about.coordinator(), 30.0)
    leader = await read_leader(store, node_paths.root(about.job))
    client = Client(about.secret.encode(), about.job, worker, leader.ident.rpartition(" ")[2])
    took = []
    while time.monotonic() < until:
        began = time.monotonic()
        reply = await client.call(
            leader_messages.Await(0, 0, 0.0), leader_messages.Reply, term=leader.term, deadline_s=10.0
        )
        took.append(time.monotonic() - began)
        assert reply.orders.shares[0].leases
        await asyncio.sleep(ASK_EVERY_S)
    await client.close()
    await store.close()
    return took


async def scrape(url: str, until: float, every_s: float) -> list[tuple[float, int]]:
    """Seconds and bytes of each scrape."""

    def one() -> tuple[float, int]:
        began = time.monotonic()
        with urllib.request.urlopen(url, timeout=30) as answer:
            body = answer.read()
        return time.monotonic() - began, len(body)

    found = []
    while time.monotonic() + every_s < until:
        await asyncio.sleep(every_s)
        found.append(await asyncio.to_thread(one))
    return found


async def shown_at(leader: Child) -> str:
    leader.command("show")
    url: str = (await leader.told("shown"))["url"]
    return url


async def run_crowd(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    secret = secrets.token_hex(32)
    server = await LocalServer.start(folder / "zk", digest=digest_of(secret.encode()))
    children: list[Child] = []
    try:
        hosts = ",".join(f"{host}:{port}" for host, port in server.coordinator.endpoints)
        about = SetUp(hosts, JOB, secret, args.session_timeout, args.workers, steps_per_s=args.steps_per_s)
        leader = await Child.start("ledger_leader", about)
        children.append(leader)
        await leader.told("reigning")
        began = time.monotonic()
        cuts = [args.workers * i // args.processes for i in range(args.processes + 1)]
        for first, last in itertools.pairwise(cuts):
            of_them = msgspec.structs.replace(about, first=first, last=last)
            children.append(await Child.start("ledger_workers", of_them))
        return await train(args, about, children, began)
    finally:
        for child in reversed(children):  # the leader last: it is called until then
            await child.end()
        await server.stop()


async def train(args: argparse.Namespace, about: SetUp, children: list[Child], began: float) -> dict[str, object]:
    leader, *crowds = children
    async with asyncio.timeout(JOIN_S):
        for crowd in crowds:
            await crowd.told("holding")
    joined_s = time.monotonic() - began
    url = await shown_at(leader) if args.scrape_every else ""
    start = time.monotonic() + SOON_S
    until = start + args.seconds
    for crowd in crowds:
        crowd.command(f"{start} {until}")
    await asyncio.sleep(start - time.monotonic())
    leader.command("measure")
    scraping = asyncio.ensure_future(scrape(url, until, args.scrape_every)) if url else None
    asked = await ask(about, until, "w00000000")
    scrapes = [] if scraping is None else await scraping
    leader.command("report")
    led = await leader.told("leader")
    spent = [(await crowd.told("spent"))["cores"] for crowd in crowds]
    parts = [await crowd.told("workers") for crowd in crowds]
    leader.command("turns")
    led["turns"] = (await leader.told("turns"))["turns"]
    return summary(args, led, parts, start) | {
        "joined_s": joined_s,
        "asked_ms": quantiles(asked),
        "scraped_ms": quantiles([took for took, _ in scrapes]),
        "scraped_bytes": max((size for _, size in scrapes), default=0),
        "scrape_loop_ms": quantiles(led["scrape_loop_s"]),
        "scrape_text_ms": quantiles(led["scrape_text_s"]),
        "worker_cores": spent,
        "load": os.getloadavg()[0],
    }


def summary(args: argparse.Namespace, led: dict, parts: list[dict], start: float) -> dict[str, object]:
    heard = {worker: grants for part in parts for worker, grants in part["grants"].items()}
    turns = {(worker, version): turn for worker, version, turn in led["turns"]}
    told = {worker: steps for part in parts for worker, steps in part["told"].items()}
    grants = [grant for grant in led["grants"] if grant["arrived"] >= start and grant["published"]]
    delays, spread, missing = [], [], 0
    for grant in grants:
        due = told[grant["worker"]][str(grant["step"])]
        for worker, brought in heard.items():
            version, at = next((one for one in brought if one[0] >= grant["version"]), (0, 0.0))
            missing += not version
            if version:
                spread.append(at - due)
                delays.append(at - turns[worker, version])
    return {
        "workers": args.workers,
        "steps_per_s": args.steps_per_s,
        "seconds": args.seconds,
        "steps": sum(part["steps"] for part in parts),
        "least_step": min(part["least_step"] for part in parts),
        "waits": sum(part["waits"] for part in parts),
        "waited_s": sum(part["waited_s"] for part in parts),
        "least_ahead": min(part["least_ahead"] for part in parts),
        "late_ms": 1000 * max(part["late_s"] for part in parts),
        "grants": len(grants),
        "grants_not_heard": missing,
        "grant_ms": quantiles(delays),
        "all_ms": quantiles(spread),
        "decided_ms": quantiles([grant["decided"] - grant["arrived"] for grant in grants]),
        "written_ms": quantiles([grant["written"] - grant["arrived"] for grant in grants]),
        "published_ms": quantiles([grant["published"] - grant["arrived"] for grant in grants]),
        "leader_cores": led["cores"],
        "reports_per_s": led["reports"] / led["seconds"],
        "report_ms": quantiles(led["answers_s"]),
        "writes": led["writes"],
        "record_bytes": led["record_bytes"],
        "plain_bytes": led["plain_bytes"],
        "refused": led["refused"],
    }


def quantiles(values: list[float]) -> dict[str, float | int]:
    """In milliseconds."""
    if not values:
        return {"n": 0}
    values = sorted(values)
    at = {name: values[math.ceil(part * len(values)) - 1] for name, part in (("p50", 0.5), ("p99", 0.99))}
    return {"n": len(values)} | {name: round(1000 * value, 2) for name, value in (at | {"max": values[-1]}).items()}


def show(result: dict) -> None:
    given = f"{result['workers']} workers, {result['steps_per_s']:g} steps/s, {result['seconds']:g} s of training"
    print(f"\n{given}; load of the machine {result['load']:.1f} on {os.cpu_count()} cores")
    print(f"  joined     after {result['joined_s']:.1f} s, their processes' start included")
    print(f"  record     {result['record_bytes']:,} bytes at most, packed from {result['plain_bytes']:,} of JSON")
    print(f"  steps      {result['steps']:,}, simulated workers up to {result['late_ms']:.0f} ms late")
    print(f"  waits      {result['waits']} for a lease, {result['waited_s']:.2f} s in all; ", end="")
    print(f"leased ahead: never fewer than {result['least_ahead']} steps")
    print(f"  grants     {result['grants']} for all, {result['grants_not_heard']} not heard of; ", end="")
    print(f"{result['writes']} writes to the coordinator")
    for name, meaning in TIMES.items():
        print(f"  {name:9}  {_figures(result[f'{name}_ms'])}  {meaning}")
    if result["scraped_bytes"]:
        for name, meaning in SCRAPES.items():
            print(f"  {name:11}  {_figures(result[f'{name}_ms'])}  {meaning}")
        print(f"  scraped    {result['scraped_bytes']:,} bytes")
    cores = ", ".join(f"{cores:.2f}" for cores in result["worker_cores"])
    print(
        f"  cores      leader {result['leader_cores']:.2f} at {result['reports_per_s']:.0f} reports/s; workers {cores}"
    )
    if result["refused"]:
        print(f"  refused    {result['refused']}")


TIMES = {
    "grant": "from a worker's turn until it has the leases of a grant",
    "all": "from telling of the step that makes it due until a worker has its leases",
    "decided": "from that report's arrival until the machine had granted",
    "written": "... until that was durable",
    "published": "... until the answers began",
    "asked": "from a call for orders until its leases are there",
    "report": "from a report's arrival until its answer",
}


SCRAPES = {
    "scraped": "from asking for the leader's metrics until they are read",
    "scrape_loop": "of a processor for it, in the leader's loop",
    "scrape_text": "of a processor for it, in a thread",
}


def _figures(of: dict) -> str:
    if not of["n"]:
        return "none"
    return f"p50 {of['p50']:7.2f} ms  p99 {of['p99']:7.2f} ms  max {of['max']:7.2f} ms  of {of['n']}"


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of training (default 30)")
    parser.add_argument("--steps-per-s", type=float, default=3.0)
    parser.add_argument("--session-timeout", type=float, default=10.0, help="leases reach two and a half times as far")
    parser.add_argument("--processes", type=int, default=2, help="that simulate the workers (default 2)")
    parser.add_argument("--scrape-every", type=float, default=0.0, help="seconds; more than 1 (default: never)")
    parser.add_argument("--only", choices=["workers", "size"], help="one of the two parts")
    parser.add_argument("--json", action="store_true", help="one JSON object per part")
    args = parser.parse_args()
    if 0 < args.scrape_every <= KEPT_S:
        parser.error(f"--scrape-every: more than {KEPT_S:g} s, for which an answer is given again")
    held = True
    if args.only != "size":
        with tempfile.TemporaryDirectory(prefix="edl-ledger-") as folder:
            result = await run_crowd(args, Path(folder))
        print(json.dumps(result), flush=True) if args.json else show(result)
        held = not result["waits"] and not result["grants_not_heard"]
    if args.only != "workers":
        size = measure_size(args.workers)
        print(json.dumps(size), flush=True) if args.json else show_size(size)
    return 0 if held else 1


# -------------------------------------------------------------------------------------------- a large ledger, by itself


SIZE_SAMPLES = 10**9
AHEAD = 75  # steps: two and a half session time-outs of 10 s, at 3 steps/s
LOST = 40  # workers whose leases are given back, each its own piece
BATCH = 32
SIZE_TIMES = 7


def large_ledger(workers: int, samples: int = SIZE_SAMPLES) -> Ledger:
    """In its second epoch; every member holds two leases, and those of one were just given back."""
    spec = DataSpec(samples, 3, BATCH, shuffle=True, seed=7)
    before = [f"w{number:08x}" for number in range(workers)]
    trained = samples + samples // 3  # as if all of this was: how it came so far costs nothing
    begun = msgspec.structs.replace(new_ledger(spec, before).snapshot(), frontier=trained, epoch=1, ended=1)
    ledger = restored_ledger(begun)
    ledger.grant(AHEAD)
    ledger.commit(AHEAD // 2)
    ledger.grant(AHEAD + AHEAD // 2)
    every = max(1, workers // min(LOST, workers))
    after = [worker for number, worker in enumerate(before) if number % every]
    ledger.enter([*after, *(f"new{number:06x}" for number in range(workers - len(after)))], AHEAD // 2 + 1)
    ledger.validate()
    return ledger


def measure_size(workers: int) -> dict[str, object]:
    ledger = large_ledger(workers)
    snapshot = ledger.snapshot()
    value = msgspec.json.encode(snapshot)
    granted = restored_ledger(snapshot)
    grant_s = _took(lambda: granted.grant(granted.covered_step + AHEAD // 2), times=1)
    ids = Range(1, SIZE_SAMPLES // 2, SIZE_SAMPLES // 2 + BATCH)
    block = Range(1, SIZE_SAMPLES // 2, SIZE_SAMPLES // 2 + 8192)
    return {
        "samples": SIZE_SAMPLES,
        "members": len(ledger.roster),
        "leases": sum(len(member.leases) for member in snapshot.members),
        "returned_pieces": len(snapshot.returned),
        "snapshot_bytes": len(value),
        "snapshot_ms": 1000 * _took(ledger.snapshot),
        "encode_ms": 1000 * _took(lambda: msgspec.json.encode(snapshot)),
        "decode_ms": 1000 * _took(lambda: msgspec.json.decode(value, type=LedgerSnapshot)),
        "restore_ms": 1000 * _took(lambda: restored_ledger(snapshot)),
        "grant_ms": 1000 * grant_s,
        "batch_us": 1e6 * _took(lambda: samples_at(ledger.spec, ids)),
        "block_us": 1e6 * _took(lambda: samples_at(ledger.spec, block)),
    }


def show_size(result: dict) -> None:
    print(
        f"\nledger of {result['samples']:.0e} samples, shuffled, 3 epochs: {result['members']} members, "
        f"{result['leases']} leases, {result['returned_pieces']} returned pieces"
    )
    print(f"  snapshot   {result['snapshot_bytes']:,} bytes at the coordinator; taken in {_ms(result, 'snapshot')}")
    print(f"  restore    {_ms(result, 'restore')}, after decoding in {_ms(result, 'decode')}", end="")
    print(f"; encoding {_ms(result, 'encode')}")
    print(f"  grant      {_ms(result, 'grant')} for {AHEAD // 2} steps more for all, newcomers' leases included")
    print(f"  samples    {result['batch_us']:.0f} us for the ids of {BATCH}, {result['block_us']:.0f} us for 8192")


def _ms(result: dict, name: str) -> str:
    return f"{result[f'{name}_ms']:.1f} ms"


def _took(call: Callable[[], object], times: int = SIZE_TIMES) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return median(spent)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
