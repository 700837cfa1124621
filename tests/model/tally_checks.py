"""Check a job's tally, and the part of it that leaders serve: nothing shrinks, and seconds add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from edl.core.job.counters import certain
from edl.protocol.record import Record, Stable
from edl.protocol.tally import Tally

Complain = Callable[[str, str], NoReturn]
NEAR_S: Final = 1e-6


class TallyChecks:
    """Checks of one job's tally. `violated`: called when something does not hold."""

    def __init__(self, violated: Complain) -> None:
        self._violated = violated
        self._served: dict[str, float] = {}
        self._began = 0.0

    def durable(self, before: Record, record: Record) -> None:
        was, tally = before.tally, record.tally
        if tally.at and not was.at:
            self._began = tally.at
        counts = (tally.pause_s >= was.pause_s, tally.voided >= was.voided, tally.unfit >= was.unfit)
        if not all(counts) or sum(tally.lost.values()) != record.losses + _left_behind(tally):
            self._violated("tally", f"{tally} was written over {was}, and {record.losses} workers are lost")
        self._add_up(tally)

    def served(self, durable: Tally, decided: Tally, stable: Stable | None, now: float) -> None:
        """A leader may show this at any moment, and does now."""
        tally = certain(durable, decided, now)
        shown = {"good": tally.good_s, "pause": tally.pause_s, **{f"bad {name}": s for name, s in tally.bad_s.items()}}
        if stable is not None:
            shown |= {"steps": stable.step, "samples": stable.samples}
        for name, value in shown.items():
            if value < self._served.get(name, 0.0) - NEAR_S:
                self._violated("tally", f"{name} shrinks from {self._served[name]} to {value}")
        self._served |= shown

    def _add_up(self, tally: Tally) -> None:
        counted = tally.good_s + sum(tally.bad_s.values()) - tally.owed_s
        if tally.doing != "over" and abs(counted - (tally.at - self._began)) > NEAR_S * (1 + tally.at):
            self._violated("tally", f"{counted} s are counted of {tally.at - self._began}: {tally}")


def _left_behind(tally: Tally) -> int:
    return tally.lost.get("left_behind", 0)
