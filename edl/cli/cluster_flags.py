"""Arguments of `edl cluster`, `submit`, `queue`, `describe`, `cancel`, `logs`, `wait` and `simulate`."""

from __future__ import annotations

import argparse
from typing import Final

from edl.cli.command_arguments import (
    Commands,
    Parser,
    add_job,
    add_list,
    add_settings,
    add_switch,
    add_value,
    add_values,
    command,
    group,
    grouped,
    later,
)

CLUSTER: Final = """
examples:
  edl cluster start --nodes localhost:4       a cluster of four devices on this machine, in the background
  edl submit --min-np 1 --max-np 4 python train.py
  edl queue
  edl cluster stop                            jobs are saved; the next `edl cluster start` goes on with them
"""
START: Final = """
examples:
  edl cluster start                                     all GPUs of this machine, or as many devices as it has cores
  edl cluster start --nodes localhost:4,localhost:4     two nodes of four devices each
  edl cluster start --policy fifo
  edl cluster start --engine slurm                      each worker a job of Slurm, on all nodes that take jobs
  edl cluster start --engine ray                        each worker an actor of Ray: of that of RAY_ADDRESS, or of here
  edl cluster start --http 8000                         and other machines reach it, through a tunnel to 127.0.0.1:8000
  edl cluster start --http 0.0.0.0:8443 --http-certificate cert.pem --http-key key.pem
  edl cluster start --policy elastic-tiresias --set limits=600,3600 --quota ann:2

Returns once it takes jobs. It goes on in the background, and with the queue that was there before.
"""
STOP: Final = """
examples:
  edl cluster stop                 saves each job that trains, ends it, and then all processes of the cluster
  edl cluster stop --now           kills them: what was trained since the last checkpoint is lost
"""
STATUS: Final = """
examples:
  edl cluster status
  edl cluster status --json | jq .nodes
"""
ACCOUNTS: Final = """
examples:
  edl cluster accounts             device-seconds of each job, and what they were used for
  edl cluster accounts --csv > accounts.csv
  edl cluster accounts --json | jq .users
"""
SUBMIT: Final = """
examples:
  edl submit python train.py
  edl submit --name mnist --min-np 1 --max-np 4 python train.py --epochs 9
  edl submit --min-np 2 --max-np 8 --priority 5 --batch-range 256:2048 python train.py

Prints the job's name. It runs in this folder, with the variables of this shell. EDL_HOME says which cluster. One on
another machine (--cluster URL) gets the EDL_ variables, and those that --env names.
"""
OF_TOKENS: Final = """
examples:
  edl cluster token                where the owner's token is, and who else has one
  edl cluster token ann > token    a fresh one for ann, whose last one opens nothing any more
  edl cluster token ann --revoke
"""
OF_MANIFESTS: Final = """
examples:
  edl cluster manifests --image registry.example.org/training:1 --etcd-image registry.example.org/etcd:3.5 > edl.yaml
  edl cluster manifests --image IMAGE --coordinator zk1:2181,zk2:2181 --gpu nvidia.com/gpu --namespace research
  kubectl apply -f edl.yaml

Look at worker.yaml in it: the Pod that each worker's is made from. It was tried on a made-up API server only.
"""
QUEUE: Final = """
examples:
  edl queue                        jobs that wait or run, and the last ones that are over
  edl queue --json | jq '.jobs[] | select(.state == "running").name'
"""
DESCRIBE: Final = """
examples:
  edl describe mnist               as `edl status mnist`
  edl describe mnist --json        of a job of a cluster, all that the queue knows of it
"""
CANCEL: Final = """
example:
  edl cancel mnist                 as `edl stop mnist`; of a job of a cluster it returns at once
"""
LOGS: Final = """
examples:
  edl logs mnist                   what its workers have printed
  edl logs mnist -f                and what they print, until the job is over
  edl logs mnist --worker mnist-2  of a job of a cluster
  edl logs mnist --worker 1        of a job of `edl run`: lines that begin with [1]
"""
WAIT: Final = """
examples:
  edl wait mnist && echo done
  edl wait mnist --timeout 3600

Exit code: 0 when the job has finished, 1 when it has failed or was cancelled, 75 when it was preempted.
"""
# flag -> (metavar, help)
START_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "nodes": (
        "HOST:SLOTS[,...]",
        "nodes, and their devices (default: this machine's GPUs, else its cores; all nodes of Slurm or Ray)",
    ),
    "policy": ("P", "the scheduling policy (default: elastic-tiresias)"),
    "engine": (
        "local|slurm|ray|kubernetes",
        "what starts workers: this machine, jobs of Slurm, actors of Ray, Pods of Kubernetes (default: local)",
    ),
    "http": ("[ADDRESS:]PORT", "also take jobs by HTTP there, with a token (default: not; ADDRESS: 127.0.0.1)"),
    "http-certificate": ("FILE", "speak HTTPS, with this certificate (default: plain HTTP, on loopback only)"),
    "http-key": ("FILE", "the certificate's key"),
    "pod-template": ("FILE", "with --engine kubernetes: the Pod that each worker's is made from, as YAML or JSON"),
    "kubernetes": ("URL", "its API server, such as https://10.0.0.1:6443 (default: that of the Pod that this is)"),
    "kubernetes-account": ("DIR", "a service account's token, ca.crt and namespace (default: the Pod's own)"),
    "kubeconfig": ("FILE", "outside of a Pod: who asks which API server (default: $KUBECONFIG, else ~/.kube/config)"),
    "kube-context": ("NAME", "a context of the kubeconfig (default: its current one)"),
    "schedulers": ("N", "schedulers, of which one leads (default: 2)"),
}
MANIFESTS_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "image": ("IMAGE", "of schedulers and workers: it has edl, and what the jobs need"),
    "etcd-image": ("IMAGE", "of the etcd that the queue lies in; instead of --coordinator"),
    "namespace": ("NAME", "of all that is in a namespace (default: edl)"),
    "nodes": ("NODE:SLOTS[,...]", "Kubernetes' nodes for workers (default: all that take such Pods when it starts)"),
    "gpu": ("RESOURCE", "what a worker has one of, such as nvidia.com/gpu (default: a core)"),
    "storage": ("SIZE", "of the volume that all share (default: 50Gi)"),
    "storage-class": ("NAME", "of that volume: one that many nodes may write to (default: the cluster's own)"),
    "user-id": ("UID", "as whom all run (default: 1000)"),
    "kustomize": ("DIR", "write a Kustomize base to this folder, instead of one file to the output"),
}
SUBMIT_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "batch-range": ("A:B", "samples a step, of all workers together, that a policy may choose from (default: its own)"),
    "priority": ("N", "higher ones first; lower ones shrink for it, or are sent away (default: 0)"),
    "deadline": ("SECONDS", "it should be over by then, from now on: for policies that heed it (default: none)"),
    "folder": ("DIR", "in which it runs, on the cluster's machine (default: this one)"),
    "user": ("U", "whose job it is (default: who types this)"),
}
REACH_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "cluster": ("URL", "a cluster on another machine, such as https://node1:8443 (default: that of EDL_HOME)"),
    "token-file": ("FILE", "with --cluster: the file that holds your token (default: ~/.edl/token)"),
    "ca-file": ("FILE", "with --cluster https://...: who signed its certificate (default: whom this machine trusts)"),
}
ON_KUBERNETES: Final = ("pod-template", "kubernetes", "kubernetes-account", "kubeconfig", "kube-context")
START_GROUPS: Final = {
    "by HTTP": ("http", "http-certificate", "http-key"),
    "on Kubernetes": ON_KUBERNETES,
}
SUBMIT_GROUPS: Final = {"its workers": ("np",), "what the policy goes by": ("batch-range", "priority", "deadline")}
OF_REACH: Final = frozenset(("EDL_CLUSTER", "EDL_TOKEN_FILE", "EDL_CA_FILE"))  # their variables


