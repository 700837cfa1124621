"""The page's server under friends and strangers, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from seen_job import EVIL, event, feed, scaled, status

from edl.dashboard import page_feed
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_server import PageServer
from edl.dashboard.site import FILES, STREAMS, Access
from edl.errors import ConfigError
from edl.host import http_serving
from edl.host.http_serving import CONNECTIONS, MOST_CONNECTIONS, listen

pytestmark = pytest.mark.integration


class Page:
    """A page that is served, and callers of it."""

    def __init__(self, shown: Feed, *, buttons: bool = False) -> None:
        self.feed = shown
        self.pressed: list[str] = []
        self.ear = listen("127.0.0.1", 0)
        self.access = Access.fresh(self.ear.getsockname()[1], "127.0.0.1")
        self.server = PageServer(shown, self.access, self._act if buttons else None)

    async def _act(self, what: str) -> str:
        self.pressed.append(what)
        return f"{what}: {EVIL}"

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"{self.access.cookie}={self.access.token}"}

    async def open(self, path: str = "/", method: str = "GET", body: str = "", **headers: str) -> asyncio.StreamReader:
        path = path if path.startswith("/?") else self.access.place + path
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.access.port)
        fields = {"Host": f"127.0.0.1:{self.access.port}", "Connection": "close", "Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n{body}".encode())
        return reader

    async def ask(self, path: str = "/", method: str = "GET", body: str = "", **headers: str) -> tuple[int, str, str]:
        """Code, head and body. `path`: of the page, or of its link."""
        reader = await self.open(path, method, body, **headers)
        head, _, rest = (await asyncio.wait_for(reader.read(), 10)).decode().partition("\r\n\r\n")
        self.writer.close()
        return int(head.split()[1]), head.lower(), rest


@contextlib.asynccontextmanager
async def served(shown: Feed, *, buttons: bool = False) -> AsyncIterator[Page]:
    page = Page(shown, buttons=buttons)
    task = asyncio.create_task(page.server.serve(page.ear))
    try:
        yield page
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        page.ear.close()


async def test_the_link_opens_the_page_and_its_token_goes_into_a_cookie() -> None:
    async with served(feed([event(1)])) as page:
        code, head, _ = await page.ask(f"/?token={page.access.token}")
        assert (code, f"location: {page.access.place}/\r\n" in head + "\r\n") == (303, True)
        assert "httponly" in head and "samesite=lax" in head and page.access.token.lower() in head
        assert f"path={page.access.place};" in head and "domain" not in head  # no other server of this host is sent it
        code, head, body = await page.ask(**page.cookie)
        assert not [url for url in re.findall(r'(?:href|src|action)="([^"]*)"', body) if url.startswith("/")]
        assert code == 200 and "epoch_ended" in body and page.access.token not in body
        assert "default-src 'none'" in head and "unsafe" not in head and "no-store" in head


@pytest.mark.parametrize("path", ["/", "/events", "/report", "/page.js", "/uPlot.min.css", "/?token=wrong", "/?token="])
async def test_without_the_token_nothing_is_told(path: str) -> None:
    async with served(feed([event(1)])) as page:
        for headers in ({}, {"Cookie": f"{page.access.cookie}=wrong"}, {"Cookie": "edl-1=x"}):
            code, head, body = await page.ask(path, **headers)
            assert code == 403 and "epoch_ended" not in body and "set-cookie" not in head


async def test_the_page_is_saved_as_one_file_by_its_link() -> None:
    async with served(feed([event(1)])) as page:
        body = (await page.ask(**page.cookie))[2]
        assert 'href="report" download="j.html"' in body
        code, head, body = await page.ask("/report", **page.cookie)
        assert code == 200 and 'attachment; filename="j.html"' in head
        assert "epoch_ended" in body and 'href="report"' not in body and page.access.token not in body
        assert not [url for url in re.findall(r'(?:href|src|action)="([^"]*)"', body) if not url.startswith("data:")]


async def test_another_name_of_this_host_is_refused_whatever_it_brings() -> None:
    async with served(feed([event(1)])) as page:
        for path in ("/", "/events", f"/?token={page.access.token}"):
            assert (await page.ask(path, Host="evil.example", **page.cookie))[0] == 403


async def test_buttons_are_there_where_asked_for_and_pressed_from_the_page_only() -> None:
    ours = {"Content_Type": "application/x-www-form-urlencoded"}
    async with served(feed([event(1)])) as page:
        assert "<button" not in (await page.ask(**page.cookie))[2]
        assert (await page.ask("/act", "POST", f"do=stop&check={page.access.check}", **page.cookie))[0] == 403
    async with served(feed([event(1)]), buttons=True) as page:
        origin = {"Origin": f"http://127.0.0.1:{page.access.port}"}
        form = f"do=grow&check={page.access.check}"
        refused = [
            await page.ask("/act", "POST", form, **ours, **origin),
            await page.ask("/act", "POST", form, **ours, **page.cookie),
            await page.ask("/act", "POST", form, **ours, **page.cookie, Origin="http://evil.example"),
            await page.ask("/act", "POST", "do=grow", **ours, **page.cookie, **origin),
            await page.ask("/act", "POST", form, **ours, **page.cookie, **origin, Sec_Fetch_Site="cross-site"),
        ]
        assert [code for code, _, _ in refused] == [403] * 5
        assert (await page.ask(f"/act?{form}", **page.cookie))[0] == 405
        assert (await page.ask("/act", "POST", "x" * 5000, **page.cookie, **origin))[0] == 413
        assert page.pressed == []
        code, head, _ = await page.ask("/act", "POST", form, **ours, **page.cookie, **origin)
        assert code == 303 and f"location: {page.access.place}/" in head
        assert page.pressed == ["grow"]
        body = (await page.ask(**page.cookie))[2]
        assert "<script>alert" not in body and "grow: &lt;script&gt;" in body


async def messages(reader: asyncio.StreamReader, count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    while len(found) < count:
        raw = (await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)).decode()
        lines = [line for line in raw.replace("\r", "").split("\n") if ": " in line and line[0] != ":"]
        if fields := dict(line.split(": ", 1) for line in lines if line.split(":")[0] in {"id", "event", "data"}):
            found.append(fields)
    return found


async def test_events_come_as_they_happen_and_go_on_where_they_broke_off() -> None:
    async with served(feed([event(1), scaled(2, 2, 3)])) as page:
        reader = await page.open("/events?after=1", **page.cookie)
        first = await messages(reader, 2)
        assert [one["event"] for one in first] == ["happened", "look"]
        assert first[0]["id"] == "2" and "2 → 3 workers" in json.loads(first[0]["data"])["html"]
        page.feed.take_events([event(3, "worker_lost", worker="w", was="x", reason=f"{EVIL}\n\ndata: x")])
        (third,) = await messages(reader, 1)
        assert third["id"] == "3" and "<script>" not in third["data"]
        page.writer.close()
        page.feed.take_events([event(4)])
        again = await page.open("/events?after=0", Last_Event_ID="2", **page.cookie)
        assert [one.get("id") for one in await messages(again, 2)] == ["3", "4"]
        page.writer.close()


async def test_a_number_that_is_none_begins_at_the_beginning() -> None:
    async with served(feed([event(1)])) as page:
        for wrong in ("-1", "x", "9" * 400):
            reader = await page.open("/events", Last_Event_ID=quote(wrong), **page.cookie)
            assert (await messages(reader, 1))[0]["id"] == "1"
            page.writer.close()


async def test_a_thousand_connections_are_bounded_and_those_who_look_go_on() -> None:
    async with served(feed([event(1)])) as page:
        reader = await page.open("/events", **page.cookie)
        await messages(reader, 2)
        mine = page.writer
        streams = [(await page.open("/events", **page.cookie), page.writer) for _ in range(STREAMS + 5)]
        heads = [(await asyncio.wait_for(one.readline(), 10)).decode() for one, _ in streams]
        assert sum(" 503 " in head for head in heads) >= 5
        crowd = []
        for _ in range(1000):
            with contextlib.suppress(OSError):
                crowd.append(await asyncio.open_connection("127.0.0.1", page.access.port))
        page.feed.take_events([event(2)])
        began = time.monotonic()
        assert (await messages(reader, 1))[0]["id"] == "2"
        assert time.monotonic() - began < 5.0
        for _, writer in [*streams, *crowd]:
            writer.close()
        async with asyncio.timeout(10):  # those who left make room
            while b" 200 " not in await (await page.open("/events", **page.cookie)).readline():
                page.writer.close()
        page.writer.close()
        mine.close()
        for _, writer in crowd:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.mark.slow
async def test_connections_that_ask_nothing_make_room_for_those_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_s = 2.0  # all connections are made within that
    monkeypatch.setattr(http_serving, "ASK_S", ask_s)
    async with served(feed([event(1)])) as page:
        begun = f"GET {page.access.place}/ HTTP/1.1\r\nHost: 127.0.0.1:{page.access.port}\r\n"
        whole = f"{begun}Cookie: {page.cookie['Cookie']}\r\n\r\n"
        silent = [await asyncio.open_connection("127.0.0.1", page.access.port) for _ in range(CONNECTIONS)]
        silent[0][1].write(begun.encode())
        assert (await page.ask(**page.cookie))[0] == 200
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            with contextlib.suppress(OSError):
                writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", page.access.port)
        writer.write((whole + begun).encode())  # and no more of its second request
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
        stream = await page.open("/events", **page.cookie)
        await asyncio.wait_for(stream.readuntil(b"event: look"), 10)
        await asyncio.sleep(ask_s + 0.5)
        page.feed.take_events([event(2)])
        await asyncio.wait_for(stream.readuntil(b"id: 2"), 10)  # one that is being answered stays
        page.writer.close()


async def test_beyond_the_bound_of_connections_none_is_held() -> None:
    async with served(feed([event(1)])) as page:
        crowd = [await asyncio.open_connection("127.0.0.1", page.access.port) for _ in range(MOST_CONNECTIONS)]
        for reader, _ in crowd[: MOST_CONNECTIONS - http_serving.MOST_IDLE]:  # the oldest
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, writer in crowd:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_charts_are_made_once_for_all_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    charts = page_feed.charts
    monkeypatch.setattr(page_feed, "charts", lambda feed: made.append(1) or charts(feed))
    async with served(feed([event(1)])) as page:
        assert [(await page.ask(**page.cookie))[0] for _ in range(3)] == [200] * 3
        assert len(made) == 1
        page.feed.take_events([event(2)])
        await page.ask(**page.cookie)
        assert len(made) == 2


@pytest.mark.parametrize(("port", "host", "ours"), [(80, "localhost", True), (81, "localhost", False)])
def test_browsers_leave_out_the_port_of_http(port: int, host: str, *, ours: bool) -> None:
    access = Access("t", port)
    assert access.names_us(host) is ours and access.names_us(f"{host}:{port}") and not access.names_us("evil.example")
    assert access.may_press({"origin": f"http://{host}"}, access.check) is ours


async def test_a_day_of_events_of_64_workers_loads_at_once_and_is_small() -> None:
    story = [event(n) if n % 2 else scaled(n, 63 + n % 4 // 2, 64 - n % 4 // 2) for n in range(20_000)]
    async with served(feed(story, status(64), points=5000)) as page:
        began = time.process_time()  # others may have the cores meanwhile
        code, _, body = await page.ask(**page.cookie)
        took = time.process_time() - began
        assert code == 200 and took < 2.0, took
        files = [await page.ask(f"/{name}", **page.cookie) for name in FILES]
        besides = sum(len(found) for _, _, found in files)
        assert besides < 100_000, besides
        assert len(body) < 600_000


def test_a_port_that_is_taken_is_said_so() -> None:
    wrong = pytest.raises(ConfigError, match=r"--port \d+: cannot listen at 127\.0\.0\.1: .*; choose another")
    with listen("127.0.0.1", 0) as ear, wrong:
        listen("127.0.0.1", ear.getsockname()[1])


async def test_a_job_of_which_nothing_is_known_yet_says_so() -> None:
    shown = feed([event(1)])
    shown.status = None
    async with served(shown) as page:
        assert (await page.ask(**page.cookie))[0] == 503
