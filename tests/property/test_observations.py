"""What is kept up by each report, against looking at all that was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.job.observations import Observations
from edl.protocol.leader_messages import Observation, Phase

WORKERS = tuple(f"w{number}" for number in range(5))
ROSTER = WORKERS[:4]

reports = st.tuples(st.sampled_from(WORKERS), st.one_of(st.none(), st.integers(0, 4)))


def newest_of_all(observations: Observations, workers: tuple[str, ...]) -> tuple[int, float]:
    seen = (observations.get(worker) for worker in workers)
    return max(((one.observation.step, one.at) for one in seen if one is not None), default=(-1, 0.0))


@given(st.lists(reports, max_size=60), st.integers(1, 3))
def test_the_newest_step_is_that_of_all_reports(told: list[tuple[str, int | None]], each: int) -> None:
    """Also where steps become fewer, and the worker that had the newest is forgotten."""
    observations = Observations()
    for at, (worker, step) in enumerate(told):
        if step is None:
            observations.forget(worker)
        else:
            observations.take(
                worker, Observation(phase=Phase.TRAINING, generation=1, step=step, leases_of=1), float(at // each)
            )
        assert observations.newest_step(ROSTER) == newest_of_all(observations, ROSTER)
