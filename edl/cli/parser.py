"""What can be typed. The flags of settings come from the table of `edl.config`, so that each has its EDL_ twin."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

import msgspec

from edl import __version__
from edl.cli import cluster_flags, seeing, simulate_flags
from edl.config import TABLE, Given, Setting
from edl.errors import ConfigError, UsageError

RUN_EXAMPLES = """
examples:
  edl run -np 2 python train.py                      two workers on this machine
  edl run -np 2 --max-np 4 --job mnist python train.py --epochs 3
  edl run --coordinator zk1:2181,zk2:2181/edl --job mnist python train.py
                                                     two machines that run this line train one job together
  edl run -np 0 --coordinator zk1:2181 --job mnist python train.py
                                                     starts workers here once `edl migrate` moves the job here

Each flag can be given as a variable too: EDL_NP=2, EDL_MAX_NP=4, EDL_JOB=mnist, ...
Exit code: 0 when the job finished, 1 when it failed, 2 when it could not start as it was asked for, 75 when it was
preempted: the same line goes on with it.
Ctrl-C ends the job and all its processes, a second Ctrl-C at once.
"""
STATUS_EXAMPLES = """
examples:
  edl status                      the job that runs here, or a list when there are several or none
  edl status mnist
  edl status mnist --json | jq .step
  EDL_SECRET_FILE=secret edl status mnist --coordinator zk1:2181
                                  a job that was started on another machine
"""
EVENTS_EXAMPLES = """
examples:
  edl events mnist                what has happened so far
  edl events mnist --follow       and what happens from now on, until the job is over
  edl events mnist --json | jq 'select(.kind == "scaled") | .pause_ms'
"""
BATCH_EXAMPLES = """
examples:
  edl batch mnist 512             from one of the next steps on, 512 samples a step, however many workers there are

Training does not stop for it. The learning rate follows where the script has called edl.scale_rate(...). A worker whose
part of a step would not fit its memory: take it in microbatches, `for part, share in edl.microbatches(ids, most=256)`.
"""

SCALE_EXAMPLES = """
examples:
  edl scale mnist 4               ask for four workers
  edl scale mnist 2 --wait        and return when the job has that size, printing the pause
  edl scale mnist 8 --wait --timeout 600
                                  the same, for ten minutes at most

Growing: `edl run` starts the workers that are missing. For a job without it start them, by EDL_JOB and EDL_COORDINATOR.
"""
STOP_EXAMPLES = """
example:
  edl stop mnist                  ends the job cleanly, and returns when it is over
"""
PROFILE_EXAMPLES = """
examples:
  edl profile mnist --min 1 --max 4             a table: throughput and efficiency with 4, 3, 2, 1 workers
  edl profile mnist --min 2 --max 16 --stride 2 --batches 50 --plot mnist.png
  edl profile mnist --json | jq .rows

The job trains on meanwhile, and afterwards has the size again that it was asked for before.
"""
HOSTS_EXAMPLES = """
examples:
  edl hosts mnist                               localhost:3
  edl hosts mnist --hosts node1:2,node2:2       node1:2 and node2:1
  horovodrun -np 2 --min-np 1 --host-discovery-script "edl hosts mnist -np 2 --hosts node1:2,node2:2" python train.py
                                  as many workers as `edl scale mnist N` asks for
"""
CLEAN_EXAMPLES = """
examples:
  edl clean --coordinator zk1:2181            whatever is over there, as far as it opens to you
  edl clean --coordinator zk1:2181 --older-than 86400
                                              what has been over for a day
  edl clean mnist                             one job, of which the coordinator is on record here

A job that is over also goes by itself, a week after its end (`edl run --keep-nodes SECONDS`), when another job of the
same coordinator has a leader that may remove it. What `edl run` has on record on this machine stays.
"""
DOCTOR_EXAMPLES = """
example:
  edl doctor                      Horovod, Java, ZooKeeper, etcd, ports, packages: what is wrong, and what to do
