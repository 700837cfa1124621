"""Election under chaos: six contenders on a ZooKeeper or etcd, one server and three, or edl's own, planned faults.

    python -m tests.soaks.election [--seconds 60] [--json]      # exit 1 if a property does not hold
    python -m tests.soaks.election --coordinator etcd           # on etcd, or embedded; all: one after the other
    python -m tests.soaks.election --unfenced                   # must fail: shows that the check can

Contenders are processes (`election_contender.py`), since a frozen leader must be one. Every leader writes to one log in
ZooKeeper, whose order is the order in which writes were accepted; the verdict reads that log and nothing else about it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from edl.coordination.election import read_leader
from edl.coordination.store import Link, Store, connect
from tests.soaks.election_chaos import SERVICES, SETTLE_S, Chaos, Contender
from tests.soaks.election_contender import LOG, ROOT

HANDOVER_GOAL_MS = 50.0
SIZES = ("standalone", "ensemble")
KINDS = tuple(dict.fromkeys(kind for kind, _ in SERVICES))


def handovers_ms(contenders: list[Contender]) -> list[float]:
    """From a leader's decision to resign to the next reign of any daemon."""
    begun = sorted(at for contender in contenders for _, at in contender.reigns)
    resigned = [at for contender in contenders for at in contender.resigned_at]
    return [1000 * (next(at for at in begun if at > left) - left) for left in resigned if begun[-1] > left]


def properties(log: list[tuple[int, str]], reigns: list[tuple[int, str]]) -> dict[str, bool]:
    """What must hold of the accepted writes in their order, and of the terms that contenders believed to have."""
    terms = [term for term, _ in log]
    writers = {(term, ident) for term, ident in log}
    return {
        "one writer per term": len(writers) == len(set(terms)),
        "terms ordered in the log": all(earlier <= later for earlier, later in itertools.pairwise(terms)),
        "one contender per term": len(reigns) == len({term for term, _ in reigns}),
        "only elected ones wrote": writers <= set(reigns),
    }


async def read_log(store: Store) -> list[tuple[int, str]]:
    names = await store.children(LOG)
    nodes = await asyncio.gather(*(store.read(f"{LOG}/{name}") for name in names))
    return [tuple(json.loads(node.value)) for node in nodes]


async def connected(store: Store) -> None:
    """Wait until this store, too, is over the last fault."""
    back = asyncio.Event()
    with contextlib.closing(store.watch_link(lambda link: back.set() if link is Link.CONNECTED else None)):
        async with asyncio.timeout(SETTLE_S):
            while store.link is not Link.CONNECTED:
                back.clear()
                await back.wait()


async def candidates_become(store: Store, number: int) -> bool:
    """Whether so many nodes stand before long: what a lost session left goes when its time is out."""
    folder, changed = f"{ROOT}/candidates", asyncio.Event()
    with contextlib.closing(store.watch(folder, changed.set)), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while len(await store.children(folder)) != number:
                await changed.wait()
                changed.clear()
            return True
    return False


async def measure(name: str, service: Any, args: argparse.Namespace) -> dict[str, Any]:
    chaos = Chaos(service, args)
    coordinator = await service.start()
    store = await connect(coordinator, 30.0, connect_timeout_s=30.0)
    recovered = True
    try:
        await store.create(LOG)
        try:
            await chaos.run(coordinator)
        except TimeoutError:
            recovered = False
        await connected(store)
        all_stand = await candidates_become(store, len(chaos.contenders))
        leaders = [contender.ident for contender in chaos.contenders if contender.term is not None]
        recorded = await read_leader(store, ROOT)
        await asyncio.gather(*(contender.quit() for contender in chaos.contenders))
        none_left = await candidates_become(store, 0)
        log = await read_log(store)
    finally:
        for contender in chaos.contenders:
            contender.kill()
        await store.close()
        await service.stop()
    counts = sum((contender.counts for contender in chaos.contenders), Counter[str]())
    reigns = [(term, contender.ident) for contender in chaos.contenders for term, _ in contender.reigns]
    handover = handovers_ms(chaos.contenders)
    held = properties(log, reigns) | {
        "one leader at the end": recorded is not None and leaders == [recorded.ident],
        "one node per contender, and none left behind": all_stand and none_left,
        "no accepted write lost": len(log) >= counts["accepted"],
        "settled after every fault": recovered,
        f"clean hand-over under {HANDOVER_GOAL_MS:g} ms": bool(handover) and median(handover) < HANDOVER_GOAL_MS,
    }
    return {
        "service": name,
        "seconds": args.seconds,
        "contenders": args.contenders,
        "session_timeout_s": args.session_timeout,
        "fenced": not args.unfenced,
        "held": held,
        "terms": len(reigns),
        "writes": dict(counts),
        "log": len(log),
        "faults": dict(chaos.faults),
        "recovery_median_s": {fault: round(median(times), 3) for fault, times in chaos.recovery_s.items()},
        "handover_ms": {
            "n": len(handover),
            "median": round(median(handover), 1) if handover else None,
            "max": round(max(handover), 1) if handover else None,
        },
    }


def show(result: dict) -> None:
    fence = "" if result["fenced"] else ", WITHOUT A FENCE"
    print(f"\n{result['service']}: {result['contenders']} contenders, {result['seconds']:g} s of chaos{fence}")
    print("  faults    " + ", ".join(f"{count} {fault}" for fault, count in result["faults"].items()))
    print("  settled   " + ", ".join(f"{fault} {time_s} s" for fault, time_s in result["recovery_median_s"].items()))
    writes = ", ".join(f"{count} {kind}" for kind, count in result["writes"].items())
    print(f"  terms     {result['terms']}; writes: {writes}; {result['log']} in the log")
    handover = result["handover_ms"]
    print(f"  hand-over {handover['median']} ms median, {handover['max']} ms at most, of {handover['n']} resignations")
    for name, held in result["held"].items():
        print(f"  {'holds ' if held else 'BROKEN'}    {name}")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos on each service (default 60)")
    parser.add_argument("--only", choices=SIZES, help="run on one of the two services only")
    parser.add_argument("--coordinator", choices=[*KINDS, "all"], default="zookeeper")
    parser.add_argument("--contenders", type=int, default=6)
    parser.add_argument("--session-timeout", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unfenced", action="store_true", help="leaders write without the fence: the check must fail")
    parser.add_argument("--json", action="store_true", help="one JSON object per service")
    args = parser.parse_args()
    wanted = [
        (kind, size) for kind, size in SERVICES if args.coordinator in {"all", kind} and (args.only or size) == size
    ]
    if not wanted:
        parser.error(f"there is no {args.only} of {args.coordinator}: it is one server")
    held = True
    for kind, size in wanted:
        with tempfile.TemporaryDirectory(prefix="edl-chaos-") as folder:
            result = await measure(f"{kind}, {size}", SERVICES[kind, size](Path(folder)), args)
        print(json.dumps(result), flush=True) if args.json else show(result)
        held = held and all(result["held"].values())
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
