"""Policies by name, and their parameters as they are typed."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edl.cluster.placement import Rule
from edl.cluster.policies import registry
from edl.cluster.policies.tiresias_policy import Tiresias
from edl.errors import ConfigError


def test_each_name_is_a_policy_whose_parameters_have_defaults() -> None:
    for name, known in registry.POLICIES.items():
        policy = registry.build(name)
        assert isinstance(policy, msgspec.Struct) and callable(policy.decide)
        assert known.placement in set(Rule)


def test_parameters_are_read_from_text() -> None:
    policy = registry.build("tiresias", {"limits": "10,20", "promote": "8", "order": "running-first"})
    assert policy == Tiresias(limits=(10.0, 20.0), promote=8.0, order="running-first")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("best", {}, "policy best: is none of backfill, dp, "),
        ("fifos", {}, f"policy fifos: is none of {', '.join(sorted(registry.POLICIES))}: did you mean fifo?"),
        ("tiresias", {"knob": "1"}, "policy tiresias has no parameter knob: its parameters are limits, promote"),
        ("fifo", {"knob": "1"}, "policy fifo has no parameter knob: it has no parameters"),
        ("tiresias", {"promote": "much"}, "policy tiresias: promote=much: expected `float`"),
        ("tiresias", {"limits": ""}, "policy tiresias: limits=: must be above 0"),
        ("elastic-tiresias", {"pending": "1.5"}, "policy elastic-tiresias: pending=1.5: expected `int`"),
    ],
)
def test_what_is_wrong_with_them_is_said(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        registry.build(name, given)
    assert str(raised.value).startswith(said)


def test_the_page_of_the_simulator_has_each_policys_parameters_as_they_are() -> None:
    page = (Path(__file__).parents[4] / "docs" / "simulator.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \|(.*)$", page, re.MULTILINE))
    for name in registry.POLICIES:
        has = registry.build(name)
        for parameter, text in re.findall(r"`(\w+)=([^`]*)`", rows[name]):
            if text != "…":
                assert getattr(registry.build(name, {parameter: text}), parameter) == getattr(has, parameter), name
