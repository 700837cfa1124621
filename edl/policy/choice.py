"""Who chooses the size of a job, and its batch: `edl run --autoscale` and `--batch-policy`, read.

efficiency=S     each further worker must add more than S of what one does (`edl.policy.efficiency`)
utility=FILE     an earlier end must be worth more than it costs (`edl.policy.utility`)
policy=NAME      a class of the user's: FILE.py:CLASS, or an entry point of the group `edl.policies`

fixed-local, fixed-global, function=FILE.py:NAME: `edl.protocol.governing.Batching`
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from edl.errors import ConfigError
from edl.policy import utility
from edl.policy.efficiency import Efficiency, Worth
from edl.policy.engine import Pacing
from edl.policy.search import Condition, Search
from edl.policy.view import Policy
from edl.protocol.governing import Batching, BatchRule

GROUP: Final = "edl.policies"
BATCHES: Final = 100
COOLDOWN_S: Final = 5.0
MOST_WORKERS: Final = 256  # where the job has no limit: a function of the user's is asked for no more


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked for, in parts."""

    kind: str  # "efficiency", "utility" or "policy"
    value: str
    options: dict[str, float]
    dry_run: bool

    @classmethod
    def of(cls, text: str) -> Choice:
        """Of a text that has the right form (`edl.config`)."""
        first, *others = text.split(",")
        kind, _, value = first.partition("=")
        named = dict(other.split("=") for other in others if "=" in other)
        return cls(kind, value, {name: float(number) for name, number in named.items()}, "dry-run" in others)

    @property
    def stride(self) -> int:
        return max(1, int(self.options.get("stride", 1)))

    @property
    def batches(self) -> int:
        return max(2, int(self.options.get("batches", BATCHES)))

    def pacing(self, every: int) -> Pacing:
        return Pacing(every=every, cooldown_s=self.options.get("cooldown", COOLDOWN_S), dry_run=self.dry_run)

    def policy(self, file: str) -> Policy:
        """What decides. `file`: what the utility's file holds. Raises ConfigError."""
        condition: Condition
        match self.kind:
            case "efficiency":
                condition = Efficiency(float(self.value))
            case "utility":
                condition = Worth(utility.read(file, self.value))
            case _:
                return user_policy(self.value)
        return Search(condition, self.stride, self.batches)


def file_of(text: str) -> str:
    """What the file that `--autoscale utility=FILE` names holds; empty for the others. Raises ConfigError."""
    choice = Choice.of(text) if text else None
    if choice is None or choice.kind != "utility":
        return ""
    try:
        return Path(choice.value).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--autoscale utility={choice.value}: cannot be read: {error}") from None


def batching(text: str, most_workers: int | None) -> Batching:
    """Of a text that has the right form. A function is asked once, for all sizes there may be. Raises ConfigError."""
    rule, _, value = text.partition("=")
    if rule == BatchRule.TABLE:
        return Batching(BatchRule.TABLE, table=_table(value, most_workers or MOST_WORKERS))
    return Batching(BatchRule(text.partition(",")[0]), most=int(value) if value else 0)


def _table(name: str, most_workers: int) -> tuple[tuple[int, int], ...]:
    function = _attribute(name, option="--batch-policy function")
    table = []
    for workers in range(1, most_workers + 1):
        try:
            batch = function(workers)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            raise ConfigError(f"--batch-policy function={name}: it raised {error!r} for {workers} workers") from None
        if type(batch) is not int or batch < 1:
            raise ConfigError(
                f"--batch-policy function={name}: it returned {batch!r} for {workers} workers; it must return the "
                "number of samples that all of them take in a step"
            )
        table.append((workers, batch))
    return tuple(table)


def user_policy(name: str) -> Policy:
    """An instance of the user's class. Raises ConfigError."""
    made: Any = _class(name)
    try:
        policy: Policy = made()
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        raise ConfigError(f"--autoscale policy={name}: {made.__name__}() raised {error!r}") from None
    if not callable(getattr(policy, "decide", None)):
        raise ConfigError(f"--autoscale policy={name}: {made.__name__} has no method decide(view)")
    return policy


def _class(name: str) -> Any:
    return _attribute(name, option="--autoscale policy") if ":" in name else _entry_point(name)


def _attribute(name: str, option: str) -> Any:
    """What FILE.py:NAME names."""
    path, _, attribute = name.rpartition(":")
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{option}={name}: {path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{option}={name}: {path} has no {attribute}") from None
    except (OSError, SyntaxError, ImportError) as error:
        raise ConfigError(f"{option}={name}: {error}") from None


def _entry_point(name: str) -> Any:
    known = {point.name: point for point in entry_points(group=GROUP)}
    if name not in known:
        there = f"; there are {', '.join(sorted(known))}" if known else ""
        raise ConfigError(f"--autoscale policy={name}: is neither FILE.py:CLASS nor an entry point of {GROUP}{there}")
    return known[name].load()
