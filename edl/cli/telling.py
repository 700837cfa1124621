"""What an event says beyond its kind, in words: for people. Programs read `edl events --json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FIXED = ("ts", "job", "kind", "term", "generation", "step")  # of an event; the rest are its details
PARTS = ("leave", "enter", "state")  # of a pause

Details = Mapping[str, Any]


def told(event: Details) -> str:
    """The details of one flat event."""
    details = {name: value for name, value in event.items() if name not in FIXED}
    try:
        return WORDS.get(event["kind"], _plain)(details)
    except (KeyError, TypeError, ValueError):  # told by another version of edl
        return _plain(details)


def _plain(details: Details) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in details.items())


def _scale_asked(details: Details) -> str:
    leavers = ", ".join(details.get("leavers", ()))
    return f"{details['before']} → {details['size']} workers{f'; to leave: {leavers}' if leavers else ''}"


def _joining(details: Details) -> str:
    return f"{details['worker']} on {details['host']}"


def _spent(details: Details) -> str:
    """What a worker has gone through, and how long that took."""
    did = {"joining_ms": "booting", "warming_ms": "rehearsing", "leaving_ms": "leaving"}
    took = [f"{_seconds(details[name])} of {word}" for name, word in did.items() if details.get(name) is not None]
    return f"{details['worker']}{' after ' if took else ''}{' and '.join(took)}"


def _scheduled(details: Details) -> str:
    step = "at once" if details["after_step"] is None else f"after step {details['after_step']}"
    new = f", {details['newcomers']} of them new" if details["newcomers"] else ""
    return f"generation {details['next_generation']} {step}: {details['size']} workers{new}"


def _put_off(details: Details) -> str:
    return f"generation {details['next_generation']}: its word came after step {details['after_step']}; planned anew"


def _scaled(details: Details) -> str:
    line = f"{details['from']} → {details['to']} workers"
    if details.get("pause_ms") is not None:
        parts = [f"{part} {details[f'{part}_ms']:.0f}" for part in PARTS if details.get(f"{part}_ms") is not None]
        line += f"; survivors paused for {details['pause_ms']:.0f} ms" + (f" ({', '.join(parts)})" if parts else "")
    if details.get("asked_ms") is not None:
        line += f"; {_seconds(details['asked_ms'])} after it was asked for"
    return line + ("; the ring before was broken" if details.get("forced") else "")


def _lost(details: Details) -> str:
    return f"{details['worker']}, which was {details['was']}: {details['reason']}"


def _unfit(details: Details) -> str:
    return f"{details['worker']} of {details['host']} can be part of no ring: {details['reason']}"


def _recounted(details: Details) -> str:
    freed, lost = ", ".join(details["freed"]), ", ".join(details["given_up"])
    line = f"horovodrun has {details['size']} workers" + (f", without {freed}" if freed else "")
    return line + (f"; it has given up {lost}" if lost else "")


def _decision(details: Details) -> str:
    replace = ", ".join(details.get("replace", ()))
    what = f"another worker for {replace}" if replace else f"{details['size']} workers"
    return f"{what}{'' if details['act'] else ' (as it is)'}: {details['reason']}"


WORDS: Mapping[str, Callable[[Details], str]] = {
    "scale_asked": _scale_asked,
    "decision": _decision,
    "recounted": _recounted,
    "worker_joining": _joining,
    "worker_warming": _spent,
    "worker_ready": _spent,
    "switch_scheduled": _scheduled,
    "switch_put_off": _put_off,
    "scaled": _scaled,
    "worker_left": _spent,
    "worker_lost": _lost,
    "worker_unfit": _unfit,
}


def _seconds(span_ms: float) -> str:
    return f"{span_ms / 1000:.1f} s"


def _short(value: Any) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
