"""Three hosts with sshd: plain `horovodrun` across them, while hosts go, come, are cut off and are killed.

    python -m tests.soaks.hosts [--launch horovodrun] [--cut-s 20] [--end finish] [--keep DIR] [--json]

Three hosts (`ssh_hosts.py`) with a shared disk train the digits; horovodrun runs on the first. One after the other:

    removed   the last host disappears from the discovery script's answer, and its worker with it
    returned  it is there again
    slots     the first host has two slots instead of one
    cut       all frames from and to the second host are lost; the others must go on
    healed    they pass again: horovodrun gives the host another chance, and a new worker comes
    killed    all processes of the last host are killed, sshd too
    back      it boots again

or, with `--end`: Ctrl-C for horovodrun, upon which all must end; `kill -9`, upon which the workers finish the job.

    size      of the ring after it
    after     from the change until the slowest survivor has made a step in a ring of that size
    pause     of the survivors, as the leader tells it
    longest   without a step, of any survivor
    voided    mini-batches that had to be trained again

Exit code 1 if anything is not as it must be: a size that is not reached, a survivor lost, local or cross ranks that are
not right, samples lost or repeated, weights that differ, an exit code, something listening at all interfaces, processes
left over. `--launch ssh` does the same with workers started by hand over ssh, EDL_JOB and EDL_COORDINATOR. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import compared
from edl.core.audit.sample_account import account
from tests.soaks.hosts_job import LAUNCHES, Launch, NotComeTrue, Options, Written
from tests.soaks.partition_job import Watched
from tests.soaks.ssh_hosts import SshHosts, why_no_ssh_hosts

NAMES = ("alpha", "beta", "gamma")
BOOT_S, CHANGE_S, END_S = 240.0, 120.0, 90.0
FRESH_S = 1.5  # who has made a step since then trains
STEADY_S = 3.0  # between two changes

Say = Callable[[str], None]


@dataclass
class Row:
    """One change and what came of it."""

    what: str
    size: int
    after_s: float | None = None
    pause_ms: float | None = None
    longest_s: float = 0.0
    voided: int = 0
    at: float = field(default=0.0, repr=False)


@dataclass
class Result:
    launch: str
    rows: list[Row] = field(default_factory=list)
    code: int | None = None
    ended_s: float = 0.0
    leaders: list[str] = field(default_factory=list)
    steps: int = 0
    epochs: int = 0
    lost_samples: int = 0
    repeated: int = 0
    compared: int = 0
    listening: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Trial(Watched):
    """From the first worker's start to the last one's end."""

    def __init__(self, launch: Launch, hosts: SshHosts, written: Written, cut_s: float, say: Say) -> None:
        self._launch, self._hosts, self._written, self._cut_s, self._say = launch, hosts, written, cut_s, say
        self._slots = dict.fromkeys(NAMES, 1)
        self._ends = False
        self.result = Result("")
        super().__init__(self.result.wrong)

    def run(self) -> None:
        self._change("started", 3, lambda: None, BOOT_S)
        self._see_listening()
        self._change("removed", 2, lambda: self._set(gamma=0))
        self._change("returned", 3, lambda: self._set(gamma=1))
        self._change("slots", 4, lambda: self._set(alpha=2))
        cut = time.monotonic()
        self._change("cut", 3, lambda: self._hosts.network.part("beta"))
        self._let_pass(cut + self._cut_s)
        self._change("healed", 4, self._heal)
        self._change("killed", 3, self._hosts["gamma"].kill)
        self._change("back", 4, self._boot)
        self._finish()

    def run_until(self, end: str) -> None:
        """`interrupt`: Ctrl-C for horovodrun alone. `kill`: it is killed, and the workers finish the job."""
        self._change("started", 3, lambda: None, BOOT_S)
        began, self._ends = time.monotonic(), True
        self._launch.signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
        self._say(end)
        if end == "kill":
            self._change("killed", 3, lambda: None)
            self._written.finish()
        self._wait(lambda: self._launch.code() is not None, END_S, "the end of horovodrun")
        self._wait(lambda: not self._left(), END_S, "no process left", fatal=False)
        self.result.code, self.result.ended_s = self._launch.code(), time.monotonic() - began

    # ------------------------------------------------------------------------------------------------------- changes

    def _set(self, **slots: int) -> None:
        self._slots |= slots
        self._launch.set_slots(self._slots)

    def _heal(self) -> None:
        self._hosts.network.part()
        self._launch.set_slots(self._slots)

    def _boot(self) -> None:
        self._hosts["gamma"].start()
        self._launch.set_slots(self._slots)

    def _change(self, what: str, size: int, make: Callable[[], object], patience_s: float = CHANGE_S) -> None:
        row = Row(what, size, at=time.time())
        self.result.rows.append(row)
        make()
        self._say(f"{what}: to be {size}")
        self._wait(lambda: self._trains_with(size, row.at), patience_s, f"{what}: a ring of {size}")
        self._let_pass(time.monotonic() + STEADY_S)

    def _trains_with(self, size: int, since: float) -> bool:
        """All that train now are in one ring of that size, which is of after the change."""
        fresh = [note for note in self._written.newest().values() if note["at"] > time.time() - FRESH_S]
        rings = {(note["generation"], note["place"][1]) for note in fresh}
        return len(fresh) == size and len(rings) == 1 and rings.pop()[1] == size and all(n["at"] > since for n in fresh)

    def _finish(self) -> None:
        began = time.monotonic()
        self._written.finish()
        self._say("told to end")
        self._wait(lambda: self._launch.code() is not None, END_S, "the end of the job")
        self.result.code, self.result.ended_s = self._launch.code(), time.monotonic() - began
        self._launch.stop()
        self._wait(lambda: not self._left(), END_S, "no process left", fatal=False)

    def _left(self) -> list[int]:
        return [pid for host in self._hosts.all.values() for pid in host.pids() if not _is_of_host(pid)]

    # --------------------------------------------------------------------------------------------------------- seeing

    def _see_listening(self) -> None:
        """No daemon, ring or coordinator listens where another network could reach it."""
        for host in self._hosts.all.values():
            for line in host.output("ss", "-Htlnp").splitlines():
                _, _, _, local, _, *users = line.split()
                program = next(iter(re.findall(r'\("([^"]+)"', " ".join(users))), "?")
                self.result.listening.append(f"{host.name} {local} {program}")
                if program in ("sshd", "horovodrun") or local.endswith(":2181"):  # not ours: these listen everywhere
                    continue
                if not local.removeprefix("[::ffff:").startswith((host.address, "127.0.0.1")):
                    self.result.wrong.append(f"{program} on {host.name} listens at {local}")

    def see(self) -> None:
        """Once all is written."""
        result, events, notes = self.result, self._written.events(), self._written.notes()
        ends = [row.at for row in result.rows[1:]] + [float("inf")]
        for row, end in zip(result.rows, ends, strict=True):
            told = [event for event in events if row.at <= event["ts"] < end]
            pauses = [e["pause_ms"] for e in told if e["kind"] == "scaled" and e.get("pause_ms") is not None]
            row.pause_ms = max(pauses, default=None)
            row.voided = sum(event["kind"] == "batch_voided" for event in told)
            _see_steps(row, end, notes)
        elected = [event for event in events if event["kind"] == "leader_elected"]
        result.leaders = [f"{event['worker']} on {event['log']}" for event in elected]
        self._see_places(notes)
        data = account(self._written.audits())
        result.steps, result.epochs = data.steps, len([epoch for epoch in data.epochs if epoch.trained])
        result.repeated = sum(epoch.repeated for epoch in data.epochs)
        result.lost_samples = sum(epoch.lost for epoch in data.epochs)
        weights = compared([note for lines in notes.values() for note in lines])
        result.compared = weights["compared"]
        if result.lost_samples or result.repeated or data.wrong or not data.clean:
            result.wrong.append(f"{result.lost_samples} samples lost, {result.repeated} repeated, {data.wrong} wrong")
        if weights["different"]:
            result.wrong.append(f"weights differ after {weights['different']} switches")
        if bool(result.code) is not self._ends:
            result.wrong.append(f"exit code {result.code}")

    def _see_places(self, notes: dict[str, list[dict[str, Any]]]) -> None:
        """Local ranks differ on each host, and Horovod says what follows from them."""
        rings: defaultdict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for name, lines in notes.items():
            for note in lines:
                if note["kind"] == "step":
                    rings[note["generation"]].setdefault(name, note)
        for generation, members in sorted(rings.items()):
            size = next(iter(members.values()))["place"][1]
            if len(members) < size:  # one was gone before it had made a step
                continue
            wrong = _wrong_places(generation, members)
            if generation == 1 and not _grouped(members):
                wrong.append("generation 1: ranks are not grouped by host")
            self.result.wrong += wrong

    def _look(self) -> None:
        if self._ends:
            return
        if (code := self._launch.code()) is not None and not (self._written.folder / "epochs").exists():
            raise NotComeTrue(f"the job ended with {code}")


def _is_of_host(pid: int) -> bool:
    """Of what makes it a host: its first shell's sleep, and sshd's listener."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return command == b"" or command.startswith((b"sleep", b"sshd:"))


