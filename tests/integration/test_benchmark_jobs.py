"""A job of `benchmarks/worker.py` changes its size, and ends when its benchmark says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from pace import patient

from benchmarks.harness import Notes, set_file

pytestmark = [pytest.mark.integration]

WORKER = Path(__file__).parents[2] / "benchmarks" / "worker.py"
STEPS = 5


@pytest.mark.slow
def test_a_newcomer_trains_on_after_its_rehearsal(edl, tmp_path):
    notes = Notes(tmp_path)
    command = [*edl.warm.command(WORKER), str(tmp_path), "--step-ms", "5"]
    launcher = edl.start("run", "-np", "1", "--job", "b", *command)
    edl.wait(lambda: notes.newest() >= STEPS, "one trains", timeout_s=90)
    assert edl("scale", "b", "2").returncode == 0

    def trained_together() -> list[int]:
        last = [steps[-STEPS:] for steps in notes.steps().values()]
        return [len(steps) for steps in last if all(note["size"] == 2 for note in steps)]

    edl.wait(lambda: trained_together() == [STEPS, STEPS], "both train", timeout_s=60)
    end = notes.newest() + 50
    set_file(tmp_path / "stop", str(end))
    _, said = launcher.communicate(timeout=patient(60))
    assert launcher.returncode == 0, said
    assert {steps[-1]["step"] for steps in notes.steps().values()} == {end}
