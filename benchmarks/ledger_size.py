"""How large a ledger of a billion samples is, and how long it takes: pure, for `benchmarks/ledger.py`.

Owns: making such a ledger as a job would, with leases a lead times ahead and pieces that lost workers gave back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import msgspec

from edl.core.data.ledger import Ledger
from edl.core.data.permutation import samples_at
from edl.protocol.data import DataSpec, Range
from edl.protocol.ledger import LedgerSnapshot

SAMPLES = 10**9
AHEAD = 75  # steps: two and a half session time-outs of 10 s, at 3 steps/s
LOST = 40  # workers whose leases are given back, each its own piece
BATCH = 32
TIMES = 7


def large_ledger(workers: int, samples: int = SAMPLES) -> Ledger:
    """In its second epoch; every member holds two leases, and those of one were just given back."""
    spec = DataSpec(samples, 3, BATCH, shuffle=True, seed=7)
    before = [f"w{number:08x}" for number in range(workers)]
    ledger = Ledger(spec, before)
    ledger._pool.frontier = samples + samples // 3  # as if all of this was trained: how it came so far costs nothing
    ledger._epoch = ledger._ended = 1
    ledger.grant(AHEAD)
    ledger.commit(AHEAD // 2)
    ledger.grant(AHEAD + AHEAD // 2)
    every = max(1, workers // min(LOST, workers))
    after = [worker for number, worker in enumerate(before) if number % every]
    ledger.enter([*after, *(f"new{number:06x}" for number in range(workers - len(after)))], AHEAD // 2 + 1)
    ledger.validate()
    return ledger


def measure(workers: int) -> dict[str, object]:
    ledger = large_ledger(workers)
    returned, snapshot = len(ledger._pool.returned), ledger.snapshot()
    value = msgspec.json.encode(snapshot)
    granted = Ledger.restore(snapshot)
    grant_s = _took(lambda: granted.grant(granted.covered_step + AHEAD // 2), times=1)
    ids = Range(1, SAMPLES // 2, SAMPLES // 2 + BATCH)
    block = Range(1, SAMPLES // 2, SAMPLES // 2 + 8192)
    return {
        "samples": SAMPLES,
        "members": len(ledger.roster),
        "leases": sum(len(member.leases) for member in snapshot.members),
        "returned_pieces": returned,
        "snapshot_bytes": len(value),
        "snapshot_ms": 1000 * _took(ledger.snapshot),
        "encode_ms": 1000 * _took(lambda: msgspec.json.encode(snapshot)),
        "decode_ms": 1000 * _took(lambda: msgspec.json.decode(value, type=LedgerSnapshot)),
        "restore_ms": 1000 * _took(lambda: Ledger.restore(snapshot)),
        "grant_ms": 1000 * grant_s,
        "batch_us": 1e6 * _took(lambda: samples_at(ledger.spec, ids)),
        "block_us": 1e6 * _took(lambda: samples_at(ledger.spec, block)),
    }


def show(result: dict) -> None:
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


def _took(call: Callable[[], object], times: int = TIMES) -> float:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return median(spent)
