"""The job's nodes in the coordinator. Everything of a job lies under one root, so that one digest ACL covers it.

/edl/<job>/candidates/...   who stands for election (ephemeral)         each daemon (edl.coordination.election)
/edl/<job>/term, /leader    the last term, and who leads in it           edl.coordination.election
/edl/<job>/workers/<id>     a worker's daemon is alive (ephemeral)       its daemon
/edl/<job>/hosts/<host>/<id> which processes a worker has there (the same) its daemon, for those beside it
/edl/<job>/record           all that the leader has decided (Record)     the leader, fenced (I1)
/edl/<job>/events/e-<n>     what has happened; e<k>-<n>: k events        the leader, in the same transaction
/edl/<job>/resigned         leaders that could not lead, and why         those leaders, fenced
/edl/<job>/secret           the job's secret, where no launcher gave one the first worker
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = "/edl"


def root(job: str) -> str:
    return f"{ROOT}/{job}"


def record(job: str) -> str:
    return f"{root(job)}/record"


def workers(job: str) -> str:
    return f"{root(job)}/workers"


def worker(job: str, worker_id: str) -> str:
    return f"{workers(job)}/{worker_id}"


def host(job: str, host_id: str) -> str:
    return f"{root(job)}/hosts/{host_id}"


def candidates(job: str) -> str:
    return f"{root(job)}/candidates"


def events(job: str) -> str:
    return f"{root(job)}/events"


def told(job: str, count: int) -> str:
    """Return the beginning of the name of a node of so many events; the coordinator appends its number."""
    # Events written at once lie in one node: a coordinator bounds the operations of a transaction, and a hundred
    # workers may come at once. The name tells how many there are, so that no process reads those that it knows.
    return f"{events(job)}/e{'' if count == 1 else count}-"


def events_in(name: str) -> int:
    return int(name[1:].partition("-")[0] or 1)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the nodes of events, oldest first."""
    return sorted(names, key=lambda name: name.rpartition("-")[2])


def secret(job: str) -> str:
    return f"{root(job)}/secret"


def resigned(job: str) -> str:
    return f"{root(job)}/resigned"


def leader(job: str) -> str:
    return f"{root(job)}/leader"
