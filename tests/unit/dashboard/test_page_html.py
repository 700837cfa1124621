"""What a page shows, and that nothing from outside gets into it but as text."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console
from seen_job import BEGAN, EVIL, event, feed, scaled, status, usage

from edl.dashboard import page_feed, page_html, terminal
from edl.dashboard.page_feed import MOST, History, Series, series_of
from edl.dashboard.page_report import report
from edl.dashboard.page_view import TimeShare, TimeShares, lasting, sized, sizes_of, verdict, view_of
from edl.dashboard.site import Access
from edl.launch.status_poller import Point, is_due
from edl.protocol.record import JobState, WorkerState, WorkerStatus
from edl.protocol.tally import LimbSeen

HEAD = "<!-- head -->"


class Outline(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(story: list[dict[str, object]], **changes: object) -> str:
    found = feed(story, msgspec.structs.replace(status(), **changes))
    return page_html.page(
        page_feed.view(found), page_feed.newest(found), page_feed.charts(found), HEAD, page_html.Controls("c")
    )


def test_a_page_without_scripts_says_all_of_it() -> None:
    text = Outline(rendered([event(1), scaled(2, 2, 3)])).text
    words = ("running", "goodput", "95.0%", "epoch_ended", "2 → 3 workers", "w1", "5,000 samples left", "unassigned")
    for wanted in (*words, "checkpoint", "10 s ago"):
        assert wanted in text, wanted
    assert "workers over time" in text.lower() and "up to 3 workers" in text
    assert "2 → 3 workers, paused 50 ms" in text
    assert "0.02 to 0.5, 0.5 at the end, over 99 s" in text  # of the loss


def test_a_still_picture_marks_each_change_with_its_words() -> None:
    text = rendered([event(1), scaled(2, 2, 3), scaled(9, 3, 2, None)])
    marks = re.findall(r'<path class="mark" d="M([\d.]+),([\d.]+)h0"><title>([^<]*)</title></path>', text)
    assert [(x, y) for x, y, _ in marks] == [("10.1", "6.0"), ("80.8", "68.7")]  # of 1000 by 200, as the line has them
    assert all(f"{x},{y}" in text.split('<polyline points="')[1].split('"')[0].split() for x, y, _ in marks)
    assert marks[0][2].startswith("2 → 3 workers; survivors paused for 50 ms")
    assert re.search(r'<p class="changes">[\d:]+ 3 → 2 workers; [\d:]+ 2 → 3 workers, paused 50 ms</p>', text)


def test_many_changes_make_no_long_page() -> None:
    story = [scaled(n, 2 + n % 2, 3 - n % 2) for n in range(1000)]
    text = rendered(story)
    assert text.count('class="mark"') == page_html.STILL_MARKS
    told = text.split('<p class="changes">')[1].split("</p>")[0].split("; ")
    assert len(told) == page_html.CHANGES_TOLD + 1
    assert told[0].endswith("3 → 2 workers, paused 50 ms")
    assert told[-1] == "988 earlier"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0.5, None, 0.25), "0.25 to 0.5, 0.25 at the end, over 2.0 s"),
        ((-3.0, -2.0, -2.5), "-3 to -2, -2.5 at the end, over 2.0 s"),
        ((1.0, 1.0, 1.0), "1 to 1, 1 at the end, over 2.0 s"),
        ((None, 1.0, None), "reported once"),
        ((None, None, None), "not reported of late"),
    ],
)
def test_what_a_script_reports_has_a_still_picture(values: tuple[float | None, ...], says: str) -> None:
    text = page_html.figure_pictures(Series((1.0, 2.0, 3.0), (None,) * 3, (None,) * 3, {EVIL: values}))
    assert says in Outline(text).text and EVIL in Outline(text).text
    assert all(
        0 <= float(y) <= 200 for y in re.findall(r"[\d.]+,([\d.-]+)", "".join(re.findall(r'points="(.*?)"', text)))
    )


def test_a_long_history_makes_no_long_picture() -> None:
    count = 1200
    ats = tuple(float(n) for n in range(count))
    text = page_html.figure_pictures(Series(ats, (None,) * count, (None,) * count, {"loss": ats}))
    points = text.split('points="')[1].split('"')[0].split()
    assert len(points) <= page_html.STILL_POINTS + 1
    assert (points[0], points[-1]) == ("0.0,194.0", "1000.0,6.0")


def test_the_processes_of_a_worker_stand_below_it() -> None:
    limbs = (LimbSeen(11, "training", 7), LimbSeen(13, "ready", 6))
    workers = (WorkerStatus("w1", 0, "here", 11, 2, WorkerState.TRAINING, 7, processes=limbs),)
    text = Outline(rendered([event(1)], workers=workers)).text
    assert text.index("w1") < text.index("process 0 (pid 11)") < text.index("process 1 (pid 13)")


def test_markup_from_outside_is_shown_as_text() -> None:
    workers = (
        WorkerStatus(EVIL, 0, EVIL, 1, 2, WorkerState.TRAINING, 7, usage=usage(1, 1, 1, 1, **{EVIL: 1.0}), pace=0.1),
    )
    story = [event(1, EVIL, reason=EVIL, **{EVIL: EVIL}), event(2, "worker_lost", worker=EVIL, was="x", reason=EVIL)]
    clean, evil = rendered([event(1), event(2)]), rendered(story, job=EVIL, reason=EVIL, workers=workers, ruling=EVIL)
    seen = Outline(evil)
    assert "img" not in seen.tags
    assert seen.tags.count("script") == Outline(clean).tags.count("script")
    assert not {name for name in seen.attributes if name.startswith("on") or name == "style"}
    assert "alert(1)" in seen.text
    for found in (evil, report(feed(story, status(job=EVIL)))):
        assert "<script>alert" not in found and "<img" not in found


def test_a_page_has_no_script_style_or_address_of_its_own() -> None:
    text = rendered([event(n) for n in range(20)])
    seen = Outline(text)
    assert not {"src", "style", "onclick"} & seen.attributes
    assert re.findall(r'href="(.*?)"', text) == ["report"]
    assert seen.tags.count("script") == 1  # data, of a type that no browser runs


@pytest.mark.slow
def test_what_is_shown_is_bounded() -> None:
    story = [event(n, "worker_lost", worker="w", was="x", reason="y" * 2_000) for n in range(5000)]
    text = rendered(story, workers=status(500).workers)
    assert text.count('<tr id="e') == 300
    assert len(text) < 400_000
    assert "and 436 more" in text
    one_file = report(feed(story))
    assert one_file.count('<tr id="e') == 5000 and "earlier" not in Outline(one_file).text


def test_a_page_says_where_the_events_are_that_it_does_not_show() -> None:
    story = [event(n) for n in range(6000)]
    assert "and 4,700 earlier: edl events j" in Outline(rendered(story[:5000])).text
    assert "and 1,000 earlier: edl events j" in Outline(report(feed(story))).text
    assert "earlier" not in Outline(rendered(story[:300])).text


def test_the_job_had_the_size_that_its_first_change_began_with() -> None:
    at, sizes = sizes_of([event(1), scaled(5, 2, 3), scaled(9, 3, 2)], status(), BEGAN + 20)
    assert (at, sizes) == ([BEGAN + 1, BEGAN + 5, BEGAN + 9, BEGAN + 20], [2, 3, 2, 2])
    assert sizes_of([], status(4), BEGAN)[1] == [4]


def test_a_slow_worker_is_named_with_what_it_spends_its_time_on() -> None:
    slow, fast = status().workers
    assert "0.50 of the median pace, as it loads samples for long" in verdict(slow, TimeShare(0.1, 0.8, 0.1))
    assert "as it computes for long" in verdict(slow, TimeShare(0.8, 0.1, 0.1))
    assert verdict(fast, None) == verdict(msgspec.structs.replace(slow, rank=None), None) == ""


def test_what_workers_spend_their_time_on_is_that_of_late() -> None:
    found = TimeShares()

    def look(*found_usage: object) -> None:
        workers = tuple(
            msgspec.structs.replace(one, usage=used) for one, used in zip(status().workers, found_usage, strict=False)
        )
        found.take(msgspec.structs.replace(status(), workers=workers))

    look(usage(0, 0, 0, 0), usage(0, 0, 0, 0))
    assert found.of("w0") is None
    for n in range(1, 40):
        look(usage(n, 100 + n, 0, 0), usage(n, 0, n / 4, 3 * n / 4))
    assert found.of("w0") == TimeShare(1.0, 0.0, 0.0)  # what was before the last ten seconds does not count
    assert found.of("w1") == TimeShare(0.0, 0.25, 0.75)
    look(usage(1, 5, 0, 0))  # another daemon speaks for it, and one worker is gone
    assert found.of("w0") is None and found.of("w1") is None


def test_rates_are_those_between_points_and_none_across_lives() -> None:
    points = [Point(0, 0, 0, 2), Point(2, 10, 640, 2, {"loss": 0.5}), Point(3, 4, 200, 2), Point(4, 5, 264, 2)]
    series = series_of(points)
    assert series.samples_s == (320.0, None, 64.0)
    assert series.steps_s == (5.0, None, 1.0)
    assert series.figures == {"loss": (0.5, None, None)}


def test_a_long_history_is_thinned_and_keeps_its_ends() -> None:
    history = History()
    for n in range(20_000):
        history.take([Point(float(n), n, n, 2)])
    assert len(history.points) <= 2 * MOST + 1
    assert (history.points[0].ts, history.points[-1].ts) == (0.0, 19_999.0)
    assert len(series_of(history.points).at) <= MOST + 1


def test_a_day_of_figures_is_a_small_file() -> None:
    lines, last = 0, 0.0
    for second in range(86_400):
        if is_due(0.0, last, float(second)):
            lines, last = lines + 1, float(second)
    assert 1000 < lines < 6000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (42, "42 s"), (300, "5 min"), (12_000, "3 h 20 min"), (190_000, "2 d 4 h")],
)
def test_times_as_people_say_them(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_sizes_as_people_say_them() -> None:
    assert [sized(n) for n in (5, 5_000, 5_000_000, 5_400_000_000)] == ["5 B", "5 kB", "5 MB", "5.4 GB"]


def test_a_job_that_is_over_has_no_time_left_and_no_speed() -> None:
    view = view_of(status(state=JobState.FINISHED), {}, BEGAN)
    names = {tile.name: tile.value for tile in view.tiles}
    assert names["time left"] == "none" and "samples/s" not in names and view.over


def test_a_terminal_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_screen(feed([scaled(1, 2, 3), event(2, EVIL, reason="[red]x[/red]")]))
    text = capsys.readouterr().out
    assert "running" in text and "goodput" in text and "2 → 3 workers" in text and "[red]x[/red]" in text


# ------------------------------------------------------------------------------------------------------------- access

ACCESS = Access("secret", 8000)


def test_the_token_opens_it_and_nothing_else() -> None:
    assert ACCESS.opens("secret")
    assert not any(ACCESS.opens(given) for given in (None, "", "secre", "secret ", "sécret"))
    fresh = [Access.fresh(1, "127.0.0.1").token for _ in range(2)]
    assert fresh[0] != fresh[1] and len(fresh[0]) > 40


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000"])
def test_it_answers_to_its_own_names(host: str) -> None:
    assert ACCESS.names_us(host)


@pytest.mark.parametrize("host", ["", "evil.example:8000", "localhost", "localhost:8001", "127.0.0.1:8000.evil"])
def test_and_to_no_other(host: str) -> None:
    assert not ACCESS.names_us(host)


@pytest.mark.parametrize(
    ("headers", "check", "may"),
    [
        ({"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}, ACCESS.check, True),
        ({"origin": "http://localhost:8000"}, ACCESS.check, True),
        ({"origin": "http://localhost:8000", "sec-fetch-site": "cross-site"}, ACCESS.check, False),
        ({"origin": "http://evil.example"}, ACCESS.check, False),
        ({"origin": "null"}, ACCESS.check, False),
        ({}, ACCESS.check, False),
        ({"origin": "http://localhost:8000"}, "secret", False),
        ({"origin": "http://localhost:8000"}, "", False),
    ],
)
def test_buttons_are_pressed_from_the_page_only(headers: dict[str, str], check: str, may: bool) -> None:
    assert ACCESS.may_press(headers, check) is may


def test_a_report_loads_nothing_and_runs_what_it_brings_only() -> None:
    text = report(feed([event(1)], status(state=JobState.FINISHED)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert re.findall(r"""(?:src|href)=["']([^"']*)""", text.split("<script>")[0]) == ["data:,"]
    assert len(text) < 200_000


def test_changes_and_faults_stand_out_of_routine_events() -> None:
    lost = event(3, "worker_lost", worker="w1", was="training", reason="killed")
    text = rendered([event(1), scaled(2, 2, 3), lost])
    kinds = dict(re.findall(r'<tr id="e(\d)" class="([^"]*)"', text))
    assert kinds == {"1": "routine", "2": "good change", "3": "bad"}
    assert text.count('id="routine"') == 1  # by which a reader shows them
    shown = io.StringIO()
    found = feed([event(1), scaled(2, 2, 3), lost], status())
    Console(file=shown, width=200).print(terminal.screen(found))
    assert "scaled" in shown.getvalue() and "worker_lost" in shown.getvalue() and "epoch_ended" not in shown.getvalue()
