"""A stranger sends garbage, and worse, to all ports of a job that trains: nothing may be taken, nor the job notice.

    python -m tests.soaks.hostile [--inputs 100000] [--switches 3] [--seed 0] [--json]

Workers under `edl run` learn the UCI digits. First the job changes its size a few times, between 3 and 2, while the
rendezvous of each new ring is under attack for as long as it listens. Then every TCP port on which a process of the
job listens is found in /proc, and gets its share of the inputs (tests/soaks/hostile_inputs.py). What is replayed was
recorded of an honest client, for which the job's secret is read.

The table tells what became of each kind; then, what the job counted itself, its step time before and during the attack,
and what memory, logs and connections the attack has left with the daemons. Exit code 1 if anything was taken or run, if
a refusal that the stranger heard of is not in the counts, if connections are left or logs grow, or if the job lost a
worker, a mini-batch, a sample or its leader.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import DIGITS, PATIENCE_S, DigitsJob
from edl.host.network import LOOPBACK
from edl.protocol.record import Identity
from tests.soaks.hostile_inputs import COORDINATOR, KINDS, RENDEZVOUS, Attacker, Kind, Target, Verdict
from tests.soaks.hostile_ports import descriptors, listening, memory, targets

AT_ONCE = 48
LOG_BYTES = 4096  # may be added to the daemons' logs, however many inputs there are
QUIET_STEPS = 150  # of each worker, for the step time before
MEET_S = 30.0  # half of what a worker may take for a step
HARM = ("worker_lost", "batch_voided")
REASONS = {
    "gRPC UNAUTHENTICATED": "unauthentic",
    "gRPC FAILED_PRECONDITION": "version",
    "gRPC OUT_OF_RANGE": "oversized",
    "gRPC UNIMPLEMENTED": "unknown_method",
}

Outcomes = Counter[tuple[str, str, Verdict]]  # kind, role, and what became of it


# ----------------------------------------------------------------------------------------------------------- the attack


async def send(attacker: Attacker, kind: Kind, target: Target) -> Verdict:
    try:
        return await kind.send(attacker, target)
    except TimeoutError:
        return Verdict("no connection: timed out")
    except OSError as error:
        return Verdict(f"no connection: {type(error).__name__}")


def plan(inputs: int, roles: set[str], source: random.Random) -> list[Kind]:
    """So many inputs of all kinds, in any order."""
    kinds = [kind for kind in KINDS if roles.intersection(kind.roles)]
    planned = [kind for kind in kinds for _ in range(max(1, round(kind.share * inputs)))]
    planned += [kinds[0]] * (inputs - len(planned))
    source.shuffle(planned)
    return planned


async def attack(attacker: Attacker, found: list[Target], planned: list[Kind], outcomes: Outcomes) -> None:
    queue = iter(enumerate(planned, 1))

    async def keep_sending() -> None:
        for number, kind in queue:
            target = attacker.source.choice([target for target in found if target.role in kind.roles])
            outcomes[kind.name, target.role, await send(attacker, kind, target)] += 1
            if not number % 5000:
                print(f"{number} of {len(planned)} inputs", file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(keep_sending())


async def attack_rendezvous(attacker: Attacker, daemons: list[int], outcomes: Outcomes) -> None:
    """Every one that begins to listen, at any daemon, until it ends. Until cancelled."""
    kinds = [kind for kind in KINDS if RENDEZVOUS in kind.roles]
    over = {address for daemon in daemons for address in listening(daemon)}

    async def keep_sending(target: Target) -> None:
        while target.address not in over:
            (kind,) = attacker.source.choices(kinds, [kind.share for kind in kinds])
            verdict = await send(attacker, kind, target)
            if verdict.how == "no connection: ConnectionRefusedError":
                over.add(target.address)
            else:
                outcomes[kind.name, target.role, verdict] += 1

    while True:
        for address in {address for daemon in daemons for address in listening(daemon)} - over:
            await asyncio.gather(*(keep_sending(Target(RENDEZVOUS, *address)) for _ in range(AT_ONCE)))
        await asyncio.sleep(0.005)


async def switch(job: DigitsJob, attacker: Attacker, status: dict[str, Any], times: int, outcomes: Outcomes) -> None:
    """So many changes of size. A ring forms in some milliseconds; on a busy machine it is over before the stranger has
    looked. So at each shrink one that stays is stopped until the stranger has met the rendezvous of another.
    """
    daemons = [worker["daemon_pid"] for worker in status["workers"]]
    attacking = asyncio.create_task(attack_rendezvous(attacker, daemons, outcomes))
    for size in itertools.islice(itertools.cycle((2, 3)), times):
        arguments = ("scale", job.name, str(size), "--wait", "--timeout", str(PATIENCE_S))
        scaling = asyncio.create_task(asyncio.to_thread(job.edl, *arguments))
        if size == 2:
            with stopped(next(worker["pid"] for worker in status["workers"] if worker["rank"] == 1)):
                await wait_refused(outcomes)
        await scaling
        print(f"{size} workers, {outcomes.total()} inputs to a rendezvous", file=sys.stderr, flush=True)
        await wait_leavers_gone(job, size)
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def wait_refused(outcomes: Outcomes) -> None:
    """Once more by a rendezvous."""

    def refused() -> int:
        return sum(number for (_, _, verdict), number in outcomes.items() if verdict.how.startswith("HTTP 4"))

    before, deadline = refused(), time.monotonic() + MEET_S
    while refused() == before:
        if time.monotonic() > deadline:
            raise SystemExit(f"no rendezvous was met in {MEET_S:g} s, though a worker is stopped")
        await asyncio.sleep(0.01)


async def wait_leavers_gone(job: DigitsJob, size: int) -> None:
    """The job is as large as it was asked to be before the daemons of those that left have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while len((await asyncio.to_thread(status_of, job))["workers"]) > size:
        if time.monotonic() > deadline:
            raise SystemExit("a worker that was to leave stays")
        await asyncio.sleep(0.2)


