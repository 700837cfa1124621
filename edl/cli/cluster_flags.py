"""What can be typed after `edl cluster`, `submit`, `queue`, `describe`, `cancel`, `logs` and `wait`."""

from __future__ import annotations

from typing import Final

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
QUEUE: Final = """
examples:
  edl queue                        jobs that wait or run, and the last ones that are over
  edl queue --json | jq '.jobs[] | select(.state == "running").name'
"""
DESCRIBE: Final = """
example:
  edl describe mnist               what it asked for, where it runs, and what has happened to it, with reasons
"""
CANCEL: Final = """
example:
  edl cancel mnist                 ends it, wherever it is; it is not gone on with
"""
LOGS: Final = """
examples:
  edl logs mnist                   what its workers have printed
  edl logs mnist -f                and what they print, until the job is over
  edl logs mnist --worker mnist-2
"""
WAIT: Final = """
examples:
  edl wait mnist && echo done
  edl wait mnist --timeout 3600

Exit code: 0 when the job has finished, 1 when it has failed or was cancelled.
"""
# flag -> (metavar, what it stands for)
START_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "nodes": (
        "HOST:SLOTS[,...]",
        "nodes, and their devices (default: this machine's GPUs, else its cores; Slurm's nodes)",
    ),
    "policy": ("P", "which policy decides (default: elastic-tiresias)"),
    "engine": ("local|slurm", "what starts workers: processes of this machine, or jobs of Slurm (default: local)"),
    "http": ("[ADDRESS:]PORT", "also take jobs by HTTP there, with a token (default: not; ADDRESS: 127.0.0.1)"),
    "http-certificate": ("FILE", "speak HTTPS, with this certificate (default: plain HTTP, on loopback only)"),
    "http-key": ("FILE", "the certificate's key"),
    "schedulers": ("N", "schedulers, of which one leads (default: 2)"),
}
SUBMIT_FLAGS: Final[dict[str, tuple[str, str]]] = {
    "name": ("NAME", "name of the job (default: a new one like brisk-otter-42)"),
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
