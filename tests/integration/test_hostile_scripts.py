"""What scripts do beside their training is as without edl, and the job's workers end with the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "jobs" / "torch_hostile.py"
Seen = dict[str, Any]


def seen(folder: Path) -> list[Seen]:
    return [json.loads(path.read_text()) for path in folder.glob("seen-*.json")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Without edl."""
    out = tmp_path_factory.mktemp("plain")
    command = [sys.executable, str(SCRIPT), "--plain", "--out", str(out)]
    subprocess.run(command, check=True, timeout=patient(120))
    [found] = seen(out)
    return found


def under_edl(edl: Any, out: Path, workers: int, ring: str) -> list[Seen]:
    command = [*edl.warm.command(SCRIPT), "--out", str(out)]
    job = edl.start("run", "-np", str(workers), "--job", "hostile", "--ring", ring, "--max-restarts", "0", *command)
    said, errors = job.communicate(timeout=patient(150))
    assert job.returncode == 0, said + errors
    kinds = [event["kind"] for event in edl.events("hostile")]
    assert not {"batch_voided", "worker_lost"} & set(kinds), kinds
    found = seen(out)
    assert len(found) == workers
    return found


def check_refused(one: Seen) -> None:
    status, unmoved, (rank, size, step, refusal) = one.pop("calls_in_children")
    assert (status, unmoved, rank, size, step) == (0, True, True, True, True)
    assert refusal.startswith("edl.notify_batch_end(): this process was forked by the one that called edl.init()")


@pytest.mark.slow
def test_one_worker_sees_what_it_would_alone_and_trains_the_same(edl: Any, tmp_path: Path, alone: Seen) -> None:
    [one] = under_edl(edl, tmp_path / "out", 1, "horovod")
    check_refused(one)
    assert one == alone


@pytest.mark.slow
@pytest.mark.parametrize("ring", ["horovod", "torch"])
def test_two_workers_see_the_same_and_end_with_equal_weights(edl: Any, tmp_path: Path, alone: Seen, ring: str) -> None:
    """Their mini-batches are twice as large, so the weights are others than one has alone, and the evaluation's."""
    both = under_edl(edl, tmp_path / "out", 2, ring)
    for one in both:
        check_refused(one)
    assert both[0] == both[1]
    of_weights = {"weights", "evaluations"}
    assert {name: what for name, what in both[0].items() if name not in of_weights} == {
        name: what for name, what in alone.items() if name not in of_weights
    }
