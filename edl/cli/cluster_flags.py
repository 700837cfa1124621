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
  edl cluster stop                            save the jobs; the next `edl cluster start` resumes the jobs
"""
START: Final = """
examples:
  edl cluster start                                     all GPUs of this machine, or as many devices as it has cores
  edl cluster start --nodes localhost:4,localhost:4     two nodes of four devices each
  edl cluster start --policy fifo
  edl cluster start --engine slurm                      each worker a job of Slurm, on all nodes that take jobs
  edl cluster start --engine ray                        each worker an actor of Ray: RAY_ADDRESS, or here
  edl cluster start --http 8000                         take jobs by HTTP from this machine, or through a tunnel
  edl cluster start --http 0.0.0.0:8443 --http-certificate cert.pem --http-key key.pem
  edl cluster start --policy elastic-tiresias --set limits=600,3600 --quota ann:2

The command returns once the cluster takes jobs. The cluster runs in the background, and keeps its former queue.
"""
STOP: Final = """
examples:
  edl cluster stop                 save and end each job, then end all processes of the cluster
  edl cluster stop --now           kill the jobs; training since the last checkpoint is lost
"""
STATUS: Final = """
examples:
  edl cluster status
  edl cluster status --json | jq .nodes
"""
ACCOUNTS: Final = """
examples:
  edl cluster accounts             device-seconds of each job by use
  edl cluster accounts --csv > accounts.csv
  edl cluster accounts --json | jq .users
"""
SUBMIT: Final = """
examples:
  edl submit python train.py
  edl submit --name mnist --min-np 1 --max-np 4 python train.py --epochs 9
  edl submit --min-np 2 --max-np 8 --priority 5 --batch-range 256:2048 python train.py

The command prints the job's name. The job runs in this folder, with this shell's variables, in the cluster of EDL_HOME.
A cluster on another machine (--cluster URL) gets the EDL_ variables and those of --env.
"""
OF_TOKENS: Final = """
examples:
  edl cluster token                the place of the owner's token, and all users with a token
  edl cluster token ann > token    a new token for ann, which replaces the former token
  edl cluster token ann --revoke
"""
OF_MANIFESTS: Final = """
examples:
  edl cluster manifests --image registry.example.org/training:1 --etcd-image registry.example.org/etcd:3.5 > edl.yaml
  edl cluster manifests --image IMAGE --coordinator zk1:2181,zk2:2181 --gpu nvidia.com/gpu --namespace research
  kubectl apply -f edl.yaml

worker.yaml in the file is the template of each worker's Pod. No real Kubernetes has run the manifests yet.
"""
QUEUE: Final = """
examples:
  edl queue                        waiting and running jobs, and the last jobs that are over
  edl queue --json | jq '.jobs[] | select(.state == "running").name'
"""
DESCRIBE: Final = """
examples:
  edl describe mnist               as `edl status mnist`
  edl describe mnist --json        for a job of a cluster, the queue's whole record
"""
CANCEL: Final = """
example:
  edl cancel mnist                 as `edl stop mnist`; return at once for a job of a cluster
"""
LOGS: Final = """
examples:
  edl logs mnist                   the output of all workers so far
  edl logs mnist -f                the output so far and all further output
  edl logs mnist --worker mnist-2  the output of one worker of a cluster's job
  edl logs mnist --worker 1        for a job of `edl run`: lines that begin with [1]
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
    "http": (
        "[ADDRESS:]PORT",
        "also take jobs by HTTP, with a token, at this address (default: no HTTP; ADDRESS: 127.0.0.1)",
    ),
    "http-certificate": ("FILE", "speak HTTPS, with this certificate (default: plain HTTP, on loopback only)"),
    "http-key": ("FILE", "the certificate's key"),
    "pod-template": ("FILE", "with --engine kubernetes: template of each worker's Pod, as YAML or JSON"),
    "kubernetes": ("URL", "API server, such as https://10.0.0.1:6443 (default: the API server of this Pod)"),
    "kubernetes-account": ("DIR", "a service account's token, ca.crt and namespace (default: the Pod's own)"),
    "kubeconfig": ("FILE", "outside of a Pod: API server and credentials (default: $KUBECONFIG, else ~/.kube/config)"),
    "kube-context": ("NAME", "a context of the kubeconfig (default: its current one)"),
    "schedulers": ("N", "schedulers, of which one leads (default: 2)"),
}
MANIFESTS_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "image": ("IMAGE", "image of schedulers and workers, with edl and the packages of the jobs"),
    "etcd-image": ("IMAGE", "image of the etcd that keeps the queue; instead of --coordinator"),
    "namespace": ("NAME", "namespace of all objects (default: edl)"),
    "nodes": (
        "NODE:SLOTS[,...]",
        "Kubernetes' nodes for workers (default: all nodes that take such Pods at the start)",
    ),
    "gpu": ("RESOURCE", "resource of which each worker gets one, such as nvidia.com/gpu (default: a core)"),
    "storage": ("SIZE", "size of the shared volume (default: 50Gi)"),
    "storage-class": (
        "NAME",
        "storage class of that volume, to which many nodes may write (default: the cluster's own)",
    ),
    "user-id": ("UID", "user id of all containers (default: 1000)"),
    "kustomize": ("DIR", "write a Kustomize base to this folder, instead of printing one file"),
}
SUBMIT_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "batch-range": (
        "A:B",
        "range of the global batch size from which a policy may choose (default: the script's batch size)",
    ),
    "priority": (
        "N",
        "jobs of higher priority come first; jobs of lower priority shrink or are preempted (default: 0)",
    ),
    "deadline": ("SECONDS", "time until the job should be over, for policies with deadlines (default: none)"),
    "folder": ("DIR", "working folder of the job, on the cluster's machine (default: this folder)"),
    "user": ("U", "owner of the job (default: you)"),
}
REACH_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "cluster": ("URL", "a cluster on another machine, such as https://node1:8443 (default: that of EDL_HOME)"),
    "token-file": ("FILE", "with --cluster: the file that holds your token (default: ~/.edl/token)"),
    "ca-file": (
        "FILE",
        "with --cluster https://...: certificate authority of the cluster (default: this machine's authorities)",
    ),
}
ON_KUBERNETES: Final = ("pod-template", "kubernetes", "kubernetes-account", "kubeconfig", "kube-context")
START_GROUPS: Final = {
    "by HTTP": ("http", "http-certificate", "http-key"),
    "on Kubernetes": ON_KUBERNETES,
}
SUBMIT_GROUPS: Final = {"its workers": ("np",), "for the policy": ("batch-range", "priority", "deadline")}
OF_REACH: Final = frozenset(("EDL_CLUSTER", "EDL_TOKEN_FILE", "EDL_CA_FILE"))  # their variables


