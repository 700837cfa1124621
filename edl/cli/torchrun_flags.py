"""`edl torchrun`: the flags of torchrun, in the words of `edl run`.

Owns: what each of torchrun's flags means here, and which mean nothing. Does not own: running the job (`edl.cli.run`),
nor what becomes of the script in a worker (`edl.torchrun`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from edl.cli.command_arguments import Commands, add_setting, add_switch, command, grouped, later
from edl.cli.job_flags import RUN_GROUPS
from edl.config import TABLE, Given
from edl.errors import UsageError, did_you_mean
from edl.torchrun.refusals import ACCUMULATE

EXAMPLES = """
examples:
  edl torchrun --standalone --nproc-per-node 2 train.py --epochs 3
                                  the script of `torchrun`, as a job that grows and shrinks while the job trains
  edl torchrun --nnodes 1:4 --nproc-per-node 2 train.py
                                  two workers here, and up to eight in all
  edl torchrun --nproc-per-node 2 -m package.train
  edl run --as-torchrun -np 2 python train.py
                                  the same by the flags of `edl run`, which `edl torchrun` takes, too

The script stays unchanged; docs/torchrun.md lists what the script may use.
"""
WITH_VALUE: Final = {
    "nnodes": ("N|MIN:MAX", "number of nodes, of --nproc-per-node workers each: the bounds of the job's size"),
    "nproc-per-node": ("N|auto|gpu|cpu", "workers to start here (default: 1)"),
    "rdzv-id": ("NAME", "name of the job, like --job"),
    "rdzv-endpoint": ("HOST:PORT", "with --rdzv-backend etcd: the etcd; else this machine, which edl ignores"),
    "rdzv-backend": ("BACKEND", "etcd; edl ignores any other backend"),
    "log-dir": ("DIR", "like --output-filename"),
    "accumulate": ("K", "batches of one update (default: found by a trial, if the script may accumulate)"),
}
WITHOUT_MEANING: Final = {
    "rdzv-conf": "edl has time-outs of its own, as --session-timeout and --step-timeout",
    "role": "all workers are alike",
    "monitor-interval": "the end of a worker is seen at once",
    "start-method": "workers are processes of their own",
    "redirects": "output goes to the terminal, and with --log-dir to files too",
    "tee": "output goes to the terminal, and with --log-dir to files too",
    "node-rank": "ranks are the job's to give",
    "master-addr": "workers find each other by the coordinator",
    "master-port": "workers find each other by the coordinator",
    "local-addr": "take --network-interface",
    "local-ranks-filter": "take `edl logs JOB` for the output of single workers",
    "logs-specs": "take --log-dir",
    "event-log-handler": "take `edl events JOB`",
    "numa-binding": "bind workers by numactl, if they are to be bound",
    "duplicate-stdout-filters": "take `edl logs JOB`",
    "duplicate-stderr-filters": "take `edl logs JOB`",
}
SETTINGS: Final = {"rdzv-id": "job", "log-dir": "output_filename", "max-restarts": "max_restarts"}
SHORT: Final = {"redirects": ("-r",), "tee": ("-t",)}
HERE: Final = ("localhost", "127.0.0.1", "::1", "0", "")
MODULE: Final = (sys.executable, "-u", "-m", "edl.torchrun")
CHECK_EXAMPLES: Final = """
examples:
  edl check train.py              list the lines to know about, and the lines that edl refuses
  edl check --try train.py --epochs 3
                                  also run the script, alone, until its first update

Exit code: 0, or 1 if a line is refused where it is reached.
"""


class Translated(NamedTuple):
    """A line of torchrun's in the words of `edl run`."""

    given: dict[str, Given]
    line: list[str]
    environ: dict[str, str]
    notes: tuple[str, ...]


