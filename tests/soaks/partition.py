"""Hosts that are cut off: does one ring survive, does the other side fence itself, is no sample trained twice?

    python -m tests.soaks.partition [--cases follower leader pair mute slow blink] [--framework torch] [--json]

Three hosts (network namespaces, `partition_net.py`) train the UCI digits, one worker each, and ZooKeeper runs on a
fourth one. Session time-out 4 s, step time-out 8 s. In each case the link of one host fails, and is healed later:

    follower  all frames from and to a follower's host are lost, for three session time-outs
    leader    the same of the leader's host
    pair      the same between two hosts, that of the leader among them, and all others: the two reach each other
    mute      all frames from a follower's host are lost, those to it arrive
    slow      200 ms more each way, and 5 % of the frames lost each way, for 20 s: no worker need be lost
    blink     as `follower`, for a fourth of a session time-out: no worker may be lost

    noticed   from the fault until a leader has it on record that the worker is lost
    next      from the fault until the slowest survivor has made a step in a ring without that host
    longest   without a step, of any survivor
    meanwhile steps of the survivors until the healing
    alone     steps that a cut worker committed and no survivor did: one at most, which was in flight
    ended     from the healing until the worker has ended, and its daemon
    size      of the ring after all that

Exit code 1 if anything is not as it must be: survivors that do not train on, a worker that does, one that does not end
after it was expelled, samples lost or repeated, weights that differ, processes left over. Needs root (namespaces).
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness import DIGITS, compared
from edl.core.audit.sample_account import account
from tests.soaks.partition_job import SESSION_S, Job, NotComeTrue, Server, Watched
from tests.soaks.partition_net import CUT, OPEN, Network, Way, why_not

BOOT_S, TRAIN_ON_S, END_S = 240.0, 60.0, 60.0
STEPS = 40  # before the fault, and after it
BAD = Way(loss=0.05, delay_s=0.2)


@dataclass(frozen=True)
class Case:
    """What happens to whose link, and whether its worker must, may or must not be lost by it."""

    whose: tuple[str, ...]
    ways: tuple[Way, Way] | None  # from it and to it; None: apart from all others
    lasts_s: float
    lost: bool | None


CASES = {
    "follower": Case(("follower",), None, 3 * SESSION_S, lost=True),
    "leader": Case(("leader",), None, 3 * SESSION_S, lost=True),
    "pair": Case(("leader", "follower"), None, 3 * SESSION_S, lost=True),
    "mute": Case(("follower",), (CUT, OPEN), 3 * SESSION_S, lost=True),
    "slow": Case(("follower",), (BAD, BAD), 20.0, lost=None),
    "blink": Case(("follower",), None, SESSION_S / 4, lost=False),
}


@dataclass
class Result:
    case: str
    size: int = 0
    lost: bool = False
    next_s: float | None = None
    noticed_s: float | None = None
    longest_s: float = 0.0  # without a step, of any survivor
    steps_meanwhile: int = 0
    alone: int = 0
    codes: list[int | None] = field(default_factory=list)
    line: str = ""
    ended_s: float | None = None
    steps: int = 0
    lost_samples: int = 0
    repeated: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)


class Trial(Watched):
    """One case, from the workers' start to their end."""

    def __init__(self, name: str, network: Network, job: Job, say: Callable[[str], None]) -> None:
        self._case, self._network, self._job, self._say = CASES[name], network, job, say
        self._cut: list[str] = []
        self._others: list[str] = []
        self.result = Result(name)
        super().__init__(self.result.wrong)

    def run(self) -> Result:
        job, case, result = self._job, self._case, self.result
        names = list(job.workers)
        self._wait(lambda: all(job.newest(name) >= STEPS for name in names), BOOT_S, "a job that trains")
        leader = job.leader()
        known = {"leader": leader, "follower": next(name for name in names if name != leader)}
        self._cut = [known[who] for who in case.whose]
        self._others = [name for name in names if name not in self._cut]
        before, struck_ts, struck = job.place(leader).generation, time.time(), time.monotonic()
        self._strike()
        self._say(f"the link of {' and '.join(self._cut)} fails (leader {leader})")
        self._let_pass(struck + case.lasts_s)
        healed = time.monotonic()
        self._heal()
        result.steps_meanwhile = self._newest(until=healed) - self._newest(until=struck)
        said = [f"{name} says: {job.last_line(name)[:120]}" for name in self._cut]
        self._say(f"healed; {result.steps_meanwhile} steps meanwhile; {'; '.join(said)}")
        goal = max(map(job.newest, self._others)) + STEPS
        self._wait(lambda: max(map(job.newest, self._others)) >= goal, TRAIN_ON_S, "survivors that train on")
        self._see_lost(struck_ts, healed)
        self._see_survivors(before, struck)
        self._see_alone()
        self._finish()
        return result

    def _strike(self) -> None:
        if self._case.ways is None:
            self._network.part(*self._cut)
        for name in self._cut:
            if self._case.ways is not None:
                self._network.set_link(name, *self._case.ways)

    def _heal(self) -> None:
        self._network.part()
        for name in self._cut:
            self._network.set_link(name)

    def _newest(self, until: float) -> int:
        steps = [note for name in self._others for note in self._job.steps(name)]
        return max((note["step"] for note in steps if note["at"] < until), default=0)

    def _see_lost(self, struck_ts: float, healed: float) -> None:
        job, case, result = self._job, self._case, self.result
        lost = {event["worker"]: event["ts"] for event in job.events() if event["kind"] == "worker_lost"}
        result.lost = any(name in lost for name in self._cut)
        for name in self._cut if result.lost else ():
            if name not in lost:
                result.wrong.append(f"{name} was not lost")
        if result.lost:
            result.noticed_s = max(lost.get(name, float("inf")) for name in self._cut) - struck_ts
            self._see_end(healed)
        result.wrong += [f"{name} was lost too" for name in lost if name in self._others]
        if case.lost is not None and result.lost is not case.lost:
            result.wrong.append(f"{self._cut} was {'' if result.lost else 'not '}lost")

    def _see_end(self, healed: float) -> None:
        """They were expelled: each must find out, say so and end, and its daemon too."""
        job, result = self._job, self.result
        ended = [job.workers[name] for name in self._cut]
        self._wait(lambda: all(w.poll() is not None for w in ended), END_S, "the end of who was expelled", fatal=False)
        self._wait(lambda: not any(job.hosts[n].pids() for n in self._cut), END_S, "the end of daemons", fatal=False)
        result.ended_s = time.monotonic() - healed
        for name in self._cut:
            code, result.line = job.workers[name].poll(), job.last_line(name)
            result.codes.append(code)
            if code != 1 or "given this worker up" not in result.line:
                result.wrong.append(f"{name} ended with {code}: {result.line}")

    def _see_survivors(self, before: int, struck: float) -> None:
        job, result = self._job, self.result
        firsts = []
        for name in self._others:
            notes = [note for note in job.steps(name) if note["at"] >= struck - 1]
            times = [note["at"] for note in notes]
            result.longest_s = max(result.longest_s, *(b - a for a, b in itertools.pairwise(times)))
            sat = job.place(name)
            firsts += [n["at"] for n in notes if before < n["generation"] and n["step"] > sat.step][:1]
            result.size = sat.size
        if result.lost:
            result.next_s = max(firsts) - struck if len(firsts) == len(self._others) else None
        expected = len(self._others) + (0 if result.lost else len(self._cut))
        if result.size != expected:
            result.wrong.append(f"the ring has {result.size} members, not {expected}")

    def _see_alone(self) -> None:
        """What a side that was cut off committed without the survivors, be it in a ring of its own."""
        job, result = self._job, self.result
        if not result.lost:
            return
        mine = {pair for name in self._cut for pair in job.committed(name)}
        result.alone = len(mine - {pair for name in self._others for pair in job.committed(name)})
        if result.alone > 1:
            result.wrong.append(f"{' and '.join(self._cut)} committed {result.alone} steps alone")
        newest = max(job.place(name).generation for name in self._cut)
        if newest >= min(job.place(name).generation for name in self._others):
            result.wrong.append(f"who was cut off sits in generation {newest}")

    def _finish(self) -> None:
        job, result = self._job, self.result
        staying = self._others if result.lost else list(job.workers)
        epochs = job.finish()
        self._say("told to end")
        self._wait(lambda: all(job.workers[name].poll() is not None for name in staying), END_S, "the end of the job")
        for name in staying:
            if job.workers[name].returncode:
                result.wrong.append(f"{name} ended with {job.workers[name].returncode}: {job.last_line(name)}")
        self._wait(lambda: not any(host.pids() for host in job.hosts.values()), END_S, "no process left", fatal=False)
        self._say("ended")
        data = account(job.audits())
        result.steps = data.steps
        result.lost_samples = epochs * DIGITS - sum(epoch.trained for epoch in data.epochs)
        result.repeated = sum(epoch.repeated for epoch in data.epochs)
        weights = compared([note for name in staying for note in job.notes(job.workers[name].pid)])
        result.compared = weights["compared"]
        if result.lost_samples or result.repeated or data.wrong or not data.clean:
            result.wrong.append(f"{result.lost_samples} samples lost, {result.repeated} repeated, {data.wrong} wrong")
        if weights["different"]:
            result.wrong.append(f"weights differ after {weights['different']} switches")

    def _look(self) -> None:
        for name, worker in self._job.workers.items():
            if name not in self._cut and worker.poll() not in (None, 0):
                raise NotComeTrue(f"{name} ended with {worker.poll()}: {self._job.last_line(name)}")