def add_cluster(found: Commands) -> None:
    commands = group(found, "cluster", "start, stop and inspect a cluster of jobs", CLUSTER)
    parser = command(commands, "start", later("cluster", "start"), "start a cluster", START)
    add_values(parser, START_FLAGS, grouped(parser, START_GROUPS))
    add_list(parser, "--set", "NAME=VALUE", "a parameter of the policy")
    add_list(parser, "--quota", "USER:DEVICES", "devices that this user may have at once")
    add_list(parser, "--highest-priority", "USER:N", "highest priority that this user's token may ask for (default: 0)")
    add_switch(
        parser,
        "--foreground",
        "stay in the foreground; SIGTERM or Ctrl-C ends the cluster's processes, and workers go on",
    )
    add_settings(parser, "coordinator", "local_coordinator", "session_timeout_s", "log_level", "home")
    parser = command(commands, "stop", later("cluster", "stop"), "stop the cluster", STOP)
    add_switch(parser, "--now", "kill the jobs instead of saving them")
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
    parser.add_argument(
        "user", metavar="USER", nargs="?", help="user of the token (default: list all users with a token)"
    )
    add_switch(parser, "--revoke", "revoke the user's token")
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
    add_list(parser, "--env", "NAME[=VALUE]", "environment variable of the job")
    add_settings(groups["np"], "np", "min_workers", "max_workers", "processes")
    add_switch(groups["np"], "--spread", "spread the workers over as many nodes as possible, instead of as few")
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
            text = "show one worker: its id, or for a job of `edl run` the number before its lines (default: all)"
            add_values(parser, {"worker": ("ID", text)})
        elif name == "wait":
            add_values(parser, {"timeout": ("SECONDS", "stop waiting after this time (default: never)")})


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
    "nodes": ("NxG", "N nodes with G devices each", "16x4"),
    "interval": ("SECONDS", "time between two decisions; 0: decide when a job comes or ends", "0"),
    "change-cost": (
        "SECONDS|measured|FILE",
        (
            "cost of a change of size: a stop and a start of SECONDS, the costs measured on edl, or the events of your "
            "job (`edl events JOB --json`)"
        ),
        "measured",
    ),
    "speeds": (
        "fitted|oracle",
        (
            "speeds that the policy knows: fitted to the jobs' reports, or the trace's own tables (default: fitted, "
            "where jobs may change their batch and the policy is no oracle)"
        ),
        None,
    ),
    "placement": ("pack|spread|most-free", "how workers go to nodes (default: the policy's own)", None),
    "failures": (
        "MEAN:LENGTH:LOST",
        (
            "each node fails every MEAN seconds on average, for LENGTH, and its jobs lose LOST seconds of training "
            "(default: no failures)"
        ),
        None,
    ),
    "stragglers": (
        "MEAN:LENGTH:TIMES",
        (
            "each node is slow every MEAN seconds on average, for LENGTH: steps of its jobs take TIMES as long "
            "(default: no stragglers)"
        ),
        None,
    ),
    "seed": ("N", "random seed of failures and stragglers", "0"),
    "applications": ("DIR", "a Pollux trace's tables (default: beside the trace)", None),
    "throughputs": ("DIR", "an ElasticFlow trace's tables (default: beside the trace)", None),
    "plot": ("FILE", "also draw each job's workers and the devices in use, as .png, .svg or .pdf", None),
}


def add_simulate(found: Commands) -> None:
    summary = "simulate a scheduling policy on a trace of jobs"
    parser = command(found, "simulate", later("simulate", "simulate"), summary, EXAMPLES)
    parser.add_argument("trace", metavar="TRACE", help="CSV file of jobs")
    add_value(parser, "--policy", "P", "the scheduling policy", required=True)
    add_list(parser, "--set", "NAME=VALUE", "a parameter of the policy")
    for name, (metavar, text, default) in FLAGS.items():
        known = f" (default: {default})" if default else ""
        add_value(parser, f"--{name}", metavar, f"{text}{known}", default=default)
    add_switch(parser, "--json", "one JSON object")
