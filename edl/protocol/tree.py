"""The job's nodes in the coordinator. Everything of a job lies under one root, so that one digest ACL covers it.

/edl/<job>/candidates/...   who stands for election (ephemeral)         each daemon (edl.coordination.election)
/edl/<job>/term, /leader    the last term, and who leads in it           edl.coordination.election
/edl/<job>/workers/<id>     a worker's daemon is alive (ephemeral)       its daemon
/edl/<job>/record           all that the leader has decided (Record)     the leader, fenced (I1)
/edl/<job>/events/e-<n>     what has happened                            the leader, in the same transaction
/edl/<job>/resigned         leaders that could not lead, and why         those leaders, fenced
/edl/<job>/secret           the job's secret, where no launcher gave one the first worker
"""

from __future__ import annotations

ROOT = "/edl"


def root(job: str) -> str:
    return f"{ROOT}/{job}"


def record(job: str) -> str:
    return f"{root(job)}/record"


def workers(job: str) -> str:
    return f"{root(job)}/workers"


def worker(job: str, worker_id: str) -> str:
    return f"{workers(job)}/{worker_id}"


def candidates(job: str) -> str:
    return f"{root(job)}/candidates"


def events(job: str) -> str:
    return f"{root(job)}/events"


def secret(job: str) -> str:
    return f"{root(job)}/secret"


def resigned(job: str) -> str:
    return f"{root(job)}/resigned"


def leader(job: str) -> str:
    return f"{root(job)}/leader"
