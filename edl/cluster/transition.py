"""What goes before what, from one placement of all jobs to the next: who takes a device waits for who has it.

Owns: the order. Does not own: where the workers go (`placement`), nor the changes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from edl.cluster.views import Node, Placement


class Move(msgspec.Struct, frozen=True):
    """One job's change. It can begin once the jobs in `after` have made theirs that stand before it."""

    job: str
    placement: Placement  # empty: it has no worker any more
    after: tuple[str, ...] = ()


def transition(
    nodes: Sequence[Node], present: Mapping[str, Placement], wanted: Mapping[str, Placement]
) -> tuple[Move, ...]:
    """In this order no node ever has more workers than devices. `wanted` has each job that is to have any.

    Where jobs wait for each other in a circle, one of them first gives up what it does not keep, and at worst all.
    """
    here = {job: dict(placement) for job, placement in present.items() if placement}
    free = {node.name: node.devices for node in nodes}
    for placement in here.values():
        for node, count in placement.items():
            free[node] = free.get(node, 0) - count
    todo = {job: dict(wanted.get(job, {})) for job in [*here, *(job for job in wanted if job not in here)]}
    todo = {job: placement for job, placement in todo.items() if placement != here.get(job, {})}
    moves: list[Move] = []
    gave: dict[str, list[str]] = {}  # node -> jobs that have left devices of it, in order

    def move(job: str, after: Placement) -> None:
        before = here.get(job, {})
        taken = [node for node in after if after[node] > before.get(node, 0)]
        waits = dict.fromkeys(giver for node in taken for giver in gave.get(node, ()) if giver != job)
        moves.append(Move(job, after, tuple(waits)))
        for node in {*before, *after}:
            change = after.get(node, 0) - before.get(node, 0)
            free[node] = free.get(node, 0) - change
            if change < 0:
                gave.setdefault(node, []).append(job)
        here[job] = after

    while todo:
        ready = [job for job in todo if _fits(free, here.get(job, {}), todo[job])]
        ready.sort(key=lambda job: sum(todo[job].values()) > sum(here.get(job, {}).values()))  # what shrinks goes first
        if ready:
            move(ready[0], todo.pop(ready[0]))
            continue
        stuck = min((job for job in todo if here.get(job)), key=lambda job: sum(here[job].values()))
        kept = {node: min(count, todo[stuck].get(node, 0)) for node, count in here[stuck].items()}
        kept = {node: count for node, count in kept.items() if count}
        move(stuck, kept if kept != here[stuck] else {})
    return tuple(moves)


def _fits(free: Mapping[str, int], before: Placement, after: Placement) -> bool:
    return all(count - before.get(node, 0) <= free.get(node, 0) for node, count in after.items())
