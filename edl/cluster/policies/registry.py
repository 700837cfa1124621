"""Policies by the names under which they are typed, each in a file of its own that is imported when it is asked for.

Owns: the names, and how parameters that were typed as text become a policy's fields. Does not own: what is decided.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import msgspec

from edl.cluster.decision import ClusterPolicy
from edl.errors import ConfigError


class Known(msgspec.Struct, frozen=True):
    """Where a policy is, and what it is to be shown."""

    module: str  # within this package
    name: str  # of its class: a frozen struct whose fields are its parameters, each with a default
    sees_left: bool = False  # how much work is left: an oracle, unless the jobs' owners tell it
    sees_speed: bool = True  # what a job does with other numbers of workers
    placement: str = "pack"  # how its workers are placed where nothing else is asked for: `edl.cluster.placement`


POLICIES = {
    "fifo": Known("fifo", "Fifo", sees_speed=False),
    "backfill": Known("fifo", "Backfill", sees_speed=False),
    "srtf": Known("srtf", "ShortestFirst", sees_left=True),
    "tiresias": Known("tiresias", "Tiresias", sees_speed=False, placement="most-free"),
    "elastic-tiresias": Known("elastic_tiresias", "ElasticTiresias"),
    "dp": Known("dp", "ThroughputOptimizer"),
    "goodput": Known("goodput", "Goodput", placement="most-free"),
    "gavel": Known("gavel", "Gavel", sees_speed=False),
    "elasticflow": Known("elasticflow", "ElasticFlow", sees_left=True),
    "optimus": Known("optimus", "Optimus", sees_left=True, placement="most-free"),
}


def known(name: str) -> Known:
    """Raises ConfigError."""
    if name not in POLICIES:
        raise ConfigError(f"policy {name}: is none of {', '.join(sorted(POLICIES))}")
    return POLICIES[name]


def build(name: str, given: Mapping[str, str] | None = None) -> ClusterPolicy:
    """The policy with these parameters, typed as text. Raises ConfigError."""
    entry = known(name)
    kind = getattr(importlib.import_module(f"edl.cluster.policies.{entry.module}"), entry.name)
    texts = dict(given or {})
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for parameter in texts:
        if parameter not in fields:
            has = f"its parameters are {', '.join(fields)}" if fields else "it has no parameters"
            raise ConfigError(f"policy {name} has no parameter {parameter}: {has}")
    values = {parameter: _read(name, parameter, text, fields[parameter]) for parameter, text in texts.items()}
    try:
        policy: ClusterPolicy = kind(**values)
    except ValueError as error:
        raise ConfigError(f"policy {name}: {error}") from None
    return policy


def _read(name: str, parameter: str, text: str, kind: object) -> object:
    """Several values stand between commas. Raises ConfigError."""
    several = getattr(kind, "__origin__", None) is tuple
    value = [part for part in text.split(",") if part] if several else text
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"policy {name}: {parameter}={text}: {str(error)[0].lower()}{str(error)[1:]}") from None