def add_cluster(found: Commands) -> None:
    commands = group(found, "cluster", "start, stop and inspect a cluster of jobs", CLUSTER)
    parser = command(commands, "start", later("cluster", "start"), "start a cluster", START)
    add_values(parser, START_FLAGS, grouped(parser, START_GROUPS))
    add_list(parser, "--set", "NAME=VALUE", "a parameter of the policy")
    add_list(parser, "--quota", "USER:DEVICES", "devices that this user may have at once")
    add_list(parser, "--highest-priority", "USER:N", "what this user's token may ask for at most (default: 0)")
    add_switch(parser, "--foreground", "stay until SIGTERM or Ctrl-C, then end its processes; workers go on")
    add_settings(parser, "coordinator", "local_coordinator", "session_timeout_s", "log_level", "home")
    parser = command(commands, "stop", later("cluster", "stop"), "stop the cluster", STOP)
    add_switch(parser, "--now", "do not save its jobs first: kill them")
    add_settings(parser, "home")
    parser = command(commands, "status", later("cluster", "status"), "show the state of the cluster", STATUS)
    add_switch(parser, "--json", "one JSON object")
    _add_reach(parser)
    summary = "print the Kubernetes manifests of a cluster"
    parser = command(commands, "manifests", later("cluster", "print_manifests"), summary, OF_MANIFESTS)
    add_values(parser, MANIFESTS_FLAGS)
    add_settings(parser, "coordinator")
    summary = "create or revoke a user's token for the HTTP interface"
    parser = command(commands, "token", later("cluster", "token"), summary, OF_TOKENS)
    parser.add_argument("user", metavar="USER", nargs="?", help="whose token; left out: say who has one")
    add_switch(parser, "--revoke", "the user's token opens nothing any more")
    add_settings(parser, "home")
    summary = "show the device hours of each job and user"
    parser = command(commands, "accounts", later("cluster", "show_accounts"), summary, ACCOUNTS)
    add_switch(parser, "--json", "one JSON object")
    add_switch(parser, "--csv", "comma-separated values, a line for each job")
    _add_reach(parser)


