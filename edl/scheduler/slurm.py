"""Slurm, asked by its own commands: which nodes there are, how jobs stand; one submitted, signalled, cancelled.

Owns: these calls and the words of their answers. Does not own: what a job of Slurm's is for (`slurm_engine`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from edl.errors import ConfigError, EdlError

ANSWER_S: Final = 30.0
# The last states of a job, in which no process of it is, nor comes. One that is not known here may be of a newer Slurm:
# a worker that is taken for gone while it runs would get its device doubled.
OVER: Final = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
     "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED")
)  # fmt: skip
TAKEN: Final[Mapping[str, str]] = {
    "PREEMPTED": "Slurm has preempted it",
    "TIMEOUT": "its time limit in Slurm was reached",
    "DEADLINE": "its deadline in Slurm was reached",
    "NODE_FAIL": "Slurm has lost its node",
    "BOOT_FAIL": "Slurm could not boot its node",
    "CANCELLED": "it was cancelled in Slurm",
    "REVOKED": "it was revoked in Slurm",
}
GIVING: Final = frozenset(("idle", "mixed", "allocated", "completing", "planned"))  # states of a node that takes jobs
GPUS: Final = re.compile(r"\bgpu(?::[A-Za-z0-9_.-]+)?:([0-9]+)")


class SlurmError(EdlError):
    """Slurm did not do what it was asked, or did not answer."""


class SlurmNode(msgspec.Struct, frozen=True):
    name: str
    state: str
    cpus: int
    gpus: int
    host: str = ""

    @property
    def gives(self) -> bool:
        """Tell whether jobs begin on the node. A `*` after its state means that it does not answer; other signs, that
        it will soon.
        """
        return self.state.rstrip("+-~#") in GIVING

    @property
    def devices(self) -> int:
        return self.gpus or self.cpus


class SlurmJob(msgspec.Struct, frozen=True):
    number: int
    name: str
    state: str

    @property
    def under_way(self) -> bool:
        return self.state not in OVER


def nodes_of(text: str) -> list[SlurmNode]:
    """Parse `sinfo -N -o %N|%T|%c|%G|%n`; a node of several partitions has several lines."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        try:
            name, state, cpus, gres, host = line.strip().split("|")
            gpus = sum(int(count) for count in GPUS.findall(gres))
            found.setdefault(name, SlurmNode(name, state, int(cpus), gpus, host))
        except ValueError:
            raise SlurmError(f"what sinfo says is not understood: {line[:200]!r}") from None
    return list(found.values())


def jobs_of(text: str) -> list[SlurmJob]:
    """Parse `squeue -o %i|%j|%T`."""
    try:
        words = [line.split("|") for line in text.split()]
        return [SlurmJob(int(number), name, state) for number, name, state in words]
    except ValueError:
        raise SlurmError(f"what squeue says is not understood: {text[:200]!r}") from None


class Slurm:
    """Client of Slurm. Each call waits for the answer. SLURM_CONF tells which Slurm is meant, as for Slurm's own
    commands.
    """

    def nodes(self, name: str | None = None) -> list[SlurmNode]:
        """Return the node of that name, or all nodes; where SBATCH_PARTITION names a partition, those of it. Raises
        SlurmError.
        """
        partition = os.environ.get("SBATCH_PARTITION")
        which = ["--nodes", name] if name else ["--partition", partition] if partition else []
        return nodes_of(_said("sinfo", "--noheader", "--Node", *which, "--format=%N|%T|%c|%G|%n"))

    def jobs(self, names: Sequence[str]) -> list[SlurmJob]:
        """Return this user's jobs of these names; also those that are over, as long as Slurm remembers them.

        The user is told by number: what LOGNAME or USER says may be another one.
        """
        which = ["--user", str(os.getuid()), "--name", ",".join(names)]
        return jobs_of(_said("squeue", "--noheader", "--states=all", *which, "--format=%i|%j|%T"))

    def submit(self, flags: Sequence[str], script: str) -> int:
        """Return the job's number."""
        said = _said("sbatch", "--parsable", *flags, text=script)
        try:
            return int(said.split(";")[0])
        except ValueError:
            raise SlurmError(f"what sbatch says is not understood: {said[:200]!r}") from None

    def cancel(self, number: int, *flags: str) -> None:
        _said("scancel", "--quiet", *flags, str(number))

    def signals_all(self) -> bool:
        """Tell whether a signal for a step reaches all of its processes, and not only the first."""
        found = re.search(r"^ProctrackType\s*=\s*(\S+)", _said("scontrol", "show", "config"), re.MULTILINE)
        return found is not None and found[1] == "proctrack/linuxproc"


def _said(*command: str, text: str | None = None) -> str:
    """Raises SlurmError."""
    try:
        done = subprocess.run(
            command, input=text, stdin=subprocess.DEVNULL if text is None else None, capture_output=True, text=True,
            timeout=ANSWER_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError(f"{command[0]} is not there: --engine slurm needs Slurm's commands on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} does not answer within {ANSWER_S:g} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise SlurmError((done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1])
    return done.stdout


def script_of(warden: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a batch script of one step: Slurm tells steps that they are to go, and not the script around them."""
    step = ["srun", "--ntasks=1", "--export=ALL", "--unbuffered", "env", *(f"{k}={v}" for k, v in environ.items())]
    cores = 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'  # srun does not take it over from sbatch since 22.05
    return f"#!/bin/sh\nexport PATH={shlex.quote(environ['PATH'])}\n{cores}\nexec {shlex.join([*step, *warden])}\n"


def flags_of(name: str, node: SlurmNode, slots: int, output: Path, each: int = 1) -> list[str]:
    """Return sbatch's flags for the job of one worker, which gets its share of the node: that of `each` slots. The user
    sets all else by sbatch's own variables.
    """
    shared = [f"--gres=gpu:{each}"] if node.gpus else []
    return [
        f"--job-name={name}",
        f"--nodelist={node.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={max(1, node.cpus * each // slots)}",
        *shared,
        "--no-requeue",  # a worker begins once
        "--signal=TERM@60",  # it leaves before its time is up
        "--export=NIL",
        "--chdir=/",
        "--open-mode=append",
        f"--output={str(output).replace('%', '%%')}",
    ]
