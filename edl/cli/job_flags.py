"""Arguments of the commands about one job: to start, show (also as a page), change, save and end it; and
about checkpoints and the audit of a job's samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from edl.cli.cluster_flags import add_elsewhere
from edl.cli.command_arguments import (
    Commands,
    add_job,
    add_setting,
    add_settings,
    add_switch,
    add_value,
    add_values,
    command,
    group,
    grouped,
    later,
)
from edl.config import TABLE

RUN_EXAMPLES = """
examples:
  edl run -np 2 python train.py                      two workers on this machine
  edl run -np 2 --max-np 4 --job mnist python train.py --epochs 3
  edl run --detach --job mnist python train.py       in the background: look at it by `edl status`, `edl logs`
  edl run --config mnist.toml python train.py        with settings from a file: np = 2, max-np = 4, ...
  edl run --coordinator zk1:2181,zk2:2181/edl --job mnist python train.py
                                                     two machines that run this line train one job together
  edl run -np 0 --coordinator zk1:2181 --job mnist python train.py
                                                     starts workers here once `edl migrate` moves the job here

Each flag can be given as a variable too: EDL_NP=2, EDL_MAX_NP=4, EDL_JOB=mnist, ...
Exit code: 0 when the job finished, 1 when it failed, 2 when it could not start as it was asked for, 75 when it was
preempted: the same command resumes the job.
Ctrl-C ends the job and all its processes, a second Ctrl-C at once.
"""
STATUS_EXAMPLES = """
examples:
  edl status                      show the job that runs here, or list all jobs
  edl status mnist
  edl status mnist --json | jq .step
  EDL_SECRET_FILE=secret edl status mnist --coordinator zk1:2181
                                  a job that was started on another machine
"""
EVENTS_EXAMPLES = """
examples:
  edl events mnist                all events so far
  edl events mnist --follow       all events so far and each new event, until the job is over
  edl events mnist --json | jq 'select(.kind == "scaled") | .pause_ms'
"""
BATCH_EXAMPLES = """
examples:
  edl batch mnist 512             512 samples a step, of all workers together, from one of the next steps on

Training does not stop. The learning rate follows if the script has called edl.scale_rate(...). If a worker's part of a
step does not fit its memory, take the part in microbatches: `for part, share in edl.microbatches(ids, most=256)`.
"""
SCALE_EXAMPLES = """
examples:
  edl scale mnist 4               ask for four workers
  edl scale mnist 2 --wait        ask for two workers; return when the job has two, and print the pause
  edl scale mnist 8 --wait --timeout 600
                                  the same; stop waiting after ten minutes

  edl scale digits 3              a job of the cluster (`edl submit`): 3 workers at most, as devices are free

`edl run` starts the new workers of its job, and the queue those of a cluster's job. For a job without either, start
workers by EDL_JOB and EDL_COORDINATOR.
"""
STOP_EXAMPLES = """
example:
  edl stop mnist                  end the job; return when the job is over
"""
PROFILE_EXAMPLES = """
examples:
  edl profile mnist --min 1 --max 4             a table: throughput and efficiency with 4, 3, 2, 1 workers
  edl profile mnist --min 2 --max 16 --stride 2 --batches 50 --plot mnist.png
  edl profile mnist --json | jq .rows

The job trains meanwhile. After the last measurement the job gets its former size again.
"""
HOSTS_EXAMPLES = """
examples:
  edl hosts mnist                               localhost:3
  edl hosts mnist --hosts node1:2,node2:2       node1:2 and node2:1
  horovodrun -np 2 --min-np 1 --host-discovery-script "edl hosts mnist -np 2 --hosts node1:2,node2:2" python train.py
                                  as many workers as `edl scale mnist N` asks for
"""
PREEMPT_EXAMPLES = """
examples:
  edl preempt mnist                  save the job and end the job; the same `edl run` command resumes the job
  edl preempt mnist --deadline 10    end the job after 10 s, saved or not

Exit code: 0 once the job is over and saved, 1 if the job could not be saved.
"""
REPLAY_EXAMPLES = """
examples:
  edl replay mnist --step 812                      all parts of that step
  edl replay mnist --step 812 --virtual-worker 3   one of them

