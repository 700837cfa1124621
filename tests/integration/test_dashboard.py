"""A real job on its page, in a real browser: what happens to it is seen as it happens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browser import Browser
from elastic_job import Job
from seen_job import BEGAN, event, feed, status
from wire import Wire

from edl.dashboard.page_server import STOP_REASON, PageServer
from edl.dashboard.site import Access
from edl.host.http_serving import listen
from edl.launch.status_poller import Point

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

# EDL_PICTURES: a folder to keep pictures of the page in.
SEEN = """return [...document.querySelectorAll('#story tr')].map(
    (row) => [Number(row.id.slice(1)), row.querySelector('.kind').textContent,
              row.dataset.seen ? Number(row.dataset.seen) - 1000 * Number(row.dataset.ts) : null])"""


class Dashboard:
    """`edl dashboard` of job s."""

    def __init__(self, edl, *flags: str) -> None:
        self.edl = edl
        self.process: subprocess.Popen[str] = edl.start("dashboard", "s", *flags)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"job s: (http://127\.0\.0\.1:(\d+)/\?token=\S+)\n", line)
        assert found, (line, self.process.poll())
        self.link, self.port = found[1], int(found[2])

    def end(self) -> None:
        """By Ctrl-C, without a word."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=30)
        assert (self.process.returncode, out, err) == (0, "", "")


def story(browser: Browser) -> list[tuple[int, str, float | None]]:
    return [(number, kind, late_ms) for number, kind, late_ms in browser.run(SEEN)]


def kinds(browser: Browser) -> list[str]:
    return [kind for _, kind, _ in story(browser)]