def add_torchrun(found: Commands) -> None:
    summary = "run an unchanged script for torchrun as an elastic job"
    parser = command(found, "torchrun", later("torchrun_flags", "torchrun"), summary, EXAMPLES)
    parser.usage = "edl torchrun [torchrun's flags] [flags of edl run] SCRIPT ARGS..."
    group = parser.add_argument_group("torchrun's flags")
    for name, (metavar, text) in WITH_VALUE.items():
        group.add_argument(*_spelled(name), dest=_field(name), metavar=metavar, help=text)
    group.add_argument(
        "--fixed-size",
        action="store_true",
        help="keep the job's size; the job ends when a worker is lost",
    )
    group.add_argument("--standalone", action="store_true", help="run the job on this machine alone")
    group.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with `python -m`")
    group.add_argument("--no-python", "--no_python", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--max_restarts", dest="torchrun_max_restarts", help=argparse.SUPPRESS)  # the setting's twin
    for name in WITHOUT_MEANING:
        group.add_argument(*SHORT.get(name, ()), *_spelled(name), dest=_field(name), help=argparse.SUPPRESS)
    groups = grouped(parser, RUN_GROUPS)
    for setting in TABLE:
        if setting.flags:
            add_setting(groups.get(setting.field, parser), setting)
    add_switch(groups["job"], "--detach", "run the job in the background, and print its name", "-d")
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS...", help="what each worker runs")


def add_check(found: Commands) -> None:
    summary = "check whether a script for torchrun can train elastically"
    parser = command(found, "check", later("torchrun_script", "check"), summary, CHECK_EXAMPLES)
    parser.usage = "edl check [flags] SCRIPT ARGS..."
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with `python -m`")
    parser.add_argument("--try", action="store_true", dest="trial", help="run it too, alone, until its first update")
    add_switch(parser, "--json", "one JSON object")
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS...", help="what each worker would run")


def torchrun(arguments: argparse.Namespace) -> int:
    from edl.cli.run import run  # only here: it imports what starts a job

    names = (*WITH_VALUE, *WITHOUT_MEANING, "max-restarts", "standalone", "module", "no-python", "fixed-size")
    flags = {name: value for name in names if (value := getattr(arguments, _field(name), None)) not in {None, False}}
    found = translated(flags, arguments.given, arguments.line)
    for note in found.notes:
        sys.stderr.write(f"edl: {note}\n")
    os.environ.update({name: value for name, value in found.environ.items() if name not in os.environ})
    return run(
        argparse.Namespace(
            given=found.given,
            line=found.line,
            detach=arguments.detach,
            as_torchrun=True,
            module=arguments.module,
            fixed_size=arguments.fixed_size,
        )
    )


def translated(flags: Mapping[str, Any], given: Mapping[str, Given], line: Sequence[str]) -> Translated:
    """Raises UsageError."""
    if "no-python" in flags:
        raise UsageError(
            "--no-python: edl puts its names in the place of torch's inside of Python: give a script, or a module "
            "with -m"
        )
    started = _workers(str(flags.get("nproc-per-node", "1")))
    sizes = {} if "nproc-per-node" not in flags and "np" in given else {"np": started}
    if "nnodes" in flags and "standalone" not in flags:
        fewest, most = _nodes(str(flags["nnodes"]))
        sizes |= {"min_workers": min(fewest * started, started), "max_workers": most * started}
    quotes = " ".join(f"--{name} {flags[name]}" for name in ("nnodes", "nproc-per-node") if name in flags)
    found = {field: Given(str(number), quotes) for field, number in sizes.items()}
    for name, field in SETTINGS.items():
        if name in flags:
            found[field] = Given(str(flags[name]), f"--{name} {flags[name]}")
    if (coordinator := _coordinator(flags)) and "coordinator" not in given:
        found["coordinator"] = coordinator
    found |= given
    if "fixed-size" in flags:
        found |= _fixed(found["np"], flags, given)
    environ = {ACCUMULATE: _batches(str(flags["accumulate"]))} if "accumulate" in flags else {}
    if started > 1:
        environ["OMP_NUM_THREADS"] = "1"  # as torchrun does
    notes = tuple(f"--{name} means nothing here: {why}" for name, why in WITHOUT_MEANING.items() if name in flags)
    return Translated(found, list(line), environ, notes)


def python_line(line: Sequence[str], *, module: bool = False) -> tuple[str, ...]:
    """Return the command of a worker for `SCRIPT ARGS...`, or for `python SCRIPT ARGS...`. Raises UsageError."""
    words, python = list(line[1:] if line[:1] == ["--"] else line), MODULE[0]
    if words and Path(words[0]).name.startswith("python") and not words[0].endswith(".py"):
        python, words = words[0], words[1:]
        if words[:1] == ["-m"]:
            module, words = True, words[1:]
    if not words:
        raise UsageError("SCRIPT is missing, such as `train.py`: see --help")
    script = Path(words[0])
    if not module and not script.is_file():
        near = did_you_mean(script.name, [one.name for one in script.parent.glob("*.py")])
        raise UsageError(f"there is no script {words[0]}{near or f' in {Path.cwd()}'}")
    return (python, *MODULE[1:], *(["-m"] if module else []), *words)


def _fixed(size: Given, flags: Mapping[str, Any], given: Mapping[str, Given]) -> dict[str, Given]:
    """Return the settings of a job that always has `size` workers. Raises UsageError for flags that say otherwise."""
    others = [given[field].quote for field in ("min_workers", "max_workers", "max_restarts") if field in given]
    others += [f"--max-restarts {flags['max-restarts']}"] if "max-restarts" in flags else []
    if others:
        raise UsageError(f"--fixed-size is a job of one size, which ends with a lost worker: leave {others[0]} away")
    quote = f"{size.quote} --fixed-size".strip()
    return {"min_workers": Given(size.text, quote), "max_workers": Given(size.text, quote),
            "max_restarts": Given("0", quote)}  # fmt: skip


def _workers(text: str) -> int:
    gpus = len([one for one in Path("/dev").glob("nvidia*") if one.name.removeprefix("nvidia").isdecimal()])
    cores = len(os.sched_getaffinity(0))
    known = {"cpu": cores, "gpu": gpus, "auto": gpus or cores}
    if text == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: this machine has no GPU: say how many workers")
    if text not in known and not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"--nproc-per-node {text}: must be a whole number of at least 1, auto, gpu or cpu")
    return known[text] if text in known else int(text)