def add_submit(found: Commands) -> None:
    summary = "submit a job to the cluster's queue"
    parser = command(found, "submit", later("queue", "submit"), summary, SUBMIT)
    parser.usage = "edl submit [--name NAME] [-np N] [--min-np A] [--max-np B] [flags] COMMAND..."
    text = "name of the job (default: a new one like brisk-otter-42)"
    groups = grouped(parser, SUBMIT_GROUPS)
    add_value(parser, "--name", "NAME", text, also=("--job",))
    add_values(parser, SUBMIT_FLAGS, groups)
    add_list(parser, "--env", "NAME[=VALUE]", "a variable that it gets")
    add_settings(groups["np"], "np", "min_workers", "max_workers")
    add_switch(groups["np"], "--spread", "its workers on as many nodes as can be, instead of as few")
    add_settings(parser, "checkpoint", "warm_starts")
    _add_reach(parser)
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND...", help="what each worker runs")


def add_jobs(found: Commands) -> None:
    parser = command(found, "queue", later("queue", "queue"), "list the jobs of the cluster", QUEUE)
    add_switch(parser, "--json", "one JSON object")
    _add_reach(parser)
    summaries = {
        "describe": ("show the state of a job: another name of `edl status`", DESCRIBE),
        "cancel": ("stop a job: another name of `edl stop`, which does not wait for a job of a cluster", CANCEL),
        "wait": ("wait until a job is over; exit with its exit code", WAIT),
        "logs": ("show the output of a job's workers", LOGS),
    }
    acts = {
        "describe": later("queue", "describe"),
        "cancel": later("commands", "stop"),
        "wait": later("commands", "wait"),
        "logs": later("logs_command", "logs"),
    }
    for name, (summary, examples) in summaries.items():
        parser = command(found, name, acts[name], summary, examples)
        add_job(parser)
        add_elsewhere(parser)
        if name == "describe":
            add_switch(parser, "--json", "one JSON object")
        elif name == "logs":
            add_switch(parser, "--follow", "print further output until the job is over", "-f")
            text = "only of this worker: its id, or of a job of `edl run` the number before its lines (default: all)"
            add_values(parser, {"worker": ("ID", text)})
        elif name == "wait":
            add_values(parser, {"timeout": ("SECONDS", "give up after so long (default: never)")})


def _add_reach(parser: Parser) -> None:
    """Add the flags that choose the cluster."""
    add_settings(parser, "home")
    add_elsewhere(parser)


def add_elsewhere(parser: Parser) -> None:
    add_values(parser.add_argument_group("a cluster on another machine"), REACH_FLAGS)


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
    summary = "simulate a scheduling policy on a trace of jobs"
    parser = command(found, "simulate", later("simulate", "simulate"), summary, EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="a CSV file of jobs")
    add_value(parser, "--policy", "P", "the scheduling policy", required=True)
    add_list(parser, "--set", "NAME=VALUE", "a parameter of the policy")
    for name, (metavar, text, default) in FLAGS.items():
        known = f" (default: {default})" if default else ""
        add_value(parser, f"--{name}", metavar, f"{text}{known}", default=default)
    add_switch(parser, "--json", "one JSON object")