The job had --virtual-workers and --audit DIR. Its script runs again, from the newest checkpoint before that step, up to
there: what it writes by itself before, it writes again. Exit code: 0 where all are the same, 1 where not.
"""
MIGRATE_EXAMPLES = """
examples:
  edl migrate mnist --from node1                    to the other hosts on which the job trains
  edl migrate mnist --from node1 --to node2:4       to a host where `edl run -np 0 ...` waits, or where it trains

Training goes on. The command returns when no worker is left on the host; exit code 1, with the reason, if they stay.
"""
CLEAN_EXAMPLES = """
examples:
  edl clean --coordinator zk1:2181            all jobs there that are over and that you may remove
  edl clean --coordinator zk1:2181 --older-than 86400
                                              all jobs that have been over for a day
  edl clean mnist                             one job whose coordinator is on record on this machine

The leader of another job of the same coordinator removes a job a week after its end (`edl run --keep-nodes SECONDS`).
The record of `edl run` on this machine stays.
"""
# title -> settings; settings in no group are listed first
RUN_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "the job": ("job", "np", "min_workers", "max_workers", "processes", "config", "home"),
    "change of size": ("autoscale", "autoscale_every", "batch_policy", "virtual_workers", "stragglers",
                                     "warm_starts"),
    "the ring": ("ring", "network_interface", "check_weights", "on_divergence", "verify_compute"),
    "checkpoints": ("checkpoint", "checkpoint_every", "checkpoint_overhead", "keep_checkpoints", "resume"),
    "faults": ("max_restarts", "session_timeout_s", "step_timeout_s"),
    "the coordinator": ("coordinator", "local_coordinator", "zookeeper_port", "secret_file", "keep_nodes_s"),
    "logs and metrics": ("output_filename", "audit", "tensorboard", "metrics_port", "metrics_address",
                                   "log_level"),
}  # fmt: skip
# flag -> (metavar, help)
PROFILE_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "min": ("A", "smallest size (default: the job's --min-np)"),
    "max": ("B", "largest size, measured first (default: the job's --max-np, else its size)"),
    "stride": ("N", "workers to remove after each size (default: 1)"),
    "batches": ("N", "batches to measure at each size (default: 100)"),
    "timeout": ("SECONDS", "stop when a size takes longer (default: 600)"),
    "plot": ("FILE", "also draw the table, as .png, .svg or .pdf"),
}


def add_run(found: Commands) -> None:
    parser = command(
        found, "run", later("run", "run"), "run a training command as N workers on this machine", RUN_EXAMPLES
    )
    parser.usage = "edl run [-np N] [--min-np A] [--max-np B] [--job NAME] [flags] COMMAND..."
    groups = grouped(parser, RUN_GROUPS)
    for setting in TABLE:
        if setting.flags:
            add_setting(groups.get(setting.field, parser), setting)
    add_switch(groups["job"], "--detach", "run the job in the background, and print its name", "-d")
    summary = "COMMAND is an unchanged script of torchrun's, as with `edl torchrun`"
    groups["job"].add_argument("--as-torchrun", action="store_true", help=summary)
    parser.set_defaults(module=False, fixed_size=False)
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND...", help="what each worker runs")


def add_status(found: Commands) -> None:
    parser = command(
        found, "status", later("commands", "status"), "show the state of a job and of its workers", STATUS_EXAMPLES
    )
    add_job(parser, nargs="?")
    add_elsewhere(parser)
    add_switch(parser, "--json", "one JSON object")


def add_events(found: Commands) -> None:
    parser = command(
        found,
        "events",
        later("commands", "events"),
        "list the events of a job: changes of size, faults, checkpoints",
        EVENTS_EXAMPLES,
    )
    add_job(parser)
    add_switch(parser, "--json", "one JSON object per line")
    add_switch(parser, "--follow", "print further events until the job is over")


def add_scale(found: Commands) -> None:
    parser = command(
        found, "scale", later("scale", "scale"), "change the number of workers while the job trains", SCALE_EXAMPLES
    )
    add_job(parser)
    parser.add_argument("size", metavar="N", help="the new number of workers")
    add_switch(parser, "--wait", "wait until the job has that size, and show progress")
    add_value(
        parser,
        "--timeout",
        "SECONDS",
        "stop asking after this time (default: 60); with --wait, also stop waiting (default: never)",
    )
    add_elsewhere(parser)


def add_batch(found: Commands) -> None:
    summary = "change the global batch size while the job trains"
    parser = command(found, "batch", later("scale", "batch"), summary, BATCH_EXAMPLES)
    add_job(parser)
    parser.add_argument("samples", metavar="N", help="samples of each step, of all workers together")


def add_stop(found: Commands) -> None:
    parser = command(found, "stop", later("commands", "stop"), "stop a job, without a checkpoint", STOP_EXAMPLES)
    add_job(parser)
    add_elsewhere(parser)


def add_profile(found: Commands) -> None:
    summary = "measure throughput at each number of workers"
    parser = command(found, "profile", later("profile", "show_profile"), summary, PROFILE_EXAMPLES)
    add_job(parser)
    add_values(parser, PROFILE_FLAGS)
    add_switch(parser, "--json", "one JSON object")


def add_hosts(found: Commands) -> None:
    parser = command(
        found,
        "hosts",
        later("hosts_command", "show_hosts"),
        "print a host list for horovodrun's elastic host discovery",
        HOSTS_EXAMPLES,
    )
    add_job(parser)
    add_settings(parser, "np", text="workers of a job that has not started")
    parser.add_argument(
        "--hosts",
        metavar="HOST:SLOTS[,...]",
        help="hosts of the job, filled in this order (default: localhost, with slots for all workers) [EDL_HOSTS]",
    )


def add_replay(found: Commands) -> None:
    summary = "compute parts of a step again, and compare them with the run's"
    parser = command(found, "replay", later("replay", "replay"), summary, REPLAY_EXAMPLES)
    parser.add_argument("job", metavar="JOB", help="name of the job, which may be over")
    add_value(parser, "--step", "S", "the step, counted over all lives of the job from 1", required=True)
    add_value(parser, "--virtual-worker", "V", "only the part of this virtual worker, from 0 (default: all)")
    add_settings(parser, "home")


def add_preempt(found: Commands) -> None:
    summary = "save a checkpoint and stop the job; the same `edl run` line resumes it"
    parser = command(found, "preempt", later("checkpoint", "preempt"), summary, PREEMPT_EXAMPLES)
    add_job(parser)
    add_value(
        parser,
        "--deadline",
        "SECONDS",
        "stop the job after that time even if the checkpoint is unfinished (default: 25)",
    )


def add_migrate(found: Commands) -> None:
    summary = "move the workers of a host to other hosts while the job trains"
    parser = command(found, "migrate", later("scale", "migrate"), summary, MIGRATE_EXAMPLES)
    add_job(parser)
    add_value(
        parser, "--from", "HOST", "host that the workers leave: its name or address in `edl status`", field="left"
    )
    others = "new hosts, filled in this order (default: the job's other hosts)"
    add_value(parser, "--to", "HOST:SLOTS[,...]", others)
    text = "time in which the new workers must boot, else the workers stay (default: as long as a boot may take)"
    add_value(parser, "--timeout", "SECONDS", text)


def add_clean(found: Commands) -> None:
    summary = "remove the records of jobs that are over from a coordinator"
    parser = command(found, "clean", later("clean", "clean"), summary, CLEAN_EXAMPLES)
    add_job(parser, nargs="?")
    add_value(parser, "--older-than", "SECONDS", "remove only jobs that ended at least this time ago (default: 0)")


DASHBOARD_EXAMPLES = """
examples:
  edl dashboard                   serve the page of the job that runs here, and print its link
  edl dashboard mnist --port 8000 --allow-scale
                                  at a fixed port, with buttons: grow, shrink, checkpoint, stop
  edl dashboard                   where a cluster runs, its page: the queue, the nodes, the use of devices
  edl dashboard --cluster https://node1:8443
  ssh -L 8000:127.0.0.1:8000 node1
                                  on your own machine, to open the link there

