"""Write docs/benchmarks.md from the results that are kept in data/results.

    python -m benchmarks.report [--check] [--add FILE]

A result is one JSON file: `title`, `command`, `date`, `machine`, `reading` (what the figures say, in a sentence or few)
and `figures`, a list of rows, each by the names of its columns; `columns` names what the page shows, if not all. A
newer result takes the place of the older one of its name: a benchmark's `--keep NAME` replaces date, command, machine
and figures, and the reading is mended by hand (benchmarks/harness.py). The page shows all of them, in the order below.
With `--check` nothing is written, and the exit status is 1 where the page is not what the results make of it. With
`--add` the page gets a row of a report that `edl prove` has written on another machine: its JSON file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import written
from edl.proof.proof_report import Proof

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "data" / "results", ROOT / "docs" / "benchmarks.md"
OTHERS = {"house"}  # kept there by scripts/house.py

HEAD = """# Benchmarks

<!-- Written by `python -m benchmarks.report` from data/results: change those files, not this one. -->

Each section has the commands that answer its question on your machine, and our newest figures.
A benchmark's `--help` says how it measures.
*Load* is Linux' load average meanwhile; a job of two workers makes it 2 by itself.
Many jobs on one cluster are measured in [a cluster of jobs](cluster.md#measured).
"""


@dataclass(frozen=True)
class Section:
    title: str
    question: str
    results: Sequence[str]


SECTIONS = (
    Section(
        "Your own machine",
        "What does `edl prove` find on other machines?",
        ["proofs"],
    ),
    Section("A bare machine", "How long does a stranger wait for a job that trains and changes its size?", ["bare"]),
    Section(
        "Steady state",
        "What does a training step cost under edl while nothing changes?",
        ["step-overhead", "step-stock", "stream-pipeline"],
    ),
    Section("Two rings for PyTorch", "What does a step take in each ring?", ["step-rings"]),
    Section(
        "On a GPU",
        "Do both rings hold on CUDA tensors, and what does a change of size cost there?",
        ["gpu", "gpu-steps", "pause-16-cores"],
    ),
    Section(
        "Pauses",
        "For how long do the survivors stand still at a change of size?",
        ["pause", "pause-stock", "pause-many", "pause-state", "library-pause", "newcomers", "stream-pause"],
    ),
    Section(
        "Recovery",
        "How long until the survivors train on after a `kill -9`, and what is lost?",
        ["recovery", "stream-recovery"],
    ),
    Section("Without a leader", "Does training wait when the leader dies?", ["leaders"]),
    Section("An outage of ZooKeeper", "Does training wait when the coordinator is gone?", ["outage"]),
    Section(
        "ZooKeeper, etcd and the embedded coordinator",
        "What does the coordinator that `edl run` starts take, and how soon does another leader come?",
        ["coordinators"],
    ),
    Section(
        "Checkpoints",
        "What does it cost a training to be saved, and how long until it is?",
        ["checkpoint"],
    ),
    Section(
        "Being looked at",
        "How late is an event on a job's page?",
        ["page-delay"],
    ),
    Section("Random changes of size", "Do workers stay equal while the size changes again and again?", ["resizes"]),
    Section("Random faults", "Does a job survive half an hour of faults?", ["soak"]),
    Section(
        "Every sample exactly once",
        "Is each sample trained once, whatever reads it and whatever happens?",
        ["exactly-once"],
    ),
    Section(
        "The leader and its ledger at size",
        "Can one leader lead a thousand workers?",
        ["ledger"],
    ),
    Section("Forming a ring", "What does it cost to form a ring of a thousand?", ["rendezvous"]),
    Section("Hosts that are cut off", "What happens when a host's network fails?", ["partition"]),
    Section(
        "Several hosts",
        "What happens on several hosts when they come, go, die and are cut off?",
        ["hosts"],
    ),
    Section(
        "Preempted again and again",
        "Is a job saved whenever it is told to go, and how soon is it gone?",
        ["preempt"],
    ),
    Section(
        "Moving to another host",
        "How long does training stand still while a job of two leaves its only host for another?",
        ["migrate"],
    ),
    Section("Hostile input", "What does a stranger get from the ports of a job?", ["hostile", "attackers-hour"]),
    Section("Size and stragglers", "Does the autoscaler find the right size, and a slow worker?", ["autoscaling"]),
    Section(
        "Convergence",
        "Does a job that changes its size learn what one of fixed size learns?",
        ["convergence", "virtual-loss", "virtual-step"],
    ),
    Section(
        "Models larger than a device",
        "What does a worker of several processes cost beside FSDP2's own mesh and torchft, and a death?",
        ["sharded-step", "sharded-kill"],
    ),
)


def page(results: dict[str, dict[str, Any]]) -> str:
    parts = [HEAD]
    for section in SECTIONS:
        parts.append(f"## {section.title}\n\n*{section.question}*\n")
        found = [results[name] for name in section.results]
        commands = "\n".join(dict.fromkeys(result["command"] for result in found))
        parts.append(f"```\n{commands}\n```\n")
        parts += [shown(result) for result in found]
    return "\n".join(parts)


def shown(result: dict[str, Any]) -> str:
    columns = result.get("columns") or list(dict.fromkeys(name for row in result["figures"] for name in row))
    head = f"**{result['title']}** ({result['date']}; {result['machine']}). {result['reading']}\n\n"
    rows = [columns, *([cell(row.get(name)) for name in columns] for row in result["figures"])]
    first, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    return head + first + f"|{'---|' * len(columns)}\n" + "".join(others)


def cell(value: str | float | None) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return f"{value:,}"


def of_proof(content: bytes) -> dict[str, Any]:
    """The row of a report of `edl prove`."""
    proof = msgspec.json.decode(content, type=Proof)
    kills, pauses = [one.first_ms for one in proof.kills], [one.pause_ms for one in proof.resizes]
    return {
        "machine": f"{proof.where()}, load {proof.machine.load:g}",
        "date": proof.date,
        "workers, ring": f"{proof.workers}, {proof.ring}",
        "pause, ms": f"{statistics.median(pauses):.0f} (at most {max(pauses):.0f})",
        "on after `kill -9`, ms": f"{statistics.median(kills):.0f} (at most {max(kills):.0f})",
        "samples": f"{proof.outcome.trained:,}, {proof.outcome.lost + proof.outcome.repeated} lost or repeated",
        "a step over DDP's": round(statistics.median(proof.turns.ratios()), 3),
        "holds": "; ".join(proof.faults()) or "yes",
    }


def kept() -> dict[str, dict[str, Any]]:
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json")) if path.stem not in OTHERS
    }


def unplaced(names: Iterator[str] | Sequence[str]) -> set[str]:
    """Names of results that no section shows, or that a section asks for and are not kept."""
    return set(names) ^ {name for section in SECTIONS for name in section.results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", type=Path, metavar="FILE", help="a report of `edl prove`: edl-proof-DATE.json")
    options = parser.parse_args()
    if options.add is not None:
        path = RESULTS / "proofs.json"
        proofs = json.loads(path.read_text())
        proofs["figures"].append(of_proof(options.add.read_bytes()))
        path.write_text(written(proofs))
    results = kept()
    if wrong := unplaced(list(results)):
        raise SystemExit(
            f"{', '.join(sorted(wrong))}: give each result of data/results a section, each section its results"
        )
    text = page(results)
    if options.check:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
