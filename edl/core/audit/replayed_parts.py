"""Compare the digests of parts of steps, as a run's workers have kept them, with those of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edl.core.audit.kept_steps import WorkerAudit
from edl.protocol.audit_lines import PartsComputed


class PartKey(NamedTuple):
    step: int  # counted over all lives
    loop: int  # over the parts of the step
    virtual: int


@dataclass(frozen=True, slots=True)
class ReplayedPart:
    """A part that was computed again."""

    key: PartKey
    here: int  # digest
    in_run: tuple[int, ...]  # digests: several, where a step was void, or a life went on from before it

    @property
    def is_same(self) -> bool:
        """Tell whether it came out each time as here."""
        return set(self.in_run) == {self.here}


Digests = Mapping[PartKey, tuple[int, ...]]


def digests_of(audits: Sequence[WorkerAudit]) -> Digests:
    """Return the digests of each part, each digest once."""
    found: dict[PartKey, dict[int, None]] = {}
    for line in (line for audit in audits for line in audit.lines if isinstance(line, PartsComputed)):
        for virtual, digest in line.digests:
            found.setdefault(PartKey(line.step, line.loop, virtual), {})[digest] = None
    return {key: tuple(digests) for key, digests in found.items()}


def compared(run: Digests, replay: Digests) -> list[ReplayedPart]:
    """Compare the parts that both have, in their order."""
    return [ReplayedPart(key, digests[0], run[key]) for key, digests in sorted(replay.items()) if key in run]