The command serves the page on 127.0.0.1 until Ctrl-C. The link opens the page for any
reader, and training does not slow down.
"""
TOP_EXAMPLES = """
examples:
  edl top                         show the job that runs here, until Ctrl-C
  edl top mnist | head -20        one look as plain lines, as the output is no terminal
"""
REPORT_EXAMPLES = """
examples:
  edl report mnist --html mnist.html
                                  write one file, which any browser opens
  edl report mnist --beside mnist-2 --html both.html
                                  compare two jobs: sizes, throughput, figures such as the loss, where the time went
"""


def add_dashboard(found: Commands) -> None:
    summary = "serve a live web page of a job or a cluster"
    parser = command(found, "dashboard", later("dashboard", "dashboard"), summary, DASHBOARD_EXAMPLES)
    add_job(parser, nargs="?")
    add_value(parser, "--port", "PORT", "port on this machine (default: any free port)", default="0")
    add_elsewhere(parser)
    add_switch(parser, "--allow-scale", "add buttons to the page: grow, shrink, checkpoint, stop")


def add_top(found: Commands) -> None:
    parser = command(found, "top", later("dashboard", "top"), "show a live view of a job in the terminal", TOP_EXAMPLES)
    add_job(parser, nargs="?")


def add_report(found: Commands) -> None:
    summary = "write a report of a job as one HTML file"
    parser = command(found, "report", later("dashboard", "report"), summary, REPORT_EXAMPLES)
    add_job(parser)
    add_value(parser, "--html", "FILE", "HTML file to write", required=True)
    add_value(parser, "--beside", "JOB", "another job, which the report compares with the first one")


DATA_EXAMPLES = """
example:
  edl data verify audit           check each sample of a job that ran with --audit audit
