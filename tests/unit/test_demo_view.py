"""What the demonstration shows, of a job that only these lines know."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import demo
import msgspec
import pytest
from demo_view import Seen, View, picture, plot, table_of_pauses
from rich.console import Console

from edl.events import Event, Kind
from edl.protocol.record import JobState, Status, WorkerState, WorkerStatus

STATUS = Status(
    job="x", state=JobState.RUNNING, reason="", term=1, generation=2, leader="w1", step=0, epoch=1, size=2, target=3,
    min_workers=1, max_workers=0, data=None, spec=None,
    workers=(
        WorkerStatus("w1", 0, "here", 11, 12, WorkerState.TRAINING, 30),
        WorkerStatus("w2", None, "here", 21, 22, WorkerState.JOINING, 0),
    ),
)  # fmt: skip
PAUSE = {"pause_ms": 120.4, "leave_ms": 1.0, "enter_ms": 80.0, "state_ms": None}


@pytest.fixture
def seen() -> Seen:
    """20 s of 25 steps a second with two workers; a third comes after 10 s, a worker is killed after 15 s."""
    seen = Seen(batch=32)
    for tick in range(20):
        seen.add(msgspec.structs.replace(STATUS, step=25 * tick), at=1000.0 + tick)
        seen.losses.append((1000.0 + tick, 2.0 / (1 + tick)))
    for ts, old, new, forced in ((1010.0, 2, 3, False), (1015.0, 3, 2, True)):
        details = {"from": old, "to": new, "forced": forced, **PAUSE}
        seen.events.append(Event(ts, "x", Kind.SCALED, 1, 2, 250, details))
    seen.events.append(Event(1016.0, "x", Kind.EPOCH_ENDED, 1, 2, 260, {"epoch": 3}))
    return seen


def shown(seen: Seen, *, terminal: bool) -> str:
    out = io.StringIO()
    with View(Console(file=out, force_terminal=terminal, width=120), seen) as view:
        view.say("kill -9 11")
        view.show(STATUS)
    return out.getvalue()


def test_samples_a_second_are_those_of_the_last_seconds(seen):
    assert {round(rate) for _, rate in seen.rates()} == {25 * 2 * 32}


def test_one_look_is_no_rate():
    seen = Seen(batch=32)
    seen.add(STATUS, at=1000.0)
    assert seen.rates() == []
    assert "samples/s -" in shown(seen, terminal=False)


def test_a_step_that_was_seen_before_adds_nothing(seen):
    points = list(seen.trained)
    seen.add(msgspec.structs.replace(STATUS, step=25 * 19), at=2000.0)
    assert seen.trained == points


def test_plain_lines_where_there_is_no_terminal(seen):
    lines = shown(seen, terminal=False).splitlines()
    assert not any("\x1b" in line for line in lines)
    assert lines[0].endswith("kill -9 11")
    assert [line for line in lines if "scaled" in line][1].endswith("the ring before was broken")
    assert not any("epoch_ended" in line for line in lines)
    assert lines[-1].endswith("workers 2 of 3, step 0, samples/s 1,600, loss 0.100, generation 2, leader w1")


def test_a_picture_that_lives_on_a_terminal(seen):
    picture = shown(seen, terminal=True)
    assert "\x1b" in picture
    for words in ("job x: running", "samples/s", "1,600", "0.100", "▂", "leader", "joining", "kill -9 11", "2 → 3"):
        assert words in picture


def test_the_table_at_the_end_has_each_change(seen):
    out = io.StringIO()
    Console(file=out, width=100).print(table_of_pauses(seen))
    rows = [[cell.strip() for cell in line.split("│")[1:6]] for line in out.getvalue().splitlines() if "→" in line]
    assert rows == [[change, "120 ms", "1 ms", "80 ms", "-"] for change in ("2 → 3", "3 → 2")]


@pytest.mark.integration  # imports matplotlib: not for scripts/check
def test_the_plot_is_a_png_where_matplotlib_is(seen, tmp_path):
    pytest.importorskip("matplotlib")
    assert plot(seen, tmp_path / "out" / "demo.png")
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_plot_without_matplotlib(seen, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plot(seen, tmp_path / "demo.png")
    assert not (tmp_path / "demo.png").exists()


def test_the_page_is_pictured_by_a_browser_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    image = tmp_path / "demo-page.png"
    image.write_bytes(b"of another run")
    assert not picture(tmp_path / "demo.html", image)
    browser = tmp_path / "chromium"
    browser.write_text(
        '#!/bin/sh\nfor word; do case $word in --screenshot=*) echo "$word $*" >"${word#*=}" ;; esac; done\n'
    )
    browser.chmod(0o700)
    assert picture(tmp_path / "demo.html", image)
    assert f"file://{tmp_path}/demo.html" in image.read_text()
    browser.write_text("#!/bin/sh\nexit 1\n")
    assert not picture(tmp_path / "demo.html", image)


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (True, "no picture of that page without a chromium that runs: apt-get install chromium"),
        (False, "no page as one file: .venv/bin/pip install 'horovod-edl[dashboard]'"),
    ],
)
def test_what_is_not_made_for_want_of_a_program_is_said_with_the_remedy(
    reported: bool, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDL_HOME", "")  # it sets one of its own
    monkeypatch.setattr(sys, "argv", ["demo", "--html", str(tmp_path / "demo.html")])
    monkeypatch.setattr(demo.Demo, "run", lambda _: True)
    monkeypatch.setattr(demo.Demo, "report", lambda *_: reported)
    monkeypatch.setattr(demo, "plot", lambda *_: True)
    monkeypatch.setattr(demo, "picture", lambda *_: False)
    assert demo.main() == 0
    assert f"demo: {said}\n" in capsys.readouterr().out
