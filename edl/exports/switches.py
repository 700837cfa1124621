"""The parts of a change of the ring as spans of time, from a job's events alone. Pure.

Owns: which events belong to one switch, and when each part of the switch was. Does not own: sending the spans
(`edl.exports.opentelemetry`).

An event has the time at which the leader wrote it, and the lengths of its parts. So a span ends at the time of its
event, and the three parts of a pause, of which only the lengths are known, follow one another up to the end of the
pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from edl.events import Kind

Attributes = dict[str, str | int | float | bool]


class Part(msgspec.Struct, frozen=True):
    """Times are in seconds since 1970."""

    name: str  # plan, boot, rehearsal, leave, enter or state
    began: float
    ended: float
    attributes: Attributes = {}


class Switch(msgspec.Struct, frozen=True):
    """A change of the ring, from the request or the boot of its first newcomer until the next ring trains."""

    number: int  # place in the job's history of the event that completed the switch
    began: float
    ended: float
    attributes: Attributes
    parts: tuple[Part, ...]


class Newcomer(msgspec.Struct, frozen=True):
    """A worker that is ready, and in no ring yet."""

    worker: str
    ready: float
    parts: tuple[Part, ...]


class Switches:
    """Find one job's switches while its events come in."""

    def __init__(self) -> None:
        self._newcomers: dict[str, Newcomer] = {}
        self._count = 0  # number of events so far
        self._planned: dict[int, Mapping[str, Any]] = {}  # by generation; `ts` is when the switch was scheduled first

    def take(self, events: Iterable[Mapping[str, Any]]) -> list[Switch]:
        """Return the switches that these events complete."""
        return [done for flat in events if (done := self._take(flat)) is not None]

    def _take(self, flat: Mapping[str, Any]) -> Switch | None:
        self._count += 1
        match flat["kind"]:
            case Kind.WORKER_READY.value:
                self._newcomers[flat["worker"]] = _newcomer(flat)
            case Kind.WORKER_LOST.value | Kind.WORKER_LEFT.value | Kind.WORKER_UNFIT.value:
                self._newcomers.pop(flat["worker"], None)
            case Kind.LIFE_BEGUN.value:
                self._newcomers, self._planned = {}, {}
            case Kind.SWITCH_SCHEDULED.value:
                known = self._planned.get(flat["next_generation"], flat)
                self._planned[flat["next_generation"]] = {**flat, "ts": known["ts"]}
            case Kind.SCALED.value:
                return self._done(flat)
            case _:  # events of the other kinds are no part of a switch
                pass
        return None

    def _done(self, flat: Mapping[str, Any]) -> Switch:
        ended, pause_s = float(flat["ts"]), (flat.get("pause_ms") or 0.0) / 1000
        plan = self._planned.get(flat["generation"])
        self._planned = {number: one for number, one in self._planned.items() if number > flat["generation"]}
        parts = [part for newcomer in self._entered(plan) for part in newcomer.parts]
        if plan is not None:
            parts.append(Part("plan", plan["ts"], max(plan["ts"], ended - pause_s)))
        parts += _pause(flat)
        asked = [ended - flat["asked_ms"] / 1000] if flat.get("asked_ms") is not None else []
        began = min([ended - pause_s, *asked, *(part.began for part in parts)])
        attributes: Attributes = {
            "edl.job": flat["job"],
            "edl.generation": flat["generation"],
            "edl.term": flat["term"],
            "edl.step": flat["step"],
            "edl.workers.before": flat["from"],
            "edl.workers.after": flat["to"],
            "edl.forced": bool(flat.get("forced")),
            "edl.pause_ms": float(flat.get("pause_ms") or 0.0),
        }
        return Switch(self._count, began, ended, attributes, tuple(parts))

    def _entered(self, plan: Mapping[str, Any] | None) -> list[Newcomer]:
        """Take the newcomers of a planned switch: those that were ready first, as many as the plan has."""
        waiting = sorted(self._newcomers.values(), key=lambda one: one.ready)
        entered = waiting[: plan["newcomers"] if plan is not None else 0]
        for one in entered:
            del self._newcomers[one.worker]
        return entered


def _newcomer(flat: Mapping[str, Any]) -> Newcomer:
    ready = float(flat["ts"])
    rehearsed_s, booted_s = ((flat.get(name) or 0) / 1000 for name in ("warming_ms", "joining_ms"))
    about: Attributes = {"edl.worker": flat["worker"]}
    spans = [
        ("boot", flat.get("joining_ms"), ready - rehearsed_s - booted_s, ready - rehearsed_s),
        ("rehearsal", flat.get("warming_ms"), ready - rehearsed_s, ready),
    ]
    parts = tuple(Part(name, began, ended, about) for name, known, began, ended in spans if known is not None)
    return Newcomer(flat["worker"], ready, parts)


def _pause(flat: Mapping[str, Any]) -> list[Part]:
    """Split the pause of the survivor that lost most time into its parts."""
    parts: list[Part] = []
    ended = float(flat["ts"])
    for name in ("state", "enter", "leave"):
        span_ms = flat.get(f"{name}_ms")
        if span_ms is not None:
            parts.insert(0, Part(name, ended - span_ms / 1000, ended))
            ended -= span_ms / 1000
    return parts