def _see_steps(row: Row, end: float, notes: dict[str, list[dict[str, Any]]]) -> None:
    """Of those that trained before the change and in the ring after it."""
    firsts = []
    for lines in notes.values():
        steps = [note for note in lines if note["kind"] == "step"]
        before = [note for note in steps if note["at"] < row.at]
        after = [note for note in steps if row.at <= note["at"] < end]
        there = [note["at"] for note in after if note["place"][1] == row.size]
        if not there or (not before and row.what != "started"):
            continue
        firsts.append(there[0])
        times = [note["at"] for note in before[-1:] + after]
        row.longest_s = max(row.longest_s, *(b - a for a, b in itertools.pairwise(times)), 0.0)
    row.after_s = max(firsts) - row.at if firsts else None


def _wrong_places(generation: int, members: dict[str, dict[str, Any]]) -> list[str]:
    wrong = []
    hosts = {name: name.rpartition("-")[0] for name in members}
    ranks = sorted(note["place"][0] for note in members.values())
    locals_ = [(hosts[name], note["place"][2]) for name, note in members.items()]
    if ranks != list(range(len(members))):
        wrong.append(f"generation {generation}: ranks {ranks}")
    if len(set(locals_)) < len(locals_):
        wrong.append(f"generation {generation}: local ranks {sorted(locals_)}")
    for name, note in members.items():
        rank, size, local_rank = note["place"]
        neighbours = sum(host == hosts[name] for host in hosts.values())
        alike = sorted(other["place"][0] for other in members.values() if other["place"][2] == local_rank)
        expected = [rank, size, local_rank, neighbours, alike.index(rank), len(alike)]
        if note["horovod"] != expected:
            wrong.append(f"generation {generation}: Horovod says {note['horovod']} to {name} instead of {expected}")
        if note["booted"] != local_rank:
            wrong.append(f"{name} booted with local rank {note['booted']} and has {local_rank}")
    return wrong