"""

DATA_EXAMPLES = """
example:
  edl data verify audit           what became of every sample of a job that was run with --audit audit
"""
VERIFY_SUMMARY = "say whether every sample was trained once"
VERIFY_EXAMPLES = """
examples:
  edl run --audit audit python train.py
  edl data verify audit           per epoch: how many samples were trained, lost, repeated, and the first of those
  edl data verify audit --json | jq .clean
  edl data verify audit-1 audit-2 all lives of a job that was resumed, where each had a folder of its own

Exit code: 0 when nothing is lost or repeated, 1 when something is, 2 when DIR holds no audit that can be read.
"""

CHECKPOINT_EXAMPLES = """
examples:
  edl checkpoint mnist --wait                   save job mnist now; returns once that is durable
  edl checkpoint ls checkpoints                 all checkpoints of all jobs in that folder
  edl checkpoint verify s3://bucket/checkpoints --job mnist
"""
LS_EXAMPLES = """
examples:
  edl checkpoint ls checkpoints
  edl checkpoint ls checkpoints --job mnist --json | jq '.checkpoints[0].step'

The newest comes first. "durable": the manifest is right, and all files are as long as it says. `verify` reads them.
"""
SHOW_EXAMPLES = """
examples:
  edl checkpoint show checkpoints/mnist         the newest that is whole
  edl checkpoint show checkpoints/mnist/0001-000001-000000000500 --json | jq .ledger
"""
CHECK_EXAMPLES = """
examples:
  edl checkpoint verify checkpoints             each byte of each checkpoint there
  edl checkpoint verify checkpoints/mnist/0001-000001-000000000500

Exit code: 0 when the newest checkpoint of each job is whole, 1 when one is not, 2 when DIR holds no checkpoint.
"""


PREEMPT_EXAMPLES = """
examples:
  edl preempt mnist                  save it, and end it; the same `edl run` line goes on with it
  edl preempt mnist --deadline 10    after 10 s it ends, saved or not

Exit code: 0 once the job is over and saved, 1 if it could not be saved.
"""
MIGRATE_EXAMPLES = """
examples:
  edl migrate mnist --from node1                    to the other hosts on which the job trains
  edl migrate mnist --from node1 --to node2:4       to a host where `edl run -np 0 ...` waits, or where it trains

Training goes on meanwhile. Returns when no worker is left there; exit code 1, with the reason, when they stay.
"""
NOW_EXAMPLES = """
examples:
  edl checkpoint mnist               ask for a checkpoint
  edl checkpoint mnist --wait        and return once it is durable: prints its path
"""
NOW = "now"
CHECKPOINTS = {
    "ls": ("ls", "list checkpoints", LS_EXAMPLES),
    "show": ("show_one", "show what a checkpoint has", SHOW_EXAMPLES),
    "verify": ("verify", "say whether every byte of them is as it was written", CHECK_EXAMPLES),
}


class Action(Protocol):
    """A command: gets its arguments, returns the exit code."""

    def __call__(self, arguments: argparse.Namespace, /) -> int: ...


def _later(module: str, name: str) -> Action:
    """A command that is imported when it is carried out: `edl hosts` runs each second and needs none of the others."""

    def act(arguments: argparse.Namespace, /) -> int:
        command: Action = getattr(importlib.import_module(f"edl.cli.{module}"), name)
        return command(arguments)

    return act


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, instead of all that would have been right."""

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required:", "missing:").removeprefix("argument ")
        raise UsageError(f"{message}; see '{self.prog} --help'")


