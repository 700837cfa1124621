"""Choose the node of each worker, once the number of workers of each job is decided.

A job whose number of workers stays, stays where it is. Three rules for the others:
- `pack`: as few nodes for each job as possible, and the fullest nodes that suffice. A job that shrinks leaves the nodes
  where it has the fewest workers; a job that grows stays and takes more, unless it would fit on fewer nodes elsewhere.
- `spread`: each worker to the node with the most free devices, so that a node that fails costs each job least.
- `most-free`: the node with the most free devices first, filled to its end, again and again; a job that changes is
  placed anew. The simulator of Pollux places so with the policies that it compares itself to.

A worker of several processes takes as many devices of one node: a node with fewer free devices holds none of it.

Owns: the choice of nodes. Does not own: how many workers a job has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from edl.cluster.views import Node, Placement
from edl.errors import ConfigError


class Rule(StrEnum):
    PACK = "pack"
    SPREAD = "spread"
    MOST_FREE = "most-free"


class Free:
    """Count the free devices of each node, and index nodes by that count. Of equal nodes, the first to reach the count
    is taken.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, int] = {}
        self._nodes: dict[int, dict[str, None]] = {}
        self._closed: list[str] = []
        for node in nodes:
            self._free[node.name] = node.devices
            self._nodes.setdefault(node.devices, {})[node.name] = None
            if node.closed:
                self._closed.append(node.name)

    def __getitem__(self, node: str) -> int:
        return self._free[node]

    @property
    def devices(self) -> int:
        return sum(free * len(nodes) for free, nodes in self._nodes.items())

    def take(self, node: str, workers: int) -> None:
        before = self._free[node]
        assert workers <= before, f"{workers} workers on {node}, which has {before} devices free"
        del self._nodes[before][node]
        if not self._nodes[before]:
            del self._nodes[before]
        self._free[node] = before - workers
        self._nodes.setdefault(before - workers, {})[node] = None

    def close(self) -> None:
        """Take away the free devices of closed nodes: no worker comes there."""
        for node in self._closed:
            self.take(node, self._free[node])

    def most(self) -> str:
        return next(iter(self._nodes[max(self._nodes)]))

    def least_with(self, workers: int) -> str | None:
        """Return a node with the fewest free devices that are enough."""
        enough = [free for free in self._nodes if free >= workers]
        return next(iter(self._nodes[min(enough)])) if enough else None


def place(  # noqa: PLR0913 - all that a choice depends on
    nodes: Iterable[Node],
    present: Mapping[str, Placement],
    wanted: Mapping[str, int],
    rule: Rule = Rule.PACK,
    *,
    moves: bool = True,
    spread: Collection[str] = (),
    each: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Placement]:
    """Return job -> node -> devices for each job that is to have any. Raises ConfigError if there are too few devices.

    `moves`: with `pack`, a job that grows may leave its present nodes. `spread`: jobs placed by that rule. `each`: the
    devices of a worker of these jobs, else 1; all counts of a job are multiples. If some nodes are closed and the
    others have too few devices, or too few together on one node, the smallest jobs get fewer than wanted, or none.
    """
    free = Free(nodes)
    asked = sum(wanted.values())
    if asked > free.devices:
        raise ConfigError(f"{asked} devices are wanted, and the nodes have {free.devices}: want fewer")
    found: dict[str, Placement] = {}
    open_: list[str] = []
    for job, workers in wanted.items():
        before = present.get(job, {})
        had = sum(before.values())
        if workers and had == workers:
            found[job] = before
        elif workers and 0 < workers < had and rule is not Rule.MOST_FREE:
            found[job] = _shrunk(before, had - workers, Rule.SPREAD if job in spread else rule, each.get(job, 1))
        elif workers:
            open_.append(job)
            continue
        for node, count in found.get(job, {}).items():
            free.take(node, count)
    if rule is Rule.MOST_FREE:
        for job in open_:
            found[job] = _filled(free, wanted[job], each.get(job, 1))
        return found
    kept = {job: present.get(job, {}) for job in open_}
    for job in open_:
        for node, count in kept[job].items():
            free.take(node, count)
    free.close()
    for job in sorted(open_, key=lambda job: (-each.get(job, 1), -wanted[job])):
        of_job = Rule.SPREAD if job in spread else rule
        found[job] = _grown(free, kept[job], wanted[job], of_job, each.get(job, 1), moves=moves)
    return found


def _shrunk(before: Placement, devices: int, rule: Rule, each: int) -> Placement:
    """Take away the workers of so many devices."""
    after = dict(before)
    for _ in range(devices // each):
        counts = {node: count for node, count in after.items() if count}
        choose = max if rule is Rule.SPREAD else min
        after[choose(reversed(list(counts)), key=lambda node: counts[node])] -= each
    return {node: count for node, count in after.items() if count}


def _grown(free: Free, before: Placement, workers: int, rule: Rule, each: int, *, moves: bool) -> Placement:
    if rule is Rule.SPREAD:
        return _spread(free, before, workers, each)
    after = dict(before)
    for node in sorted(after, key=lambda node: -after[node]):
        more = min(_whole(free[node], each), workers - sum(after.values()))
        if more:
            free.take(node, more)
            after[node] += more
    stays = after | _packed(free, workers - sum(after.values()), each)
    if moves and before and len(stays) > 1:
        for node, count in stays.items():
            free.take(node, -count)
        elsewhere = _packed(free, workers, each)
        if len(elsewhere) < len(stays) and sum(elsewhere.values()) >= sum(stays.values()):
            return elsewhere
        for node, count in elsewhere.items():
            free.take(node, -count)
        for node, count in stays.items():
            free.take(node, count)
    return stays


def _whole(devices: int, each: int) -> int:
    return devices - devices % each


def _packed(free: Free, workers: int, each: int) -> Placement:
    found: Placement = {}
    while workers and free.devices:
        node = free.least_with(workers) or free.most()
        count = min(_whole(free[node], each), workers)
        if not count:
            break
        free.take(node, count)
        found[node] = count
        workers -= count
    return found


def _filled(free: Free, workers: int, each: int) -> Placement:
    found: Placement = {}
    while workers:
        node = free.most()
        count = min(_whole(free[node], each), workers)
        if not count:
            break
        free.take(node, count)
        found[node] = count
        workers -= count
    return found


def _spread(free: Free, before: Placement, workers: int, each: int) -> Placement:
    found = dict(before)
    for _ in range(min(free.devices, workers - sum(before.values())) // each):
        node = free.most()
        if free[node] < each:
            break
        free.take(node, each)
        found[node] = found.get(node, 0) + each
    return found