# -------------------------------------------------------------------------------------------------------------- the job


def status_of(job: DigitsJob) -> dict[str, Any]:
    return job.status()


def workers_of(status: dict[str, Any]) -> list[Identity]:
    """As their daemons present them, so that a registration that is taken changes nothing."""
    fields = ("id", "host", "pid", "daemon_pid")
    return [
        Identity(address=LOOPBACK, port=listening(one["daemon_pid"])[0][1], **{name: one[name] for name in fields})
        for one in status["workers"]
    ]


def step_times(folder: Path, since: float, until: float) -> list[float]:
    """Of all workers, from the end of one step to that of the next."""
    times: list[float] = []
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines()
        notes = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be half written
        ends = [note["at"] for note in notes if note["kind"] == "step" and since <= note["at"] <= until]
        times += [later - earlier for earlier, later in itertools.pairwise(ends)]
    return times


async def wait_quiet_steps(folder: Path, since: float) -> list[float]:
    deadline = time.monotonic() + PATIENCE_S
    while len(times := step_times(folder, since, time.monotonic())) < 2 * QUIET_STEPS:
        if time.monotonic() > deadline:
            raise SystemExit("the job does not train")
        await asyncio.sleep(0.2)
    return times


def log_bytes(folder: Path) -> int:
    """What the daemons' logs have in them beside what the job tells of itself."""
    paths = folder.glob("home/jobs/resizes/logs/*.daemon.log")
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    return sum(len(line) for line in lines if b" edl INFO " not in line)


async def wait_connections_gone(before: dict[int, int]) -> int:
    """How many descriptors a daemon has more than before, once there are none or they do not go."""
    deadline = time.monotonic() + 15
    while (left := max(descriptors(pid) - number for pid, number in before.items())) > 0:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    return left


def refusals_heard(outcomes: Outcomes, sent_elsewhere: int) -> Counter[str]:
    """What the job must have counted, at least: those that it has told the stranger of."""
    heard = Counter({"term": sent_elsewhere})
    for (_, role, verdict), number in outcomes.items():
        if verdict.how.startswith("HTTP 4") and role == RENDEZVOUS:
            heard["rendezvous"] += number
        elif verdict.how.startswith("sealed refusal: "):
            heard[verdict.how.removeprefix("sealed refusal: ")] += number
        elif verdict.how in REASONS:
            heard[REASONS[verdict.how]] += number
    return heard


