"""What a change of a job's workers costs it in a simulated cluster: seconds in which it does not train."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from edl.errors import ConfigError

LONGEST_S: Final = 86_400.0


class ChangeCost(msgspec.Struct, frozen=True):
    """`begin_s`: its first workers boot. `resume_s`: it was preempted, and goes on from its checkpoint.

    `boot_s`: newcomers boot while the others train at their old pace. All of them then pause for `pause_s`.
    """

    begin_s: float
    resume_s: float
    boot_s: float
    pause_s: float

    def of(self, had: float, has: float, *, began: bool) -> float:
        """Seconds of training that it loses, at its pace after the change, `has`. Before it was `had`; 0: no worker."""
        if not had:
            return self.resume_s if began else self.begin_s
        return self.pause_s + self.boot_s * max(0.0, 1 - had / has)


# A worker of a real job boots on another host while three train, and they become four: docs/benchmarks.md, "gamma boots
# again". What a job begins or goes on with boots as long.
MEASURED: Final = ChangeCost(begin_s=9.0, resume_s=9.0, boot_s=9.0, pause_s=0.171)


def uniform(seconds: float) -> ChangeCost:
    """The job is stopped and started anew, whatever the change."""
    return ChangeCost(seconds, seconds, 0.0, seconds)


def read_cost(text: str) -> ChangeCost:
    """`30`, `30s`, `measured`, or a file that `edl events JOB --json` has written. Raises ConfigError."""
    if text == "measured":
        return MEASURED
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        return _of_events(Path(text))
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigError(f"--change-cost {text}: must be 0 to {LONGEST_S:.0f} seconds")
    return uniform(seconds)


def _of_events(path: Path) -> ChangeCost:
    """The median of what a job of one's own has paid."""
    if not path.is_file():
        raise ConfigError(
            f"--change-cost {path}: must be seconds, measured, or a file with the output of `edl events --json`"
        )
    pauses, boots = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            event = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            raise ConfigError(
                f"--change-cost {path} row {number}: is no event; write it by `edl events --json`"
            ) from None
        pauses += _milliseconds(event, "scaled", "pause_ms")
        boots += _milliseconds(event, "worker_ready", "joining_ms", "warming_ms")
    if not pauses or not boots:
        raise ConfigError(f"--change-cost {path}: the job has not grown; scale it out and write its events again")
    boot_s = median(boots) / 1000
    return ChangeCost(boot_s, boot_s, boot_s, max(0.0, median(pauses) / 1000))


def _milliseconds(event: dict[str, object], kind: str, *fields: str) -> list[float]:
    found = [event.get(field) for field in fields]
    if event.get("kind") != kind or not all(isinstance(value, int | float) for value in found):
        return []
    return [float(sum(value for value in found if isinstance(value, int | float)))]
