"""What a change of size costs, as `goodput` counts it."""

from __future__ import annotations

import numpy as np
import pytest

from edl.cluster.knapsack import Offer
from edl.cluster.policies.goodput import kept_share
from edl.cluster.views import JobView, Provenance, Rates


class Linear:
    """Twice the workers are twice as fast."""

    def rates(self, most: int, devices: int, aim: object = None) -> Rates:
        speeds = np.arange(1.0, most + 1)
        known = (Provenance.MEASURED,) * most
        return Rates(speeds, speeds, np.ones(most, dtype=np.int64), np.zeros(most), known)


def kept(size: int, *, workers: int = 2, ran: float = 50.0, boot_s: float = 0.0, left_s: float | None = None) -> float:
    job = JobView(
        "a", 0.0, 2, 1, 4, Linear(), change_s=1.0, workers=workers, ran=ran, boot_s=boot_s, left_s=left_s
    )  # fmt: skip
    offered = Offer([job], [Linear().rates(4, 4)], np.array([[size]]))
    return float(kept_share(offered, settle_s=50.0, hesitation=0.0)[0, 0])


def test_a_change_costs_its_pause_of_the_time_that_the_job_is_expected_to_go_on() -> None:
    assert kept(2) == 1.0
    assert kept(1) == kept(3) == pytest.approx(0.99)


def test_of_a_larger_size_nothing_more_is_had_until_its_newcomers_train() -> None:
    assert kept(3, boot_s=9.0) == pytest.approx(0.96), "a third of the boot's time, and the pause"
    assert kept(4, boot_s=9.0) == pytest.approx(0.945)
    assert kept(1, boot_s=9.0) == pytest.approx(0.99)
    assert kept(3, workers=0, boot_s=9.0) == 1.0, "it has to boot at any size"


def test_a_job_is_not_expected_to_go_on_beyond_the_end_that_its_script_has_told() -> None:
    assert kept(3, boot_s=9.0, left_s=20.0) == pytest.approx(0.8)
    assert 3 * kept(3, boot_s=9.0, left_s=9.0) < 2, "it ends as they come"
    assert kept(3, boot_s=9.0, left_s=4.0) == kept(3, boot_s=9.0, left_s=0.0) == 0.0
    assert kept(3, left_s=1000.0) == pytest.approx(0.99)
    assert kept(2, left_s=0.0) == 1.0