def _batches(text: str) -> str:
    if not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"--accumulate {text}: must be a whole number of at least 1: batches of one update")
    return text


def _nodes(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition(":")
    most = most or fewest
    if not (fewest.isdecimal() and most.isdecimal() and 0 < int(fewest) <= int(most)):
        raise UsageError(f"--nnodes {text}: must be a number of nodes, or MIN:MAX with MIN at most MAX")
    return int(fewest), int(most)


def _coordinator(flags: Mapping[str, Any]) -> Given | None:
    """Return the coordinator that the rendezvous of torchrun can be. Raises UsageError where it cannot be one."""
    endpoint, backend = str(flags.get("rdzv-endpoint", "")), str(flags.get("rdzv-backend", "c10d"))
    quote = f"--rdzv-endpoint {endpoint}"
    if backend.startswith("etcd") and endpoint:
        return Given(f"etcd://{endpoint}", quote)
    if endpoint.rpartition(":")[0] in HERE:
        return None
    raise UsageError(
        f"{quote}: torchrun starts a server there, and edl does not: name a ZooKeeper or an etcd that runs, by "
        "--coordinator HOST:PORT"
    )


def _spelled(name: str) -> tuple[str, ...]:
    """Return both spellings that torchrun takes."""
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def _field(name: str) -> str:
    return (
        f"torchrun_{name.replace('-', '_')}"
        if name not in {"standalone", "module", "no-python", "fixed-size"}
        else name.replace("-", "_")
    )
