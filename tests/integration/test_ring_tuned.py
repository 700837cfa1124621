"""What users tune in Horovod holds in each ring, and members fuse alike however many rings each has been in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

from fleet import Fleet
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.mark.parametrize("threshold", ["", "64000000"])
def test_members_of_many_rings_and_a_newcomer_fuse_alike(
    warm: WarmPython, threshold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cycle as long as this one, all tensors are there at once. The second time, each member fuses for itself."""
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "50")
    if threshold:
        monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", threshold)
    with Fleet(warm, "torch_worker.py", 3, "plain") as fleet:
        fleet.form([0, 1])
        for members in ([1, 0], [0, 1], [0, 1, 2]):
            with fleet.preparing(members) as following:
                following.come(*members)
                assert fleet.together(members, "prepared") == [""] * len(members)
            fleet.together(members, "adopt", [(following.generation,)] * len(members))
            for _ in range(2):
                assert fleet.together(members, "sums") == [[float(len(members))] * 3] * len(members)
