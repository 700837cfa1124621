"""Training scripts of other projects, with the lines changed that edl's pages tell, while workers come, die and go.

    python -m tests.soaks.public_scripts CLONES [--scripts NAME...] [--ring RING] [--unchanged]

CLONES: a folder with clones of the projects' repositories, each at OWNER/NAME (`pytorch/examples`, `karpathy/nanoGPT`,
...); a script whose clone is not there is left out, and told so. Their data is made up here, in the form in which the
scripts read it; models and epochs are small enough for two cores. `torchvision` is needed for the images, `datasets`
for one script. What changes in each script is in `tests/soaks/public_scripts_lines.py`, and printed as a difference.

Each script runs as `edl run -np 2 --max-np 3 --max-restarts 0 --check-weights 1 --audit`; a third worker is asked for
(`edl scale`); once it trains, it or another one is killed by `kill -9`; two go on to the end. A run is good if the job
ends with 0, had the sizes 2, 3 and 2, never found the workers' weights different, which it compares after each step,
and `edl data verify` finds no sample lost or repeated. A script that edl refuses counts as refused if that is said
before its first step, and the line is printed. At the end a table is printed. Exit code 1 if a script is neither good
nor refused.

With `--unchanged`, the scripts of `tests/soaks/unchanged_scripts.py` run as they are, as `edl torchrun --nproc-per-node
2 --nnodes 1:3`, and the worker with rank 0 is killed, so that the third one goes on to the end. They train at leisure
until then, and what they name as CUDA devices is the CPU, where it says so: `tests/soaks/without_gpu` does both from
outside.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.soaks.public_scripts_lines import SCRIPTS, Script
from tests.soaks.script_job import BY_TORCHRUN, END_S, NotSeenError, ScriptJob, difference
from tests.soaks.unchanged_scripts import UNCHANGED

STAND_IN: Final = Path(__file__).parent / "without_gpu"


def changed(text: str, lines: Iterable[tuple[str, str]]) -> str:
    """Raises ValueError where something that is to be changed is not there."""
    for old, new in lines:
        if old not in text:
            raise ValueError(f"the script has no {old!r}: it is of another version")
        text = text.replace(old, new)
    return text


class Outcome(NamedTuple):
    """What was seen of one job."""

    script: str
    told: str  # of a changed one the numbers of lines that went and came, else what it has
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
        cells = (self.script, self.told, sizes, self.steps, self.void, self.verified, self.verdict)
        return f"| {' | '.join(map(str, cells))} |"


COLUMNS: Final = "| script | {} | sizes | steps compared | void | samples | |\n" + "| --- " * 7 + "|"

# ---------------------------------------------------------------------------------------------------------- the jobs


class Trial:
    """One script, in a folder of its own."""

    def __init__(self, script: Script, text: str, clones: Path, folder: Path) -> None:
        self.script, self._audit, self._hurry = script, folder / "audit", folder / "hurry"
        scripts = folder / "work" / "a" / "b"  # some look for data above themselves
        if script.is_unchanged:
            hidden = shutil.ignore_patterns(".git", "*.ipynb", "*.png")
            shutil.copytree(clones / script.clone / script.room, scripts, ignore=hidden)
        else:
            scripts.mkdir(parents=True)
            (scripts / Path(script.path).name).write_text(text)
        for name in script.beside:
            (scripts / Path(name).name).write_text((clones / script.clone / name).read_text())
        script.data(scripts)
        self.job = ScriptJob(folder, scripts, *((BY_TORCHRUN, self._variables()) if script.is_unchanged else ()))

    def _variables(self) -> dict[str, str]:
        """What makes an unchanged script train at leisure, and on the CPU."""
        return {
            "PYTHONPATH": os.pathsep.join([str(STAND_IN), os.environ.get("PYTHONPATH", "")]),
            "EDL_TEST_HURRY": str(self._hurry),
            "EDL_TEST_PAUSE_S": str(self.script.pause_s),
            **({"EDL_TEST_CUDA_IS_CPU": "1", "PYTORCH_JIT": "0"} if self.script.names_cuda else {}),
            **dict(self.script.environ),
        }

    def _worker(self) -> list[str]:
        """The flags of the script's own, and what a worker runs."""
        arguments = self.script.arguments.split()
        if self.script.is_unchanged:
            path = Path(self.script.path).relative_to(self.script.room)
            return [*self.script.flags.split(), str(path), *arguments]
        return [sys.executable, Path(self.script.path).name, *arguments]

    def run(self, told: str, ring: str | None) -> Outcome:
        """Have the job grow, lose a worker and end."""
        wrong = self._end_of_it(ring)
        events = self.job.events()
        scaled = [event for event in events if event["kind"] == "scaled"]
        sizes = (*(event["from"] for event in scaled[:1]), *(event["to"] for event in scaled))
        steps = max((event.get("step", 0) for event in events), default=0)
        void = {event["voided_step"] for event in events if event["kind"] == "batch_voided"}
        refused = self._refused() if wrong and steps <= 1 else ""
        if not wrong and sizes != (2, 3, 2):
            wrong = [f"sizes {sizes}, not 2, 3, 2"]
        wrong += [f"the weights differed: {event['told']}" for event in events if event["kind"] == "diverged"]
        verified = self.job.edl("data", "verify", str(self._audit))
        said = (verified.stdout + verified.stderr).strip().splitlines() or [""]
        has_samples = not self.script.is_unchanged or "no worker has asked for data" not in said[-1]
        wrong += [] if verified.returncode == 0 or refused or not has_samples else [f"edl data verify: {said[-1]}"]
        return Outcome(
            self.script.name,
            told,
            sizes,
            steps,
            len(void),
            said[-1] if has_samples else "its own",
            tuple(wrong),
            refused,
        )

    def _end_of_it(self, ring: str | None) -> list[str]:
        """Run the job; what is wrong with how it ended."""
        flags = ["--max-restarts", "0", "--check-weights", "1", "--audit", str(self._audit)]
        flags += ["--ring", ring] if ring else []
        with self.job.running(*flags, *self._worker()) as job:
            try:
                self.job.wait_past(5, "it trains", job)
                self.job.scale(3)
                came = self.job.status()
                self.job.wait_past(came["step"] + 10, "three train", job)
                workers = self.job.status().get("workers") or came["workers"]  # of a job that has just ended: none
                first = next((one for one in workers if one["rank"] == 0), workers[0])
                os.kill((first if self.script.is_unchanged else workers[-1])["pid"], signal.SIGKILL)
                self._hurry.touch()
                code = job.wait(END_S)
                return [] if code == 0 else [f"exit code {code}"]
            except (NotSeenError, ProcessLookupError, subprocess.TimeoutExpired) as error:
                return [str(error)]

    def _refused(self) -> str:
        """The line by which edl refused the script: a worker's, or the last one where no worker began."""
        text = self.job.output.read_text(errors="replace").rstrip()
        began = "<stderr>" in text
        refusal = r"UsageError: (.+?)(?:; see `edl events.*)?$"
        if self.script.is_unchanged:  # what the reading of a script says before its workers begin refuses nothing
            refusal = (r"\]<stderr>: ?" if began else r"\A") + r"edl: (\w[\w./]*\.py:\d+: .+)"
        lines = re.findall(refusal, text if began else text[text.rfind("\n") + 1 :], re.MULTILINE)
        return str(lines[-1]) if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="CLONES")
    parser.add_argument("--scripts", nargs="+", choices=[script.name for script in (*SCRIPTS, *UNCHANGED)])
    parser.add_argument("--ring", choices=["horovod", "torch"])
    parser.add_argument("--unchanged", action="store_true", help="play scripts of torchrun's, unchanged")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for script in UNCHANGED if options.unchanged else SCRIPTS:
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
            trial = Trial(script, after, options.clones, Path(folder))
            began = time.monotonic()
            came = sum(line[0] == "+" for line in lines)
            outcome = trial.run(script.has if script.is_unchanged else f"{len(lines) - came}, {came}", options.ring)
            print(f"  {outcome.verdict} ({time.monotonic() - began:.0f} s)", flush=True)
            if outcome.wrong:
                print(trial.job.output.read_text(errors="replace")[-12000:], file=sys.stderr, flush=True)
        outcomes.append(outcome)
    columns = COLUMNS.format("what it has" if options.unchanged else "lines that went, came")
    print("\n".join([columns, *(outcome.row() for outcome in outcomes)]))
    return 0 if all(outcome.refused or not outcome.wrong for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
