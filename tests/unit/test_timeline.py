"""The events of a job, cut into its changes of size."""

from __future__ import annotations

from benchmarks.timeline import changes, lines
from edl.events import Event, Kind


def event(ts: float, kind: Kind, step: int, **details: object) -> Event:
    return Event(ts, "x", kind, 1, 1 if step else 0, step, details)


GROWN = [
    event(10.0, Kind.WORKER_JOINING, 5, worker="w3", host="here"),
    event(13.5, Kind.WORKER_READY, 80, worker="w3", joining_ms=3000.0, warming_ms=500.0),
    event(13.6, Kind.SCALED, 90, **{"from": 2, "to": 3, "pause_ms": 120.0, "forced": False}),
]
LOST = [
    event(20.0, Kind.WORKER_LOST, 200, worker="w2", was="training", reason="it was killed"),
    event(20.1, Kind.SCALED, 200, **{"from": 3, "to": 2, "pause_ms": 90.0, "forced": True}),
]


def test_each_change_has_what_led_to_it():
    first = event(9.0, Kind.WORKER_JOINING, 0, worker="w1", host="here")
    others = [event(12.0, Kind.EPOCH_ENDED, 60, epoch=1)]
    unfinished = [event(30.0, Kind.WORKER_JOINING, 400, worker="w4", host="here")]
    assert changes([first, GROWN[0], *others, *GROWN[1:], *LOST, *unfinished]) == [GROWN, LOST]


def test_times_count_from_the_first_event_of_the_change():
    assert [line.split()[:5] for line in lines(GROWN)] == [
        ["0", "ms", "step", "5", "worker_joining"],
        ["3,500", "ms", "step", "80", "worker_ready"],
        ["3,600", "ms", "step", "90", "scaled"],
    ]
    assert lines(LOST)[1].endswith("3 → 2 workers; survivors paused for 90 ms; the ring before was broken")
