"""What led to each change of size of a job, and when: `edl events JOB --json | python -m benchmarks.timeline`.

Reads events from stdin; needs no running job. `step` is the newest that the leader knew of, `after` counts from the
first event of the change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from edl.events import Event, Kind, from_flat
from edl.facts import told

LEADS_TO_IT = {
    Kind.SCALE_ASKED,
    Kind.WORKER_JOINING,
    Kind.WORKER_WARMING,
    Kind.WORKER_READY,
    Kind.BATCH_VOIDED,
    Kind.WORKER_LOST,
    Kind.SWITCH_SCHEDULED,
    Kind.SWITCH_PUT_OFF,
    Kind.SCALED,
}


def changes(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each change of size, `scaled` last."""
    found: list[list[Event]] = [[]]
    for event in events:
        if event.kind in LEADS_TO_IT and event.generation:  # the first ring is no change
            found[-1].append(event)
        if event.kind is Kind.SCALED:
            found.append([])
    return found[:-1]


def lines(change: list[Event]) -> list[str]:
    begun = change[0].ts
    rows = [
        f"{(event.ts - begun) * 1000:>7,.0f} ms  step {event.step:<6}  {event.kind.value:<16}  "
        f"{told(event.kind, event.details)}"
        for event in change
    ]
    return [row.rstrip() for row in rows]


def main() -> int:
    found = changes(from_flat(msgspec.json.decode(line)) for line in sys.stdin.buffer)
    for change in found:
        print("\n".join(lines(change)), end="\n\n")
    if not found:
        print("no change of size among these events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