"""
VERIFY_SUMMARY = "verify that a job trained every sample once"
VERIFY_EXAMPLES = """
examples:
  edl run --audit audit python train.py
  edl data verify audit           per epoch: the numbers of samples trained, lost and repeated, and the first of them
  edl data verify audit --json | jq .clean
  edl data verify audit-1 audit-2 all lives of a job that was resumed with a new folder each time

Exit code: 0 when nothing is lost or repeated, 1 when something is, 2 when DIR holds no audit that can be read.
"""
CHECKPOINT_EXAMPLES = """
examples:
  edl checkpoint mnist --wait                   save job mnist now; return once the checkpoint is durable
  edl checkpoint ls checkpoints                 all checkpoints of all jobs in that folder
  edl checkpoint verify s3://bucket/checkpoints --job mnist
"""
LS_EXAMPLES = """
examples:
  edl checkpoint ls checkpoints
  edl checkpoint ls checkpoints --job mnist --json | jq '.checkpoints[0].step'

The newest checkpoint comes first. "durable": the manifest is right, and each file has its length. `verify` reads each
byte.
"""
SHOW_EXAMPLES = """
examples:
  edl checkpoint show checkpoints/mnist         the newest whole checkpoint
  edl checkpoint show checkpoints/mnist/0001-000001-000000000500 --json | jq .ledger
"""
CHECK_EXAMPLES = """
examples:
  edl checkpoint verify checkpoints             each byte of each checkpoint there
  edl checkpoint verify checkpoints/mnist/0001-000001-000000000500

Exit code: 0 when the newest checkpoint of each job is whole, 1 when one is not, 2 when DIR holds no checkpoint.
"""
NOW_EXAMPLES = """
examples:
  edl checkpoint mnist               ask for a checkpoint
  edl checkpoint mnist --wait        ask for a checkpoint; print its path once the checkpoint is durable
"""
EXPORT_EXAMPLES = """
examples:
  edl checkpoint export checkpoints model.safetensors
  edl checkpoint export s3://bucket/checkpoints model.safetensors --job mnist

