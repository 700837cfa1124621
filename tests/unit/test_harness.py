"""What all benchmarks share: reading notes of workers that write and die, figures of them, and keeping results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import Job, NotComeTrue, Notes, compared, keep, mean_ratio, near, written
from edl.proof.step_figures import NotedWorker, pause_figures, recovery_figures

RESULT = {
    "title": "A pause",
    "command": "python -m benchmarks.pause",
    "date": "2026-11-28",
    "machine": "two cores",
    "reading": "It is short.",
    "figures": [{"ring": "torch", "ms": 3}, {"ring": "horovod", "ms": 4}],
}


def step(at: float, number: int, size: int = 2, ring: list[Any] | None = None) -> dict[str, Any]:
    return {"kind": "step", "at": at, "step": number, "size": size, "ring": ring or [0, size, 0.0]}


def write(path: Path, *notes: dict[str, Any], rest: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(note) + "\n" for note in notes) + rest)


# ---------------------------------------------------------------------------------------------------------------- notes


def test_notes_are_read_once_and_half_a_line_when_it_is_whole(tmp_path: Path) -> None:
    notes, path = Notes(tmp_path), tmp_path / "7.jsonl"
    whole = json.dumps(step(2.0, 2))
    write(path, step(1.0, 1), rest=whole[:20])
    assert [note["step"] for note in notes.steps()[7]] == [1]
    write(path, rest=whole[20:] + "\n")
    write(path, {"kind": "void", "at": 3.0})
    assert [note["step"] for note in notes.steps()[7]] == [1, 2]
    assert [note["step"] for note in notes.steps()[7]] == [1, 2]
    assert len(notes.read()[7]["void"]) == 1
    assert notes.newest() == 2


def job(folder: Path, code: str) -> Job:
    return Job(folder, [sys.executable, "-c", code])


def test_a_job_trains_at_a_size_when_so_many_workers_have_made_their_last_steps_at_it(tmp_path: Path) -> None:
    started = job(tmp_path, "pass")
    write(tmp_path / "1.jsonl", step(1.0, 1), step(2.0, 2, 3), step(3.0, 3, 3))
    write(tmp_path / "2.jsonl", step(1.0, 1), step(2.0, 2, 3), step(3.0, 3, 3))
    assert not started.trains(3, 2)
    write(tmp_path / "3.jsonl", step(3.0, 3, 3))
    assert not started.trains(3, 2), "the newcomer has made one step only"
    write(tmp_path / "3.jsonl", step(4.0, 4, 3))
    assert started.trains(3, 2)
    assert not started.trains(3, 2, since=3.0), "two of them have made none since"
    started.launcher.wait()


def test_a_job_that_ends_while_it_is_waited_for_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(NotComeTrue, match=r"(?s)never: a step \(exit 3\).*no such module"):
        job(tmp_path, "print('no such module'); raise SystemExit(3)").wait(lambda: False, "a step", 30.0)


def test_workers_read_the_step_at_which_all_end(tmp_path: Path) -> None:
    code = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'stop')!r}): time.sleep(0.01)"
    started = job(tmp_path, code)
    write(tmp_path / "1.jsonl", step(1.0, 41))
    started.stop(after_steps=9)
    assert (tmp_path / "stop").read_text() == "50"
    assert started.launcher.returncode == 0


def test_weights_that_differ_after_a_switch_are_counted() -> None:
    notes = [
        {"kind": "switch", "step": at, "digest": digest} for at, digest in ((5, "a"), (5, "a"), (9, "b"), (9, "c"))
    ]
    assert compared([*notes, {"kind": "step", "step": 9}]) == {"compared": 2, "different": 1}


# -------------------------------------------------------------------------------------------------------------- figures


def test_a_mean_of_ratios_has_its_standard_error() -> None:
    assert mean_ratio(np.array([1.0, 1.2])) == (pytest.approx(1.1), pytest.approx(0.1))
    assert np.isnan(mean_ratio(np.array([1.0]))[1])


@pytest.mark.parametrize(("loss", "is_near"), [(1.0, True), (2.4, True), (2.6, False), (0.7, False)])
def test_a_loss_is_near_those_of_fixed_size(loss: float, is_near: bool) -> None:
    assert near(loss, [1.0, 2.0]) is is_near


def test_a_pause_is_of_the_survivor_that_lost_most_beyond_its_median() -> None:
    def survivor(pause_s: float) -> list[dict[str, Any]]:
        before = [step(0.1 * at, at) for at in range(70)]
        switched = 6.9 + 0.1 + pause_s
        return before + [step(switched + 0.1 * at, 70 + at, 3) for at in range(61)]

    found = pause_figures([survivor(0.05), survivor(0.25)], asked=6.95)
    assert found["pause"] == pytest.approx(250)
    assert found["step"] == pytest.approx(100)
    assert found["first step"] == pytest.approx(0, abs=1e-6)


def test_steps_that_are_lost_or_made_again_after_a_kill_count() -> None:
    def worker(pid: int, *steps: dict[str, Any]) -> NotedWorker:
        return NotedWorker(pid, {"step": list(steps), "void": [], "broken": []})

    old = [step(at, at, 3, [0, 3, 0.0]) for at in (1, 2, 3, 4)]
    again = [step(at + 5.5, at, 2, [0, 2, 5.0]) for at in (3, 4, 5)]
    three = [step(at + 10.0, at, 3, [0, 3, 9.0]) for at in (6, 7)]
    found = recovery_figures([worker(1, *old), worker(2, *old, *again, *three)], 1, killed=4.5, joins=9.0, size=3)
    assert found["again"] == 2, "steps 3 and 4 were made before, and once more"
    assert found["first"] == pytest.approx(4000)
    assert found["new"] == pytest.approx(6000)
    assert found["back"] == pytest.approx(11_500)


# -------------------------------------------------------------------------------------------------------------- results


def test_newer_figures_take_the_place_of_older_ones_and_the_reading_stays(tmp_path: Path) -> None:
    (tmp_path / "pause.json").write_text(written(RESULT))
    keep("pause", [{"ring": "torch", "ms": 2}], tmp_path)
    found = json.loads((tmp_path / "pause.json").read_text())
    assert (found["title"], found["reading"]) == (RESULT["title"], RESULT["reading"])
    assert found["figures"] == [{"ring": "torch", "ms": 2}]
    assert found["date"] > "2026-11-28" and "cores" in found["machine"]
    assert list(tmp_path.iterdir()) == [tmp_path / "pause.json"]


def test_a_result_is_written_as_it_was_read() -> None:
    assert json.loads(written(RESULT)) == RESULT


def test_nothing_is_kept_under_a_name_that_has_no_title_yet(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="begin it with a title"):
        keep("puase", [{"ms": 2}], tmp_path)
    keep(None, [{"ms": 2}], tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_that_is_kept_leaves_out_where_it_is_kept(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from benchmarks.harness import keep, written\n"
        f"sys.argv = ['x', 'rings', '--keep', 'a', '--rounds', '2']; folder = Path({str(tmp_path)!r})\n"
        "keep('a', [{'ms': 1}], folder)"
    )
    (tmp_path / "a.json").write_text(written(RESULT))
    subprocess.run([sys.executable, "-c", code], check=True)
    assert json.loads((tmp_path / "a.json").read_text())["command"].endswith(" rings --rounds 2")