async def wait_counted(job: DigitsJob, heard: Counter[str]) -> tuple[dict[str, int], int]:
    """What the job has counted, and how many it did not; daemons report theirs about once a second."""
    deadline = time.monotonic() + 5
    while True:
        counted = status_of(job)["refused"]
        ring = sum(number for reason, number in counted.items() if reason.startswith("rendezvous_"))
        uncounted = (heard - Counter({**counted, "rendezvous": ring})).total()
        if not uncounted or time.monotonic() > deadline:
            return dict(sorted(counted.items())), uncounted


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    source, outcomes = random.Random(options.seed), Counter[tuple[str, str, Verdict]]()
    job = DigitsJob("torch", folder, 3 if options.switches else 2, 0.02)
    job.wait_training()
    status = status_of(job)
    secret = (folder / "home/jobs" / job.name / "secret").read_bytes()
    attacker = Attacker(secret, job.name, status["term"], workers_of(status), source, folder / "stranger.py")
    if options.switches:
        await switch(job, attacker, status, options.switches, outcomes)
        status = status_of(job)
        attacker.workers = workers_of(status)
    quiet = await wait_quiet_steps(folder, time.monotonic())
    found = await targets(folder / "home", status)
    pids = [worker["daemon_pid"] for worker in status["workers"]]
    memory_before = {pid: memory(pid) for pid in pids}
    descriptors_before = {pid: descriptors(pid) for pid in pids}
    log_before = log_bytes(folder)

    began = time.monotonic()
    planned = plan(options.inputs - outcomes.total(), {target.role for target in found}, source)
    await attack(attacker, found, planned, outcomes)
    ended = time.monotonic()
    await attacker.close()

    left = await wait_connections_gone(descriptors_before)
    memory_after, logged = {pid: memory(pid) for pid in pids}, log_bytes(folder) - log_before
    counted, uncounted = await wait_counted(job, refusals_heard(outcomes, attacker.sent_elsewhere))
    during = step_times(folder, began, ended)
    epochs = await asyncio.to_thread(job.finish)
    data, events = harness.audited(folder / "audit"), job.events()
    kinds = Counter(event["kind"] for event in events)
    late = [
        event for event in events if event["kind"] == "batch_voided" and event["voided_step"] - 1 in planned_at(events)
    ]
    kinds["batch_voided"] -= len(late)
    return {
        "inputs": outcomes.total(),
        "code_run": int(attacker.mark.exists()),
        "seconds": ended - began,
        "ports": sorted(f"{target.role} {target.host}" for target in found),
        "outcomes": [
            {"kind": kind, "role": role, "how": verdict.how, "accepted": verdict.accepted, "number": number}
            for (kind, role, verdict), number in sorted(outcomes.items())
        ],
        "accepted": sum(number for (_, _, verdict), number in outcomes.items() if verdict.accepted),
        "counted": counted,
        "uncounted": uncounted,
        "honest_calls": len(attacker.answered_s),
        "honest_ms": 1000 * statistics.median(attacker.answered_s),
        "step_ms_before": 1000 * statistics.median(quiet),
        "step_ms_during": 1000 * statistics.median(during),
        "steps_during": len(during),
        "memory": [
            {"before": memory_before[pid].now, "after": memory_after[pid].now, "peak": memory_after[pid].peak}
            for pid in pids
        ],
        "connections_left": left,
        "log_bytes": logged,
        "late": len(late),
        "harm": {kind: kinds[kind] for kind in HARM if kinds[kind]},
        "leaders": kinds["leader_elected"],
        "switches": kinds["scaled"],
        "forced": sum(event["kind"] == "scaled" and event["forced"] for event in events),
        "epochs": epochs,
        "lost": epochs * DIGITS - data["trained"],
        "repeated": data["repeated"],
        "wrong": data["wrong"],
    }


def planned_at(events: list[dict[str, Any]]) -> set[int]:
    """Steps after which a switch was planned: on a busy machine its word may come late, which costs a mini-batch."""
    return {event["after_step"] for event in events if event["kind"] == "switch_scheduled" and event["after_step"]}


def is_sound(result: dict[str, Any]) -> bool:
    bad = ("accepted", "code_run", "uncounted", "harm", "forced", "lost", "repeated", "wrong")
    bounded = result["connections_left"] <= 0 and result["log_bytes"] <= LOG_BYTES
    return bounded and result["leaders"] == 1 and not any(result[name] for name in bad)


def show(result: dict[str, Any]) -> None:
    print(f"{result['inputs']} inputs, in {result['seconds']:.0f} s to {', '.join(result['ports'])}\n")
    kinds: dict[tuple[str, str], Counter[str]] = {}
    accepted: Counter[tuple[str, str]] = Counter()
    for line in result["outcomes"]:
        name = line["role"] if line["role"] in (RENDEZVOUS, COORDINATOR) else "daemons", line["kind"]
        kinds.setdefault(name, Counter())[line["how"]] += line["number"]
        accepted[name] += line["number"] if line["accepted"] else 0
    print(f"{'port':<12} {'kind':<34} {'sent':>6} {'taken':>5}  refused by")
    for name, ways in sorted(kinds.items()):
        how = ", ".join(f"{way} {number}" for way, number in ways.most_common())
        print(f"{name[0]:<12} {name[1]:<34} {ways.total():>6} {accepted[name]:>5}  {how}")
    print(f"\ncode that a message names: {'run' if result['code_run'] else 'not run'}")
    counted = ", ".join(f"{reason} {number}" for reason, number in result["counted"].items())
    print(f"counted by the job: {counted}; told to the stranger and not counted: {result['uncounted']}")
    print(f"honest calls meanwhile: {result['honest_calls']}, answered in {result['honest_ms']:.0f} ms (median)")
    before, during = result["step_ms_before"], result["step_ms_during"]
    print(f"a step: {before:.1f} ms before, {during:.1f} ms during the attack (medians), ratio {during / before:.3f}")
    for one in result["memory"]:
        print(f"a daemon: {one['before']:.0f} MB before, {one['after']:.0f} MB after, {one['peak']:.0f} MB at most")
    print(f"connections left: {result['connections_left']}, bytes added to the daemons' logs: {result['log_bytes']}")
    print(
        f"leaders {result['leaders']}, switches {result['switches']} ({result['forced']} forced, "
        f"{result['late']} words of one late), "
        f"{result['harm'] or 'no worker lost, no mini-batch void'}; {result['epochs']} epochs, {result['lost']} "
        f"samples lost, {result['repeated']} repeated, {result['wrong']} steps wrong"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--switches", type=int, default=3, help="0: two workers, and the rendezvous is not attacked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = asyncio.run(measure(options, Path(name)))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if is_sound(result) else 1


if __name__ == "__main__":
    sys.exit(main())
