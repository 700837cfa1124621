"""Group workers by host: local and cross ranks, and the order of the first ring.

A worker keeps its local rank for life, so that the device it has chosen by it stays its own. It is the smallest one
that is free on its host when it registers; hence unique there, but with gaps once a worker has left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from edl.protocol.record import Identity, Member

Host = tuple[str, str]  # a name alone may be that of several machines, made from one image


class Ranks(msgspec.Struct, frozen=True):
    """A worker's ranks in a roster, in Horovod's words."""

    rank: int
    local_rank: int
    local_size: int  # workers of the roster on this host
    cross_rank: int  # place of this host among those that have this local rank too
    cross_size: int  # how many those are


def host_of(identity: Identity) -> Host:
    return identity.host, identity.address


def free_local_rank(members: Iterable[Member], newcomer: Identity) -> int:
    """Return the smallest local rank that no member on the newcomer's host has; under horovodrun its slot's number.

    A slot is given anew while its last worker may still be a member, which is dead or about to leave. And horovodrun
    may know one host by two names.
    """
    here = [member for member in members if host_of(member.identity) == host_of(newcomer)]
    if slot := newcomer.driver_slot:
        number = int(slot.rpartition(":")[2])
        if all(member.local_rank != number or member.identity.driver_slot == slot for member in here):
            return number
    taken = {member.local_rank for member in here}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def grouped(workers: Sequence[str], members: Mapping[str, Member]) -> tuple[str, ...]:
    """Return the same workers host by host, hosts in the order of their first ones."""
    hosts: dict[Host, list[str]] = {}
    for worker in workers:
        hosts.setdefault(host_of(members[worker].identity), []).append(worker)
    return tuple(worker for host in hosts.values() for worker in host)


def ranks_of(roster: Sequence[str], members: Mapping[str, Member]) -> dict[str, Ranks]:
    """Return the ranks of a whole roster, as all will ask. A worker that is no member counts as its own host."""
    places: dict[str, tuple[Host, int]] = {}
    sizes: defaultdict[Host, int] = defaultdict(int)
    across: defaultdict[int, list[Host]] = defaultdict(list)
    for worker in roster:
        member = members.get(worker)
        host, local_rank = (host_of(member.identity), member.local_rank) if member else ((worker, ""), 0)
        places[worker] = host, local_rank
        sizes[host] += 1
        across[local_rank].append(host)
    order = {(local_rank, host): at for local_rank, hosts in across.items() for at, host in enumerate(hosts)}
    return {
        worker: Ranks(rank, local_rank, sizes[host], order[local_rank, host], len(across[local_rank]))
        for rank, (worker, (host, local_rank)) in enumerate(places.items())
    }