def play(name: str, framework: str) -> Result:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{name:8} {time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    network = Network(["zookeeper", "h1", "h2", "h3"])
    with tempfile.TemporaryDirectory(prefix="edl-partition-") as folder:
        try:
            network.open()
            server = Server(Path(folder) / "zookeeper", network.hosts[0])
            server.serve()
            job = Job(Path(folder), framework, network.hosts[0], network.hosts[1:])
            trial = Trial(name, network, job, say)
            try:
                result = trial.run()
            except NotComeTrue as error:
                result = trial.result
                result.wrong.append(str(error))
            if result.wrong:
                say(f"{'; '.join(result.wrong)}\n{job.story()}")
        finally:
            network.close()
    say("as it must be" if not result.wrong else "not as it must be")
    return result


def _shown(result: Result) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    cells = [
        f"{result.case:8}",
        *(f"{seconds(value):>8}" for value in (result.noticed_s, result.next_s, result.longest_s)),
        f"{result.size:>4}",
        f"{result.steps_meanwhile:>9}",
        f"{result.alone:>5}",
        f"{', '.join(map(str, result.codes)) or '-':>4}",
        f"{seconds(result.ended_s):>8}",
        f"{result.lost_samples} lost, {result.repeated} repeated",
    ]
    return "  ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hosts are cut off from each other.")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--framework", default="torch", choices=["torch", "tensorflow"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"hosts cannot be made here: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = [play(name, options.framework) for name in options.cases]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print("case       noticed      next   longest  size  meanwhile  alone  code     ended  samples")
        for result in results:
            print(_shown(result))
            if result.line:
                print(f"          {result.line}")
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
