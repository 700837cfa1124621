"""The tests' own workers: one that fails or hangs fails one test, and no later one is told what was meant for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "adapters"))

import fleet as fleets
from fleet import Fleet, WorkerFailed
from warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_an_answer_belongs_to_its_command(
    warm: WarmPython, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Fleet(warm, "torch_worker.py", 2, "sgd") as fleet:
        before = fleet.together([0, 1], "weights")
        fleet[0].send("used")  # no test takes this answer
        with pytest.raises(WorkerFailed, match="TypeError"):
            fleet.together([0, 1], "weight")
        assert fleet.together([0, 1], "weights") == before
        monkeypatch.setattr(fleets, "ANSWER_S", 0.0)
        with pytest.raises(WorkerFailed, match=r"^w1 did not answer command"):
            fleet.together([1], "used")
        monkeypatch.undo()
        assert fleet[1].call("weights") == before[1]
    assert "most recent call first" in capfd.readouterr().err, "where it stood"
