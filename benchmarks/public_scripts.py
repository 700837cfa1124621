"""Training scripts of other projects, with the lines changed that edl's pages tell, while workers come, die and go.

    python -m benchmarks.public_scripts CLONES [--scripts NAME...] [--ring RING]

CLONES: a folder with clones of the projects' repositories, each at OWNER/NAME (`pytorch/examples`, `karpathy/nanoGPT`,
...); a script whose clone is not there is left out, and told so. Their data is made up here, in the form in which the
scripts read it; models and epochs are small enough for two cores. `torchvision` is needed for the images, `datasets`
for one script. What changes in each script is in `benchmarks/public_scripts_lines.py`, and printed as a difference.

Each script runs as `edl run -np 2 --max-np 3 --max-restarts 0 --check-weights 1 --audit`; a third worker is asked for
(`edl scale`); once it trains, it or another one is killed by `kill -9`; two go on to the end. A run is good if the job
ends with 0, had the sizes 2, 3 and 2, never found the workers' weights different, which it compares after each step,
and `edl data verify` finds no sample lost or repeated. A script that edl refuses counts as refused if that is said
before its first step, and the line is printed. At the end a table is printed. Exit code 1 if a script is neither good
nor refused.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.public_scripts_lines import SCRIPTS, Script

JOB: Final = "theirs"
PATIENCE_S, END_S = 300.0, 900.0


def changed(text: str, lines: Iterable[tuple[str, str]]) -> str:
    """Raises ValueError where something that is to be changed is not there."""
    for old, new in lines:
        if old not in text:
            raise ValueError(f"the script has no {old!r}: it is of another version")
        text = text.replace(old, new)
    return text


def difference(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and line[:3] not in {"+++", "---"}]


class Outcome(NamedTuple):
    """What was seen of one job."""

    script: str
    lines: tuple[int, int]  # that went, and that came
    sizes: tuple[int, ...]
    steps: int
    void: int  # steps of them that were made twice, as their first mini-batch was void
    verified: str  # the last line of `edl data verify`
    wrong: tuple[str, ...]
    refused: str  # the line that says so

    @property
    def verdict(self) -> str:
        return f"refused: {self.refused}" if self.refused else "; ".join(self.wrong) or "good"

    def row(self) -> str:
        sizes = " → ".join(map(str, self.sizes))
        cells = (self.script, "{}, {}".format(*self.lines), sizes, self.steps, self.void, self.verified, self.verdict)
        return f"| {' | '.join(map(str, cells))} |"


COLUMNS: Final = "| script | lines that went, came | sizes | steps compared | void | samples | |\n" + "| --- " * 7 + "|"

# ---------------------------------------------------------------------------------------------------------- the jobs


class Trial:
    """One script, in a folder of its own."""

    def __init__(self, script: Script, text: str, clones: Path, folder: Path, ring: str | None) -> None:
        self.script, self.folder, self._ring = script, folder / "work" / "a" / "b", ring
        self.folder.mkdir(parents=True)
        self._path = self.folder / Path(script.path).name
        self._path.write_text(text)
        for name in script.beside:
            (self.folder / Path(name).name).write_text((clones / script.clone / name).read_text())
        script.data(self.folder)
        self.output, self._audit = folder / "output", folder / "audit"
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._environ = {**os.environ, **quiet, "EDL_HOME": str(folder / "home")}
        self._edl = str(Path(sys.executable).with_name("edl"))

    def run(self, lines: tuple[int, int]) -> Outcome:
        """Have the job grow, lose a worker and end; `lines`: how many of the script went, and came."""
        wrong = self._told()
        events = self._events()
        scaled = [event for event in events if event["kind"] == "scaled"]
        sizes = (*(event["from"] for event in scaled[:1]), *(event["to"] for event in scaled))
        steps = max((event.get("step", 0) for event in events), default=0)
        void = {event["voided_step"] for event in events if event["kind"] == "batch_voided"}
        refused = self._refused() if wrong and steps <= 1 else ""
        if not wrong and sizes != (2, 3, 2):
            wrong = [f"sizes {sizes}, not 2, 3, 2"]
        wrong += [f"the weights differed: {event['told']}" for event in events if event["kind"] == "diverged"]
        verified = self._edl_says("data", "verify", str(self._audit))
        said = (verified.stdout + verified.stderr).strip().splitlines() or [""]
        wrong += [] if verified.returncode == 0 or refused else [f"edl data verify: {said[-1]}"]
        return Outcome(self.script.name, lines, sizes, steps, len(void), said[-1], tuple(wrong), refused)

    def _told(self) -> list[str]:
        """Run the job; what is wrong with its end."""
        command = [self._edl, "run", "-np", "2", "--max-np", "3", "--max-restarts", "0", "--job", JOB]
        command += ["--check-weights", "1", "--audit", str(self._audit)]
        command += ["--ring", self._ring] if self._ring else []
        command += [sys.executable, self._path.name, *self.script.arguments.split()]
        with self.output.open("wb") as output:
            job = subprocess.Popen(
                command, cwd=self.folder, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            self._wait(lambda: self._status().get("step", 0) > 5, "it trains", job)
            self._run("scale", JOB, "3", "--wait", "--timeout", "120")
            came = self._status()
            self._wait(lambda: self._status().get("step", 0) > came["step"] + 10, "three train", job)
            workers = self._status().get("workers") or came["workers"]  # of one that has just ended nothing is told
            os.kill(workers[-1]["pid"], signal.SIGKILL)
            code = job.wait(END_S)
            return [] if code == 0 else [f"exit code {code}"]
        except (RuntimeError, ProcessLookupError, subprocess.TimeoutExpired) as error:
            return [str(error)]
        finally:
            if job.poll() is None:
                job.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(30)

    def _refused(self) -> str:
        """The line by which edl refused the script."""
        lines = [line for line in self.output.read_text(errors="replace").splitlines() if "UsageError:" in line]
        return lines[-1].partition("UsageError: ")[2].partition("; see `edl events")[0] if lines else ""

    def _events(self) -> list[dict[str, Any]]:
        done = self._edl_says("events", JOB, "--json")
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def _status(self) -> dict[str, Any]:
        done = self._edl_says("status", JOB, "--json")
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def _run(self, *arguments: str) -> None:
        done = self._edl_says(*arguments)
        if done.returncode:
            raise RuntimeError(f"edl {' '.join(arguments)}: {done.stderr.strip()}")

    def _edl_says(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._edl, *arguments], cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )

    def _wait(self, true: Callable[[], bool], what: str, job: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if job.poll() is not None:
                raise RuntimeError(f"it ended with {job.returncode} before {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(0.3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="CLONES")
    parser.add_argument("--scripts", nargs="+", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--ring", choices=["horovod", "torch"])
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for script in SCRIPTS:
        if options.scripts and script.name not in options.scripts:
            continue
        source = options.clones / script.clone / script.path
        if not source.is_file():
            print(f"{script.name}: left out, as {options.clones} has no {script.clone}/{script.path}", flush=True)
            continue
        here = changed(source.read_text(), script.here)
        after = changed(here, script.lines)
        lines = difference(here, after)
        print(f"{script.name}:\n{textwrap.indent(chr(10).join(lines), '    ')}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(script, after, options.clones, Path(folder), options.ring)
            began = time.monotonic()
            came = sum(line[0] == "+" for line in lines)
            outcome = trial.run((len(lines) - came, came))
            print(f"  {outcome.verdict} ({time.monotonic() - began:.0f} s)", flush=True)
            if outcome.wrong and not outcome.refused:
                print(trial.output.read_text(errors="replace")[-3000:], file=sys.stderr, flush=True)
        outcomes.append(outcome)
    print("\n".join([COLUMNS, *(outcome.row() for outcome in outcomes)]))
    return 0 if all(outcome.refused or not outcome.wrong for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
