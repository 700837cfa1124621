"""The parser of all commands. Flags of settings come from the table of `edl.config`, so that each has its EDL_ twin."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from edl import __version__
from edl.cli import cluster_flags, job_flags, torchrun_flags
from edl.cli.command_arguments import Commands, Parser, add_switch, command, later
from edl.cli.job_flags import job_named
from edl.errors import UsageError

GROUPS = {
    "start a job": ("run", "torchrun", "check", "wait", "doctor", "prove"),
    "watch a job": ("status", "logs", "events", "top", "dashboard", "report", "hosts"),
    "resize or stop a job": ("scale", "batch", "profile", "stop"),
    "save and move a job": ("checkpoint", "preempt", "migrate", "data", "replay", "clean"),
    "run many jobs in a cluster": ("cluster", "submit", "queue", "simulate"),
    "help": ("help", "completion", "version"),
}
ALIASES = ("describe", "cancel")  # of status and stop: the older names, for jobs of a cluster
MORE = """
`edl COMMAND --help` shows the flags of a command, with examples. A JOB is one of `edl run` or of a cluster.
`describe` and `cancel` are other names of `status` and `stop`. Start here: edl run -np 2 python train.py
"""
HELP_EXAMPLES = """
examples:
  edl help                        all commands
  edl help run                    one of them, as `edl run --help`
"""
COMPLETION_EXAMPLES = """
examples:
  source <(edl completion bash)   in this shell; in ~/.bashrc, in each
  source <(edl completion zsh)    the same for zsh, in ~/.zshrc after compinit
  edl completion fish > ~/.config/fish/completions/edl.fish

Completes commands, flags, their values, and names of the jobs of this machine.
"""
VERSION_EXAMPLES = """
example:
  edl version                     as `edl --version`
"""
DOCTOR_EXAMPLES = """
example:
  edl doctor                      Horovod, Java, ZooKeeper, etcd, ports, packages: what is wrong, and what to do
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """`act` of the result is the command's function. Raises UsageError."""
    parser = build()
    if argv and argv[0].startswith("-") and argv[0] not in parser._option_string_actions:
        raise parser.unknown(argv[0])
    arguments, unknown = parser.parse_known_args(job_named(argv or ["help"]))
    if unknown:
        typed: Parser = arguments.typed
        raise typed.unknown(unknown[0])
    return arguments


def build() -> Parser:
    parser = Parser(
        prog="edl",
        description="Elastic deep-learning training: jobs that grow and shrink while they run.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"edl {__version__}")
    found = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    job_flags.add_run(found)
    torchrun_flags.add_torchrun(found)
    torchrun_flags.add_check(found)
    job_flags.add_status(found)
    job_flags.add_events(found)
    job_flags.add_scale(found)
    job_flags.add_batch(found)
    job_flags.add_stop(found)
    job_flags.add_profile(found)
    job_flags.add_hosts(found)
    job_flags.add_data(found)
    job_flags.add_replay(found)
    job_flags.add_checkpoint(found)
    job_flags.add_preempt(found)
    job_flags.add_migrate(found)
    job_flags.add_clean(found)
    cluster_flags.add_simulate(found)
    cluster_flags.add_cluster(found)
    cluster_flags.add_submit(found)
    cluster_flags.add_jobs(found)
    job_flags.add_dashboard(found)
    job_flags.add_top(found)
    job_flags.add_report(found)
    _add_doctor(found)
    job_flags.add_prove(found)
    _add_own(found, parser)
    summaries = {action.dest: action.help for action in found._choices_actions}
    found._choices_actions.clear()  # else these would be listed a second time, in no groups
    blocks = {title: "".join(f"  {name:<12}{summaries[name]}\n" for name in names) for title, names in GROUPS.items()}
    parser.usage, found.help = "edl COMMAND [flags] [arguments]", argparse.SUPPRESS
    parser.epilog = "".join(f"\n{title}:\n{block}" for title, block in blocks.items()) + MORE
    return parser


def _add_own(found: Commands, root: Parser) -> None:
    """Add the commands about the command line itself."""

    def tell(arguments: argparse.Namespace, /) -> int:
        root.parse_args([*arguments.words, "--help"])  # --help ends the process, unless a user's command would begin
        raise UsageError(f"unknown command {' '.join(arguments.words)}; {root.hint}")

    def version(_: argparse.Namespace, /) -> int:
        root.parse_args(["--version"])
        return 0

    parser = command(found, "help", tell, "show all commands, or the help of one command", HELP_EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="the command (default: all)")
    command(found, "version", version, "show the version", VERSION_EXAMPLES)
    summary = "print a completion script for your shell"
    parser = command(found, "completion", later("completion", "complete"), summary, COMPLETION_EXAMPLES)
    parser.add_argument("shell", metavar="bash|zsh|fish", choices=("bash", "zsh", "fish", "words"), help="the shell")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False


def _add_doctor(found: Commands) -> None:
    parser = command(
        found,
        "doctor",
        later("commands", "doctor"),
        "check this machine: what is missing, and how to install it",
        DOCTOR_EXAMPLES,
    )
    add_switch(parser, "--json", "one JSON array")