def _job_named(argv: Sequence[str]) -> list[str]:
    """`edl checkpoint JOB` is `edl checkpoint now JOB`: a word that is none of its commands is the name of a job."""
    words = list(argv)
    if words[:1] == ["checkpoint"] and len(words) > 1 and words[1] not in {*CHECKPOINTS, NOW, "-h", "--help"}:
        words.insert(1, NOW)
    return words


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; `act` is the command's function. Raises UsageError."""
    parser = build()
    arguments, unknown = parser.parse_known_args(_job_named(argv))
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
    _add_run(found)
    _add_status(found)
    _add_events(found)
    _add_scale(found)
    _add_batch(found)
    _add_stop(found)
    _add_profile(found)
    _add_hosts(found)
    _add_data(found)
    _add_checkpoint(found)
    _add_preempt(found)
    _add_migrate(found)
    _add_clean(found)
    _add_simulate(found)
    _add_cluster(found)
    _add_submit(found)
    _add_jobs(found)
    _add_dashboard(found)
    _add_top(found)
    _add_report(found)
    _add_doctor(found)
    return parser


def _add_run(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "run", _later("run", "run"), "run a command as N workers on this machine", RUN_EXAMPLES)
    parser.usage = "edl run [-np N] [--min-np A] [--max-np B] [--job NAME] [flags] COMMAND..."
    for setting in TABLE:
        if setting.flags:
            _add_setting(parser, setting)
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND...", help="what each worker runs")


def _add_status(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "status", _later("commands", "status"), "show a job as it is", STATUS_EXAMPLES)
    _add_job(parser, nargs="?")
    _add_switch(parser, "--json", "one JSON object")


def _add_events(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "events", _later("commands", "events"), "show what has happened to a job", EVENTS_EXAMPLES)
    _add_job(parser)
    _add_switch(parser, "--json", "one JSON object per line")
    _add_switch(parser, "--follow", "go on until the job is over")


def _add_scale(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "scale", _later("scale", "scale"), "ask for another number of workers", SCALE_EXAMPLES)
    _add_job(parser)
    parser.add_argument("size", metavar="N", help="workers wanted")
    _add_switch(parser, "--wait", "return when the job has that size, and show how far it is meanwhile")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=os.environ.get("EDL_TIMEOUT") or None,
        help="give up asking after so long (default: 60), with --wait also waiting (default: never), where the request "
        "stands [EDL_TIMEOUT]",
    )