Writes the model's weights and buffers, without the optimizer, by their names in the model's state_dict:
`model.load_state_dict(safetensors.torch.load_file("model.safetensors"))`.
"""
NOW, EXPORT = "now", "export"
CHECKPOINTS = {
    "ls": ("ls", "list checkpoints", LS_EXAMPLES),
    "show": ("show_one", "show the contents of a checkpoint", SHOW_EXAMPLES),
    "verify": ("verify", "verify the checksums of all files", CHECK_EXAMPLES),
}


def job_named(argv: Sequence[str]) -> list[str]:
    """Read `edl checkpoint JOB` as `edl checkpoint now JOB`: a word that is none of its commands is the name of a
    job.
    """
    words = list(argv)
    if words[:1] == ["checkpoint"] and len(words) > 1 and words[1] not in {*CHECKPOINTS, NOW, EXPORT, "-h", "--help"}:
        words.insert(1, NOW)
    return words


def add_data(found: Commands) -> None:
    commands = group(found, "data", "verify that a job trained every sample once", DATA_EXAMPLES)
    parser = command(commands, "verify", later("data_commands", "verify"), VERIFY_SUMMARY, VERIFY_EXAMPLES)
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        help="folder of --audit (EDL_AUDIT); several folders for several lives of a job",
    )
    add_switch(parser, "--json", "one JSON object")


def add_checkpoint(found: Commands) -> None:
    commands = group(
        found, "checkpoint", "save a checkpoint now; list, verify or export checkpoints", CHECKPOINT_EXAMPLES
    )
    summary = "save a checkpoint of a running job now"
    parser = command(commands, NOW, later("checkpoint", "checkpoint"), summary, NOW_EXAMPLES)
    add_job(parser)
    add_switch(parser, "--wait", "return once the checkpoint is durable, and print its path")
    for name, (act, summary, examples) in CHECKPOINTS.items():
        parser = command(commands, name, later("checkpoint", act), summary, examples)
        parser.add_argument(
            "folder",
            metavar="DIR",
            help="folder or URL: of all checkpoints, of one job's checkpoints, or of one checkpoint",
        )
        add_settings(parser, "job", text="only checkpoints of this job")
        add_switch(parser, "--json", "one JSON object")
    summary = "export the model of a checkpoint as one safetensors file"
    parser = command(commands, EXPORT, later("checkpoint", "export"), summary, EXPORT_EXAMPLES)
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="folder or URL: of all checkpoints, of one job's checkpoints, or of one checkpoint",
    )
    parser.add_argument("file", metavar="FILE", help="new file, such as model.safetensors")
    add_settings(parser, "job", text="only checkpoints of this job")


PROVE_EXAMPLES = """
examples:
  edl prove --quick               try it in two minutes
  edl prove --output reports      ten minutes at most; writes reports/edl-proof-DATE.json and .html
  edl prove -np 4 --device cuda   on four GPUs, and a fifth where a worker joins
  edl prove --hosts n1:2,n2:2     three workers on two hosts, and a fourth that joins

Exit code: 0 when no sample or step was lost and all workers stayed equal, 1 when not. Times are figures, no verdict.
Writes less than 1 GB, to the folder of temporary files, and removes it.
"""


def add_prove(found: Commands) -> None:
    summary = "measure pauses, recovery and step time on this machine, and verify the data"
    parser = command(found, "prove", later("prove", "act"), summary, PROVE_EXAMPLES)
    add_settings(parser, "np", text="workers to begin with; one more joins and leaves (default: 2)")
    add_settings(parser, "ring", text="torch or horovod (default: torch)")
    add_switch(parser, "--quick", "fewer rounds: two minutes")
    add_value(
        parser,
        "--device",
        "auto|cpu|cuda",
        "where the model trains (default: GPUs, where there are enough)",
        default="auto",
    )
    text = "hosts on which the workers run, started over ssh (default: this machine)"
    add_value(parser, "--hosts", "HOST:SLOTS[,...]", text)
    add_value(parser, "--ssh", "COMMAND", "command that runs a line on a host, with its flags (default: ssh)")
    add_value(parser, "--output", "FOLDER", "folder of the two files (default: this one)")
    add_switch(parser, "--json", "print the JSON file")
