"""All that can be typed. The flags of settings come from the table of `edl.config`, so that each has its EDL_ twin."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from edl import __version__
from edl.cli import cluster_flags, job_flags, saved_flags, seeing, simulate_flags
from edl.cli.arguments import Commands, Parser, add_switch, command, later
from edl.cli.saved_flags import job_named
from edl.errors import UsageError

DOCTOR_EXAMPLES = """
example:
  edl doctor                      Horovod, Java, ZooKeeper, etcd, ports, packages: what is wrong, and what to do
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; `act` is the command's function. Raises UsageError."""
    parser = build()
    arguments, unknown = parser.parse_known_args(job_named(argv))
    if unknown:
        raise UsageError(f"unknown flag or argument {unknown[0]}; see '{arguments.typed} --help'")
    return arguments


def build() -> Parser:
    parser = Parser(
        prog="edl",
        description="Elastic deep-learning training: jobs that grow and shrink while they run.",
        epilog="`edl COMMAND --help` tells more about each, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"edl {__version__}")
    found = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    job_flags.add_run(found)
    job_flags.add_status(found)
    job_flags.add_events(found)
    job_flags.add_scale(found)
    job_flags.add_batch(found)
    job_flags.add_stop(found)
    job_flags.add_profile(found)
    job_flags.add_hosts(found)
    saved_flags.add_data(found)
    saved_flags.add_checkpoint(found)
    job_flags.add_preempt(found)
    job_flags.add_migrate(found)
    job_flags.add_clean(found)
    simulate_flags.add_simulate(found)
    cluster_flags.add_cluster(found)
    cluster_flags.add_submit(found)
    cluster_flags.add_jobs(found)
    seeing.add_dashboard(found)
    seeing.add_top(found)
    seeing.add_report(found)
    _add_doctor(found)
    return parser


def _add_doctor(found: Commands) -> None:
    parser = command(
        found, "doctor", later("commands", "doctor"), "check this machine and say what to do", DOCTOR_EXAMPLES
    )
    add_switch(parser, "--json", "one JSON array")
