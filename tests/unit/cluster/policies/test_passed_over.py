"""The usual policy passes a gang over for a while only, where those that came later begin at once."""

from __future__ import annotations

import msgspec
import pytest

from edl.cluster.policies.tiresias_policy import ElasticTiresias
from edl.cluster.views import ClusterView, Guess, JobView, Node

NODES = (Node("n", 4),)


def job(name: str, submitted: float, request: int, **more: object) -> JobView:
    view = JobView(name, submitted, request, request, request, Guess(0))
    return msgspec.structs.replace(view, **more)


@pytest.mark.parametrize(("waited", "patience"), [(5.0, 1800.0), (600.0, 4800.0)])
def test_a_gang_is_passed_over_for_half_an_hour_or_as_long_as_others_wait(waited: float, patience: float) -> None:
    policy, gang = ElasticTiresias(), job("gang", 0.0, 4)

    def decided(now: float) -> set[str]:
        """With four small jobs that came later and run, each of which has waited for so long."""
        nonlocal gang
        small = [
            job(f"s{one}", 1.0 + one, 1, workers=1, placement={"n": 1}, waited=waited, ran=now, began=1.0, changed=1.0)
            for one in range(4)
        ]
        decision = policy.decide(ClusterView(NODES, (gang, *small)), now)
        gang = msgspec.structs.replace(gang, notes=decision.notes["gang"])
        assert decision.look_again is not None
        assert decision.look_again <= patience + 1.0 or "gang" in decision.allotments
        return set(decision.allotments)

    gang = msgspec.structs.replace(gang, waits_since=0.0)
    for now in (1.0, 900.0, patience - 1.0):
        assert "gang" not in decided(now)
    assert decided(patience + 1.0) == {"gang"}
