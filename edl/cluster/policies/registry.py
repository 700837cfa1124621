"""The policies by name; each lies in a file of its own, which is imported on demand.

Owns: the names, and how parameters typed as text become a policy's fields. Does not own: the decisions.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import msgspec

from edl.cluster.views import ClusterPolicy
from edl.errors import ConfigError, did_you_mean


class Known(msgspec.Struct, frozen=True):
    module: str  # within this package
    name: str  # of its class: a frozen struct whose fields are its parameters, each with a default
    sees_left: bool = False  # it is told how much work is left: an oracle, unless the jobs' owners tell it
    sees_speed: bool = True  # it is told a job's speed with other numbers of workers
    placement: str = "pack"  # default placement rule of its workers: `edl.cluster.placement`


POLICIES = {
    "fifo": Known("fifo", "Fifo", sees_speed=False),
    "backfill": Known("fifo", "Backfill", sees_speed=False),
    "srtf": Known("fifo", "ShortestFirst", sees_left=True),
    "tiresias": Known("tiresias_policy", "Tiresias", sees_speed=False, placement="most-free"),
    "elastic-tiresias": Known("tiresias_policy", "ElasticTiresias"),
    "dp": Known("goodput", "ThroughputOptimizer"),
    "goodput": Known("goodput", "Goodput", placement="most-free"),
    "gavel": Known("gavel", "Gavel", sees_speed=False),
    "elasticflow": Known("elasticflow_policy", "ElasticFlow", sees_left=True),
    "optimus": Known("optimus", "Optimus", sees_left=True, placement="most-free"),
}


def known(name: str) -> Known:
    """Raises ConfigError."""
    if name not in POLICIES:
        near = did_you_mean(name, POLICIES)
        raise ConfigError(f"policy {name}: is none of {', '.join(sorted(POLICIES))}{near}")
    return POLICIES[name]


def build(name: str, given: Mapping[str, str] | None = None) -> ClusterPolicy:
    """Return the policy with these parameters, typed as text. Raises ConfigError."""
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
    """Parse one parameter; several values are separated by commas. Raises ConfigError."""
    several = getattr(kind, "__origin__", None) is tuple
    value = [part for part in text.split(",") if part] if several else text
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"policy {name}: {parameter}={text}: {str(error)[0].lower()}{str(error)[1:]}") from None