def _add_batch(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "ask for another batch: samples a step, of all workers together"
    parser = _command(found, "batch", _later("batch", "batch"), summary, BATCH_EXAMPLES)
    _add_job(parser)
    parser.add_argument("samples", metavar="N", help="samples of each step, of all workers together")


def _add_stop(found: argparse._SubParsersAction[Parser]) -> None:
    _add_job(_command(found, "stop", _later("commands", "stop"), "end a job cleanly", STOP_EXAMPLES))


def _add_profile(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "measure a job at each size, scaling it in"
    parser = _command(found, "profile", _later("profile", "show_profile"), summary, PROFILE_EXAMPLES)
    _add_job(parser)
    texts = {
        "min": ("A", "smallest size (default: the job's --min-np)"),
        "max": ("B", "largest size, with which it begins (default: the job's --max-np, else its size)"),
        "stride": ("N", "workers fewer each time (default: 1)"),
        "batches": ("N", "batches to measure at each size (default: 100)"),
        "timeout": ("SECONDS", "give up when a size takes longer (default: 600)"),
        "plot": ("FILE", "also draw it, as .png, .svg or .pdf"),
    }
    for name, (metavar, text) in texts.items():
        variable = f"EDL_{name.upper()}"
        parser.add_argument(
            f"--{name}", metavar=metavar, default=os.environ.get(variable) or None, help=f"{text} [{variable}]"
        )
    _add_switch(parser, "--json", "one JSON object")


def _add_hosts(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "hosts", _later("hosts", "show_hosts"), "print the hosts a job wants", HOSTS_EXAMPLES)
    _add_job(parser)
    for setting in TABLE:
        if setting.field == "np":
            _add_setting(parser, msgspec.structs.replace(setting, help="workers of a job that is yet to come"))
    parser.add_argument(
        "--hosts",
        metavar="HOST:SLOTS[,...]",
        help="hosts it may use, filled in this order (default: localhost, with slots for all) [EDL_HOSTS]",
    )


def _add_data(found: argparse._SubParsersAction[Parser]) -> None:
    group = _parser(found, "data", "check what became of a job's samples", DATA_EXAMPLES)
    commands = group.add_subparsers(metavar="COMMAND", required=True)
    parser = _command(commands, "verify", _later("data", "verify"), VERIFY_SUMMARY, VERIFY_EXAMPLES)
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        help="the folder that EDL_AUDIT or --audit named; several, where lives of the job had one each",
    )
    _add_switch(parser, "--json", "one JSON object")


def _add_checkpoint(found: argparse._SubParsersAction[Parser]) -> None:
    group = _parser(found, "checkpoint", "save a job now, or look at checkpoints", CHECKPOINT_EXAMPLES)
    commands = group.add_subparsers(metavar="COMMAND", required=True)
    summary = "save a job now: `edl checkpoint JOB`"
    parser = _command(commands, NOW, _later("saving", "checkpoint"), summary, NOW_EXAMPLES)
    _add_job(parser)
    _add_switch(parser, "--wait", "return once the checkpoint is durable, and print where it is")
    for name, (act, summary, examples) in CHECKPOINTS.items():
        parser = _command(commands, name, _later("checkpoint", act), summary, examples)
        parser.add_argument("folder", metavar="DIR", help="a folder or URL of checkpoints, of a job's, or one of them")
        for setting in TABLE:
            if setting.field == "job":
                _add_setting(parser, msgspec.structs.replace(setting, help="only those of this job"))
        _add_switch(parser, "--json", "one JSON object")


def _add_preempt(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "save a job and end it, so that it can be gone on with"
    parser = _command(found, "preempt", _later("saving", "preempt"), summary, PREEMPT_EXAMPLES)
    _add_job(parser)
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        default=os.environ.get("EDL_DEADLINE") or None,
        help="it ends then, saved or not (default: 25) [EDL_DEADLINE]",
    )


def _add_migrate(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "move a job's workers from one host to others while it trains"
    parser = _command(found, "migrate", _later("migrate", "migrate"), summary, MIGRATE_EXAMPLES)
    _add_job(parser)
    texts = {
        "from": ("HOST", "host to be left: its name or address, as `edl status` shows it"),
        "to": ("HOST:SLOTS[,...]", "hosts to go to, filled in this order (default: the others of the job)"),
        "timeout": ("SECONDS", "for the newcomers to be ready; then it stays (default: as long as a boot may take)"),
    }
    for name, (metavar, text) in texts.items():
        variable, field = f"EDL_{name.upper()}", "left" if name == "from" else name
        parser.add_argument(
            f"--{name}",
            dest=field,
            metavar=metavar,
            default=os.environ.get(variable) or None,
            help=f"{text} [{variable}]",
        )


def _add_clean(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "remove what jobs that are over have left in a coordinator"
    parser = _command(found, "clean", _later("clean", "clean"), summary, CLEAN_EXAMPLES)
    _add_job(parser, nargs="?")
    parser.add_argument(
        "--older-than",
        metavar="SECONDS",
        default=os.environ.get("EDL_OLDER_THAN") or None,
        help="only what has been over for so long (default: 0) [EDL_OLDER_THAN]",
    )


def _add_simulate(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "see what a policy would do with the jobs of a trace"
    parser = _command(found, "simulate", _later("simulate", "simulate"), summary, simulate_flags.EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="a CSV file of jobs")
    policy = os.environ.get("EDL_POLICY") or None
    parser.add_argument(
        "--policy", metavar="P", default=policy, required=policy is None, help="which one decides [EDL_POLICY]"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=os.environ.get("EDL_SET", "").split(),
        help="a parameter of the policy; may be given again [EDL_SET]",
    )
    for name, (metavar, text, default) in simulate_flags.FLAGS.items():
        variable = f"EDL_{name.upper().replace('-', '_')}"
        known = f" (default: {default})" if default else ""
        value = os.environ.get(variable) or default
        parser.add_argument(f"--{name}", metavar=metavar, default=value, help=f"{text}{known} [{variable}]")
    _add_switch(parser, "--json", "one JSON object")


def _add_cluster(found: argparse._SubParsersAction[Parser]) -> None:
    group = _parser(found, "cluster", "run jobs on a cluster of this machine", cluster_flags.CLUSTER)
    commands = group.add_subparsers(metavar="COMMAND", required=True)
    parser = _command(commands, "start", _later("cluster", "start"), "start a cluster", cluster_flags.START)
    _add_flags(parser, cluster_flags.START_FLAGS)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=os.environ.get("EDL_SET", "").split(),
        help="a parameter of the policy; may be given again [EDL_SET]",
    )
    parser.add_argument(
        "--quota",
        metavar="USER:DEVICES",
        action="append",
        default=os.environ.get("EDL_QUOTA", "").split(),
        help="devices that this user may have at once; may be given again [EDL_QUOTA]",
    )
    _add_settings(parser, "coordinator", "local_coordinator", "session_timeout_s", "home")
    parser = _command(commands, "stop", _later("cluster", "stop"), "stop it", cluster_flags.STOP)
    _add_switch(parser, "--now", "do not save its jobs first: kill them")
    _add_settings(parser, "home")
    parser = _command(commands, "status", _later("cluster", "status"), "show it as it is", cluster_flags.STATUS)
    _add_switch(parser, "--json", "one JSON object")
    _add_reach(parser)
    summary = "give a user a token for its HTTP interface"
    parser = _command(commands, "token", _later("cluster", "token"), summary, cluster_flags.OF_TOKENS)
    parser.add_argument("user", metavar="USER", nargs="?", help="whose token; left out: say who has one")
    _add_switch(parser, "--revoke", "the user's token opens nothing any more")
    _add_settings(parser, "home")
    summary = "show what its devices were used for, by job and user"
    parser = _command(commands, "accounts", _later("cluster", "show_accounts"), summary, cluster_flags.ACCOUNTS)
    _add_switch(parser, "--json", "one JSON object")
    _add_switch(parser, "--csv", "comma-separated values, a line for each job")
    _add_reach(parser)


def _add_submit(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "give a job to the cluster"
    parser = _command(found, "submit", _later("queue", "submit"), summary, cluster_flags.SUBMIT)
    parser.usage = "edl submit [--name NAME] [-np N] [--min-np A] [--max-np B] [flags] COMMAND..."
    _add_flags(parser, cluster_flags.SUBMIT_FLAGS)
    _add_switch(parser, "--spread", "its workers on as many nodes as can be, instead of as few")
    parser.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=os.environ.get("EDL_ENV", "").split(),
        help="a variable that it gets; may be given again [EDL_ENV]",
    )
    _add_settings(parser, "np", "min_workers", "max_workers", "checkpoint")
    _add_reach(parser)
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND...", help="what each worker runs")


def _add_jobs(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(found, "queue", _later("queue", "queue"), "list the cluster's jobs", cluster_flags.QUEUE)
    _add_switch(parser, "--json", "one JSON object")
    _add_reach(parser)
    summaries = {
        "describe": ("show one job of the cluster", cluster_flags.DESCRIBE),
        "cancel": ("end a job of the cluster for good", cluster_flags.CANCEL),
        "wait": ("wait until a job of the cluster is over", cluster_flags.WAIT),
        "logs": ("show what a job's workers have printed", cluster_flags.LOGS),
    }
    for name, (summary, examples) in summaries.items():
        parser = _command(found, name, _later("logs" if name == "logs" else "queue", name), summary, examples)
        parser.add_argument("job", metavar="JOB", help="name of the job")
        _add_reach(parser)
        if name == "describe":
            _add_switch(parser, "--json", "one JSON object")
        elif name == "logs":
            _add_switch(parser, "--follow", "go on until the job is over", "-f")
            _add_flags(parser, {"worker": ("ID", "only of this worker (default: all)")})
        elif name == "wait":
            _add_flags(parser, {"timeout": ("SECONDS", "give up after so long (default: never)")})


def _add_reach(parser: Parser) -> None:
    """Which cluster it speaks to."""
    _add_settings(parser, "home")
    _add_flags(parser, cluster_flags.REACH_FLAGS)


def _add_flags(parser: Parser, flags: Mapping[str, tuple[str, str]]) -> None:
    for name, (metavar, text) in flags.items():
        variable = f"EDL_{name.upper().replace('-', '_')}"
        parser.add_argument(
            f"--{name}", metavar=metavar, default=os.environ.get(variable) or None, help=f"{text} [{variable}]"
        )


def _add_settings(parser: Parser, *fields: str) -> None:
    for setting in TABLE:
        if setting.field in fields:
            _add_setting(parser, setting)


def _add_dashboard(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "show a job as a page that lives"
    parser = _command(found, "dashboard", _later("dashboard", "dashboard"), summary, seeing.DASHBOARD_EXAMPLES)
    _add_job(parser, nargs="?")
    port = os.environ.get("EDL_PORT") or "0"
    parser.add_argument(
        "--port", metavar="PORT", default=port, help="of this machine (default: any free one) [EDL_PORT]"
    )
    _add_flags(parser, cluster_flags.REACH_FLAGS)
    _add_switch(parser, "--allow-scale", "give the page buttons: grow, shrink, checkpoint, stop")


def _add_top(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        found, "top", _later("top", "top"), "show a job in the terminal as it goes on", seeing.TOP_EXAMPLES
    )
    _add_job(parser, nargs="?")


def _add_report(found: argparse._SubParsersAction[Parser]) -> None:
    summary = "write the page of a job as one file"
    parser = _command(found, "report", _later("report", "report"), summary, seeing.REPORT_EXAMPLES)
    _add_job(parser)
    html = os.environ.get("EDL_HTML") or None
    parser.add_argument("--html", metavar="FILE", default=html, required=html is None, help="the file [EDL_HTML]")


def _add_doctor(found: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(
        found, "doctor", _later("commands", "doctor"), "check this machine and say what to do", DOCTOR_EXAMPLES
    )
    _add_switch(parser, "--json", "one JSON array")


def _command(found: argparse._SubParsersAction[Parser], name: str, act: Action, summary: str, examples: str) -> Parser:
    parser = _parser(found, name, summary, examples)
    parser.set_defaults(act=act, typed=parser.prog)
    return parser


def _parser(found: argparse._SubParsersAction[Parser], name: str, summary: str, examples: str) -> Parser:
    return found.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_job(parser: Parser, nargs: str | None = None) -> None:
    """The job, and what it takes to find one that was started elsewhere."""
    parser.add_argument("job", metavar="JOB", nargs=nargs, help="name of the job")
    for setting in TABLE:
        if setting.field in {"coordinator", "secret_file", "home"}:
            _add_setting(parser, setting)


def _add_switch(parser: Parser, flag: str, text: str, *short: str) -> None:
    variable = f"EDL_{flag.removeprefix('--').upper().replace('-', '_')}"
    value = os.environ.get(variable, "").lower()
    if value not in {"", "0", "1", "false", "true", "no", "yes"}:
        raise ConfigError(f"{variable}={value}: must be 1 or 0")
    on = value in {"1", "true", "yes"}
    parser.add_argument(*short, flag, action="store_true", default=on, help=f"{text} [{variable}]")


def _add_setting(parser: Parser, setting: Setting) -> None:
    parser.add_argument(
        *setting.flags,
        action=_Keep,
        field=setting.field,
        dest="given",
        default={},
        metavar=setting.metavar,
        help=f"{setting.help} [{setting.variables[0]}]",
    )


class _Keep(argparse.Action):
    """Keeps the text of a setting, and how it was typed: `edl.config` reads it, whether it came by flag or variable."""

    def __init__(self, field: str, **keywords: object) -> None:
        super().__init__(**keywords)  # type: ignore[arg-type]
        self._field = field

    def __call__(
        self,
        _: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before: Mapping[str, Given] = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**before, self._field: Given(str(values), f"{option_string} {values}")})
