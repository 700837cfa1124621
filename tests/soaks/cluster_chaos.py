"""Chaos on a real cluster of this machine: jobs come all the time, and whatever makes the cluster is killed, frozen,
set to another time, or finds its disk full.

    python -m tests.soaks.cluster_chaos --seconds 600 --seed 1

Struck are schedulers (that lead or not), agents, the keeper, ZooKeeper or etcd, and of workers the script, its daemon,
its warden, or all of these. A frozen process comes back within three session time-outs. Wall clocks are set back and
forward, by up to an hour, of all processes or of one scheduler, agent or keeper. As root EDL_HOME is a small disk of
its own, which is filled to the last byte for some seconds; the audits, by which all is judged, lie elsewhere. Then the
strikes end, and everything has to come to its end; the clocks stay as they are.

Verdict: no job is lost, failed or stuck, every sample of each was trained exactly once, never had a device two workers
or a job two lives, no worker was begun twice, and at the end no device is held and no process left. Printed: seconds
from a leader's end to the next one's term.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.real_cluster import LOOK_S, SESSION_S, Line, RealCluster
from edl.cluster.queue.queue_entries import JobEntry
from edl.errors import EdlError
from tests.soaks.cluster_machine import Clocks, Disk, with_own_mounts
from tests.soaks.cluster_strikes import Onlooker, Striker

NODES = "localhost:3,localhost:2"
AT_ONCE = 5  # jobs that are not over
FIRST_S = 10.0
STRIKE_S = (2.0, 10.0)  # from one to the next
CALM_S = 300.0  # after the last strike, for all jobs to end
CHANGED = {"tiresias": ("--set", "limits=60"), "elastic-tiresias": ("--set", "dwell_s=5", "--set", "limits=60")}


class Feeder(threading.Thread):
    """Submits one more job wherever few are left."""

    def __init__(self, cluster: RealCluster, seed: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._chance = cluster, random.Random(seed)
        self._over = threading.Event()
        self.lines: list[Line] = []  # submitted
        self.doubtful: list[Line] = []  # the command could not say whether they are

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            with contextlib.suppress(EdlError):
                jobs = self._cluster.jobs(patience_s=0)
                if sum(not job.over for job in jobs.values()) < AT_ONCE:
                    self._submit()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _submit(self) -> None:
        np = self._chance.choice((1, 1, 2, 3))
        sizes = (np, max(1, np - 1), min(5, np + 1))
        model, epochs = self._chance.choice((("digits", 3), ("sonnets", 3), ("digits", 6)))
        name = f"job{len(self.lines) + len(self.doubtful)}"
        line = Line(name, 0.0, model, *sizes, epochs, 0.1, self._chance.choice((0, 0, 0, 5)))
        try:
            self._cluster.submit(line)
        except SystemExit as error:
            print(f"  {error}", flush=True)
            self.doubtful.append(line)
        else:
            self.lines.append(line)


class Chaos:
    """One cluster under strikes."""

    def __init__(self, cluster: RealCluster, seed: int, clocks: Clocks, disk: Disk | None) -> None:
        self.cluster = cluster
        self.onlooker = Onlooker(cluster)
        self.feeder = Feeder(cluster, seed)
        self.striker = Striker(cluster, self.onlooker, seed, clocks, disk)
        self._chance = random.Random(seed)

    def rage(self, seconds: float) -> None:
        """Strikes, while jobs come."""
        began = time.monotonic()
        strike_at = began + FIRST_S
        self.feeder.start()
        while (now := time.monotonic()) - began < seconds:
            self.striker.thaw()
            if now >= strike_at:
                if said := self.striker.strike():
                    print(f"  {now - began:5.0f} s  {said}", flush=True)
                strike_at = now + self._chance.uniform(*STRIKE_S)
            time.sleep(LOOK_S)
        self.striker.thaw(all_=True)
        self.feeder.stop()

    def calm(self) -> dict[str, JobEntry]:
        """All jobs, once they are over, or the patience is."""
        until = time.monotonic() + CALM_S
        while True:
            jobs = self.cluster.jobs()
            if all(job.over and not job.workers for job in jobs.values()) or time.monotonic() > until:
                return jobs
            time.sleep(LOOK_S)


def judge(chaos: Chaos, jobs: dict[str, JobEntry]) -> list[str]:
    """What is wrong."""
    wrong = sorted(chaos.onlooker.wrong)
    there = [line for line in chaos.feeder.doubtful if line.name in jobs]
    for line in [*chaos.feeder.lines, *there]:
        job = jobs.get(line.name)
        if job is None:
            wrong.append(f"{line.name} is lost")
        elif job.phase.value != "finished":
            wrong.append(f"{line.name} is {job.phase.value}: {job.reason}")
        elif not chaos.cluster.exactly_once(line):
            wrong.append(f"{line.name} was not trained exactly once")
    held = [worker.id for job in jobs.values() for worker in job.workers]
    left = chaos.cluster.processes()
    if held or left:
        wrong.append(f"held at the end: {', '.join(held) or 'no device'}; processes: {left}")
    return wrong


def report(chaos: Chaos, jobs: dict[str, JobEntry]) -> None:
    struck = ", ".join(f"{count} {what}" for what, count in sorted(chaos.striker.struck.items()))
    print(f"\nstruck {chaos.striker.struck.total()} times: {struck}")
    lives, made = sum(job.life for job in jobs.values()), sum(job.made for job in jobs.values())
    print(f"{len(jobs)} jobs with {lives} lives and {made} workers; looked at {chaos.onlooker.looks} times")
    waits = chaos.onlooker.waits(chaos.striker.leader_at)
    if waits:
        middle, longest = statistics.median(waits), max(waits)
        print(f"the next scheduler leads after {middle:.1f} s (median of {len(waits)}), {longest:.1f} s at most; "
              f"the session time-out is {SESSION_S:g} s")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="elastic-tiresias")
    parser.add_argument("--coordinator", choices=("zookeeper", "etcd"), default="zookeeper")
    parser.add_argument("--keep", action="store_true", help="leave the folder with all logs, also if all is well")
    options = parser.parse_args()
    may_mount = with_own_mounts("tests.soaks.cluster_chaos")
    folder = Path(tempfile.mkdtemp(prefix="edl-chaos-"))
    home, clocks = folder / "home", Clocks(folder / "clocks")
    home.mkdir(mode=0o700)
    disk = Disk(home) if may_mount else None
    where = "a disk of its own" if disk else "whose disk is never full: to fill one takes root"
    print(f"EDL_HOME={home}, {where}", flush=True)
    cluster = RealCluster(home, folder / "audits")
    cluster.environ |= {**clocks.environ, "PYTHONPATH": f"{clocks.path}:{cluster.environ['PYTHONPATH']}"}
    own = ("--nodes", NODES, "--session-timeout", str(SESSION_S), "--local-coordinator", options.coordinator)
    cluster.edl("cluster", "start", *own, "--policy", options.policy, *CHANGED.get(options.policy, ()))
    chaos = Chaos(cluster, options.seed, clocks, disk)
    try:
        chaos.onlooker.start()
        chaos.rage(options.seconds)
        print("  calm", flush=True)
        jobs = chaos.calm()
        chaos.onlooker.stop()
        wrong = judge(chaos, jobs)
        report(chaos, jobs)
    finally:
        chaos.striker.thaw(all_=True)
        cluster.edl("cluster", "stop", "--now")
    if wrong or options.keep:
        with contextlib.suppress(shutil.Error):  # of sockets
            shutil.copytree(home, folder / "kept")
        print(f"all logs are in {folder / 'kept'}")
    else:
        shutil.rmtree(folder, ignore_errors=disk is not None)  # its own disk stays mounted
    for one in wrong:
        print(f"WRONG: {one}")
    print(f"\nverdict: {'BAD' if wrong else 'good'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
