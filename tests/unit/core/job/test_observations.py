"""Which report is older than another, and what follows from reports together."""

from __future__ import annotations

import msgspec
import pytest

from edl.core.job.observations import Observations, only_stepped, overtaken
from edl.protocol.leader_messages import Observation, Phase


def seen(phase: Phase, generation: int = 0, step: int = 0, **more: object) -> Observation:
    values = {"leases_of": generation, "step_time_s": 0.0, "data": None, "pause": None, "leaving": False, "reason": ""}
    return Observation(phase=phase, generation=generation, step=step, **(values | more))  # type: ignore[arg-type]


STORIES = [
    [seen(Phase.BOOTING), seen(Phase.REHEARSING), seen(Phase.READY), seen(Phase.TRAINING, 3, 9)],
    [seen(Phase.TRAINING, 3, 9), seen(Phase.TRAINING, 3, 12), seen(Phase.BROKEN, 3, 12), seen(Phase.BROKEN, 4, 12)],
    [seen(Phase.BROKEN, 4, 12), seen(Phase.TRAINING, 5, 11), seen(Phase.DONE, 5, 11)],  # a tainted step goes back
    [seen(Phase.BOOTING), seen(Phase.BROKEN, 1), seen(Phase.REHEARSING, 1), seen(Phase.READY, 1)],  # not needed first
    [seen(Phase.READY), seen(Phase.BROKEN, 2), seen(Phase.FAILED, 2)],
    [seen(Phase.TRAINING, 3, 9, at=1.0), seen(Phase.TRAINING, 3, 9, at=1.5, marked=(1, 9))],  # held at a mark
    [seen(Phase.TRAINING, 3, 9, at=1.0), seen(Phase.FAILED, 0, 9, at=1.5)],  # dead before it could greet a new daemon
]


@pytest.mark.parametrize("story", STORIES)
def test_only_what_comes_earlier_in_a_story_is_older(story: list[Observation]) -> None:
    for at, now in enumerate(story):
        for before in story[:at]:
            assert overtaken(before, now)
            assert not overtaken(now, before)
        assert not overtaken(now, now)


def test_what_a_daemon_that_is_gone_has_seen_is_older_than_what_another_one_sees() -> None:
    """Which knows little yet: it is seen at an earlier part of the story."""
    assert overtaken(seen(Phase.READY, 0, 9, at=1.0), seen(Phase.BOOTING, 0, 12, at=1.5))


def test_mere_progress_is_told_from_news() -> None:
    training = seen(Phase.TRAINING, 3, 9)
    assert only_stepped(msgspec.structs.replace(training, step=10), training)
    assert not only_stepped(msgspec.structs.replace(training, leaving=True), training)
    assert not only_stepped(msgspec.structs.replace(training, dead=("w1",)), training)
    assert not only_stepped(seen(Phase.BROKEN, 3, 9), training)


def test_a_step_is_stable_once_all_were_seen_to_have_it() -> None:
    observations = Observations()
    observations.take("w0", seen(Phase.TRAINING, 1, 9), 1.0)
    assert observations.stable_step(["w0", "w1"]) is None
    observations.take("w1", seen(Phase.TRAINING, 1, 8), 2.0)
    assert observations.stable_step(["w0", "w1"]) == 8
    assert observations.newest_step(("w0", "w1")) == (9, 1.0)


def test_a_report_that_lay_about_is_late_by_what_it_took_longer_than_the_fastest() -> None:
    """Whatever the workers' clocks show: this leader could do nothing for four seconds."""
    known, ring = Observations(), ("w0", "w1")
    for at in (1.0, 2.0, 3.0):
        known.take("w0", seen(Phase.TRAINING, 1, int(at), at=at + 500), now=at + 0.02)
        known.take("w1", seen(Phase.TRAINING, 1, int(at), at=at + 900), now=at + 0.5)
    assert known.newest_late_s(ring) == pytest.approx(0.0, abs=0.001)
    known.take("w0", seen(Phase.TRAINING, 1, 4, at=504), now=8.02)
    assert (known.newest_step(ring), known.newest_late_s(ring)) == ((4, 8.02), pytest.approx(4.0, abs=0.001))
    known.take("w1", seen(Phase.TRAINING, 1, 5, at=908), now=8.5)
    assert known.newest_late_s(ring) == pytest.approx(0.0, abs=0.001)
