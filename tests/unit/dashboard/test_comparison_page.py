"""Two jobs side by side: what is compared, and that the file loads nothing."""

from __future__ import annotations

import re

import msgspec
from seen_job import BEGAN, EVIL, feed, scaled, status

from edl.dashboard import page_feed
from edl.dashboard.page_report import ComparedRun, comparison
from edl.facts import counted
from edl.launch.status_poller import Point
from edl.protocol.record import JobState


def run(name: str = "j", rate: float = 100.0, loss: float = 1.0, points: int = 20, **changes: object) -> ComparedRun:
    found = feed([scaled(2, 2, 3)], msgspec.structs.replace(status(), job=name, **changes), points=0)
    size = page_feed.charts(found).size
    history = [Point(BEGAN + n, 10 * n, int(rate * n), 2, {"loss": loss / (n + 1)}) for n in range(points)]
    return ComparedRun(page_feed.view(found), size["at"], size["size"], history)


def test_each_figure_stands_beside_the_other_jobs() -> None:
    page = comparison([run("slow", 100.0), run("fast", 200.0, state=JobState.FINISHED)])
    assert "<th>slow</th><th>fast</th>" in page and "<title>slow and fast · edl</title>" in page
    row = re.search(r"<tr><td>goodput</td>(.*?)</tr>", page)
    assert row and row[1].count("95.0%") == 2 and "in 1 change<" in row[1]
    assert '<b class="state finished">finished</b>' in page and '<b class="state running">running</b>' in page
    assert "samples a second: slow up to 100, 100 at the end; fast up to 200, 200 at the end; over 17 s" in page
    # The losses meet at the same number of samples: one line ends where half the other is.
    assert "loss by samples trained" in page and "over 3,800 samples" in page
    assert page.count('<polyline class="first"') == page.count('<polyline class="second"') == 3


def test_what_one_job_does_not_have_is_left_open() -> None:
    page = comparison([run("one", saving=None), run("two", points=1)])
    checkpoint = re.search(r"<tr><td>checkpoint</td><td>-</td><td(.*?)</tr>", page)
    assert checkpoint and page.count('<polyline class="second"') == 1  # its sizes
    assert "neither job has it on record" not in page
    assert "neither job has it on record" in comparison([run("one", points=0), run("two", points=0)])


def test_it_loads_nothing_and_escapes_what_it_is_told() -> None:
    page = comparison([run(EVIL), run("two", reason=EVIL)])
    assert "<script" not in page and "<img" not in page and "default-src 'none'" in page
    assert "http" not in page.split("</style>")[1]


def test_one_thing_is_no_plural() -> None:
    assert (counted(1, "change"), counted(2, "change"), counted(0, "change")) == ("1 change", "2 changes", "0 changes")