def picture(browser: Browser, name: str) -> None:
    if folder := os.environ.get("EDL_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


def charts(edl, browser: Browser) -> None:
    edl.wait(lambda: browser.run("return document.querySelector('.uplot') !== null"), "charts", 60)


def expect_whole_story(edl, browser: Browser, events: list[dict]) -> None:
    edl.wait(lambda: len(story(browser)) >= len(events), "the whole story", 60)
    seen = sorted(story(browser))[: len(events)]
    assert [number for number, _, _ in seen] == list(range(1, len(events) + 1))
    assert [kind for _, kind, _ in seen] == [event["kind"] for event in events]


def came(browser: Browser) -> dict[int, float]:
    """How late each event was on the page, of those that happened while it was open. A reload forgets them."""
    return {number: late_ms for number, _, late_ms in story(browser) if late_ms is not None}


def expect_in_time(late_ms: dict[int, float], events: list[dict]) -> None:
    """What was done to the job came while the page was open, and soon; the bound is for a busy machine."""
    kinds = [events[number - 1]["kind"] for number in late_ms]
    assert kinds.count("scaled") >= 2
    assert "worker_lost" in kinds
    late = sorted(late_ms.values())
    assert late[len(late) // 2] < 2000
    if folder := os.environ.get("EDL_PICTURES"):
        (Path(folder) / "late_ms.json").write_text(json.dumps(late))


def expect_readable_without_scripts(page: Dashboard) -> None:
    words = ("running", "worker_lost", "scaled", "Where the time went", "up to 3 workers", "training", "loss")
    with Browser(375, dark=True, scripts=False) as plain:
        plain.driver.get(page.link)
        text = plain.driver.find_element("css selector", "body").text
        for word in (*words, "2 → 3 workers, paused"):
            assert word in text, word
        assert plain.driver.find_elements("css selector", ".uplot") == []
        assert len(plain.driver.find_elements("css selector", "#chart-size .mark")) == 2
        assert len(plain.driver.find_elements("css selector", "#figures .still")) == 1
        plain.expect_to_fit_dark_and_light()
        picture(plain, "dashboard-phone-dark-without-scripts")
        plain.resize(1920)
        plain.expect_to_fit_dark_and_light()
        plain.look(dark=False)
        picture(plain, "dashboard-without-scripts")


def expect_report(edl, job: Job, file: Path) -> None:
    done = edl("report", "s", "--html", str(file))
    assert done.returncode == 0, done.stderr
    with Browser(1280) as browser:
        browser.driver.get(file.as_uri())
        charts(edl, browser)
        expect_whole_story(edl, browser, job.events())
        assert "finished" in browser.run("return document.querySelector('#state').textContent")
        assert browser.complaints() == []
        assert browser.hosts() == {""}
        picture(browser, "report")


def lose_one(edl, job: Job, phone: Browser, wire: Wire, wide: Browser) -> None:
    """While one browser has no connection: it hears of it once it is back. (What is called offline by chromium's own
    protocol keeps a stream that is open.)
    """
    edl.wait(lambda: phone.run(LINK) == "live", "the phone is told of what happens", 60)
    wire.cut()
    edl.wait(lambda: phone.run(LINK) == "connecting", "the phone notices that its connection is cut", 60)
    had = story(phone)
    victim = next(one for one in job.status()["workers"] if one["rank"] == 1)
    os.kill(victim["pid"], signal.SIGKILL)
    job.wait_size(2)
    edl.wait(lambda: "worker_lost" in kinds(wide), "the loss on the page")
    assert story(phone) == had
    assert "worker_lost" not in kinds(phone)
    assert phone.run(LINK) == "connecting"
    wire.mend()
    edl.wait(lambda: phone.run(LINK) == "live", "the phone is told again", 60)


def press(browser: Browser, name: str) -> None:
    browser.driver.find_element("css selector", f"button[value={name}]").click()


def expect_said(edl, browser: Browser, words: str) -> None:
    edl.wait(lambda: browser.run(SAID) == words, f"that it says: {words}", 60)


SAID = "return document.querySelector('#said')?.textContent"
LINK = "return document.querySelector('#link')?.textContent"
TITLES = """return [...document.querySelectorAll('#rates, #figures section')].map(
    (one) => [one.querySelector('h2').textContent, one.querySelectorAll('.u-label')[1]?.textContent])"""


async def test_charts_keep_their_titles_when_a_job_reports_something_new(edl) -> None:
    still = status(stable=None)  # it adds no point by itself
    ear = listen("127.0.0.1", 0)
    access = Access.fresh(ear.getsockname()[1], "127.0.0.1")
    shown = feed([event(1)], still, points=0)
    shown.history.take(Point(BEGAN + n, 10 * n, 0, 2, {"loss": 0.5}) for n in range(5))
    task = asyncio.create_task(PageServer(shown, access).serve(ear))

    def look() -> None:
        with Browser(1280) as browser:
            browser.driver.get(access.link)
            before = [["Throughput", "steps/s"], ["loss", "loss"]]
            edl.wait(lambda: browser.run(TITLES) == before, "the charts as they are", 60)
            more = (Point(BEGAN + n, 10 * n, 64 * n, 2, {"accuracy": 0.1, "loss": 0.5}) for n in range(5, 9))
            shown.history.take(more)
            after = [["Throughput", "samples/s"], ["loss", "loss"], ["accuracy", "accuracy"]]

            def drawn() -> bool:
                loop.call_soon_threadsafe(shown.take_status, still)  # another look at the job
                return bool(browser.run(TITLES) == after)

            edl.wait(drawn, "the new one beside them", 60)
            assert browser.complaints() == []

    loop = asyncio.get_running_loop()
    try:
        await asyncio.to_thread(look)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ear.close()


@pytest.mark.soak  # what a press asks for: tests/unit/dashboard/test_buttons.py
def test_its_buttons_grow_save_shrink_and_stop_a_job(edl, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    seldom = {"EDL_CHECKPOINT": str(folder), "EDL_CHECKPOINT_EVERY": "1000000steps"}
    job = Job(edl, tmp_path, 2, epochs=500, **seldom)
    job.wait_size(2)
    page = Dashboard(edl, "--allow-scale")
    with Browser(1280) as browser:
        browser.driver.get(page.link)
        charts(edl, browser)
        press(browser, "grow")
        expect_said(edl, browser, "3 workers are asked for")
        job.wait_size(3)
        press(browser, "checkpoint")
        expect_said(edl, browser, "a checkpoint is asked for")
        edl.wait(lambda: "checkpoint_durable" in kinds(browser), "the checkpoint on the page", 60)
        press(browser, "shrink")
        expect_said(edl, browser, "2 workers are asked for")
        job.wait_size(2)
        edl.wait(lambda: kinds(browser).count("scaled") == 2, "both changes on the page", 60)
        tile = "return document.querySelector('#tiles').textContent"
        edl.wait(lambda: "samples left" in browser.run(tile) and " ago" in browser.run(tile), "what is left", 60)
        if "EDL_PICTURES" in os.environ:
            job.wait_steps(100)
            picture(browser, "dashboard")
        press(browser, "stop")
        expect_said(edl, browser, "job s has ended")
        assert browser.complaints() == []
    assert job.launcher.wait(60) != 0
    told = [json.loads(line) for line in edl("events", "s", "--json").stdout.splitlines()]
    assert [event["reason"] for event in told if event["kind"] == "job_failed"] == [STOP_REASON]
    page.end()


def test_what_happens_to_a_job_is_on_its_page_as_it_happens(edl, tmp_path: Path) -> None:
    job = Job(edl, tmp_path, 2)
    job.wait_size(2)
    page = Dashboard(edl, "--allow-scale")
    with (
        Wire(page.port) as wire,
        Browser(1920) as wide,
        Browser(375, dark=True, detour=(page.port, wire.port)) as phone,
    ):
        for browser in (wide, phone):
            browser.driver.get(page.link)
            charts(edl, browser)
        assert "token" not in wide.driver.current_url
        press(wide, "grow")
        expect_said(edl, wide, "3 workers are asked for")
        job.wait_size(3)
        edl.wait(lambda: "scaled" in kinds(wide), "the change on the page")
        late_ms = came(wide)
        before = len(story(wide))
        wide.driver.refresh()
        edl.wait(lambda: len(story(wide)) >= before, "the same after a reload")
        lose_one(edl, job, phone, wire, wide)
        for browser in (wide, phone):
            expect_whole_story(edl, browser, job.events())
            browser.expect_to_fit_dark_and_light()
            charts(edl, browser)
        expect_in_time(late_ms | came(wide), job.events())
        edl.wait(lambda: wide.run("return document.querySelectorAll('#workers tbody tr').length") == 2, "two workers")
        picture(wide, "dashboard-wide")
        picture(phone, "dashboard-phone-dark")
        assert wide.hosts() | phone.hosts() == {f"127.0.0.1:{page.port}"}
        assert wide.complaints() == []
        assert all("/events?after=" in line and "net::ERR_" in line for line in phone.complaints())
    expect_readable_without_scripts(page)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(page.link.partition("?")[0], timeout=10)
    page.end()
    job.finish()
    job.expect_exactly_once()
    expect_report(edl, job, tmp_path / "s.html")
    top = edl("top", "s")
    assert top.returncode == 0, top.stderr
    assert "finished" in top.stdout
    assert "job_finished" in top.stdout
    assert "(1 died)" in top.stdout
