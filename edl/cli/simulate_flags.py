"""Arguments of `edl simulate`."""

from __future__ import annotations

from typing import Final

from edl.cli.command_arguments import Commands, add_list, add_switch, add_value, command, later

EXAMPLES: Final = """
examples:
  edl simulate jobs.csv --policy fifo --nodes 4x8
  edl simulate jobs.csv --policy tiresias --set promote=8 --set order=running-first
  edl simulate workload-6.csv --policy tiresias --nodes 16x4 --interval 60 --change-cost 30 --applications applications
  edl simulate 195job.csv --policy elastic-tiresias --nodes 16x8 --throughputs throughputs_A100 --plot gantt.png
  edl simulate jobs.csv --policy srtf --json | jq .summary.mean

jobs.csv needs submitted, workers and duration, in seconds; docs/simulator.md has the other columns, and other formats.
Exit code: 0 when it has been simulated, 2 when the trace or a flag is wrong: one line names its row and the remedy.
"""
# flag -> (metavar, help, default)
FLAGS: Final[dict[str, tuple[str, str, str | None]]] = {
    "nodes": ("NxG", "so many nodes with so many devices each", "16x4"),
    "interval": ("SECONDS", "from one decision to the next; 0: whenever a job comes or ends", "0"),
    "change-cost": (
        "SECONDS|measured|FILE",
        (
            "how long a change keeps a job from training: as a stop and a start of so many seconds, as measured on "
            "edl, or as in the events of a job of yours (`edl events JOB --json`)"
        ),
        "measured",
    ),
    "speeds": (
        "fitted|oracle",
        (
            "what the policy is told of jobs' speeds: what is fitted to what they report, or the trace's own tables "
            "(default: fitted where jobs may change their batch, and the policy is no oracle)"
        ),
        None,
    ),
    "placement": ("pack|spread|most-free", "how workers go to nodes (default: the policy's own)", None),
    "failures": (
        "MEAN:LENGTH:LOST",
        (
            "each node fails every MEAN seconds on average, for LENGTH, and its jobs lose LOST seconds of training "
            "(default: none does)"
        ),
        None,
    ),
    "stragglers": (
        "MEAN:LENGTH:TIMES",
        (
            "each node is slow every MEAN seconds on average, for LENGTH: steps of its jobs take TIMES as long "
            "(default: none is)"
        ),
        None,
    ),
    "seed": ("N", "of what goes wrong", "0"),
    "applications": ("DIR", "a Pollux trace's tables (default: beside the trace)", None),
    "throughputs": ("DIR", "an ElasticFlow trace's tables (default: beside the trace)", None),
    "plot": ("FILE", "also draw it, as .png, .svg or .pdf: each job's workers, and the devices in use", None),
}


def add_simulate(found: Commands) -> None:
    summary = "see what a policy would do with the jobs of a trace"
    parser = command(found, "simulate", later("simulate", "simulate"), summary, EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="a CSV file of jobs")
    add_value(parser, "--policy", "P", "which one decides", required=True)
    add_list(parser, "--set", "NAME=VALUE", "a parameter of the policy")
    for name, (metavar, text, default) in FLAGS.items():
        known = f" (default: {default})" if default else ""
        add_value(parser, f"--{name}", metavar, f"{text}{known}", default=default)
    add_switch(parser, "--json", "one JSON object")