def _grouped(members: dict[str, dict[str, Any]]) -> bool:
    by_rank = sorted(members, key=lambda name: members[name]["place"][0])
    hosts = [host for host, _ in itertools.groupby(by_rank, key=lambda name: name.rpartition("-")[0])]
    return len(hosts) == len(set(hosts))


def play(launch: str, options: Options, cut_s: float, end: str, keep: Path | None) -> Result:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="edl-hosts-") as name:
        folder = Path(name)
        hosts, written = SshHosts(folder, NAMES), Written(folder)
        try:
            hosts.open()
            started = LAUNCHES[launch](folder, hosts, options, dict.fromkeys(NAMES, 1))
            trial = Trial(started, hosts, written, cut_s, say)
            trial.result.launch = launch
            try:
                if end == "finish":
                    trial.run()
                else:
                    trial.run_until(end)
                trial.see()
            except NotComeTrue as error:
                trial.result.wrong.append(str(error))
            if trial.result.wrong:
                say(f"{'; '.join(trial.result.wrong)}\n{written.story()}")
        finally:
            hosts.close()
            if keep is not None:
                logs = (path for path in folder.rglob("*") if path.is_file())
                for path in logs:
                    (keep / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, keep / path.relative_to(folder))
    say("as it must be" if not trial.result.wrong else "not as it must be")
    return trial.result


def _shown(row: Row) -> str:
    after = "-" if row.after_s is None else f"{row.after_s:.1f} s"
    pause = "-" if row.pause_ms is None else f"{row.pause_ms:.0f} ms"
    return f"{row.what:9} {row.size:>4} {after:>8} {pause:>9} {row.longest_s:>7.1f} s {row.voided:>6}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Hosts go, come, are cut off and are killed.")
    parser.add_argument("--launch", default="horovodrun", choices=list(LAUNCHES))
    parser.add_argument("--cut-s", type=float, default=20.0, help="for how long a host is cut off")
    ends = ["finish", "interrupt", "kill"]
    parser.add_argument("--end", default="finish", choices=ends, help="other than by finishing: at once, no changes")
    parser.add_argument("--step-time", type=float, default=0.05)
    parser.add_argument("--keep", type=Path, help="where all that was written is copied to")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := why_no_ssh_hosts():
        raise SystemExit(f"hosts cannot be made here: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    result = play(options.launch, Options(step_s=options.step_time), options.cut_s, options.end, options.keep)
    if options.json:
        print(json.dumps(asdict(result), indent=1))
        return int(bool(result.wrong))
    print("change    size    after     pause   longest voided")
    for row in result.rows:
        print(_shown(row))
    samples = f"{result.lost_samples} samples lost, {result.repeated} repeated"
    print(f"{result.steps} steps, {result.epochs} epochs, {samples}; weights compared {result.compared} times")
    print(f"leaders: {', '.join(result.leaders)}")
    print(f"exit code {result.code}, {result.ended_s:.1f} s after the word that the job should end")
    for complaint in result.wrong:
        print(f"not as it must be: {complaint}")
    return int(bool(result.wrong))


if __name__ == "__main__":
    sys.exit(main())
