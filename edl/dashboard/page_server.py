"""The server of a job's page: starlette on uvicorn, on loopback.

Owns: the answers, and the actions of buttons: those of `edl scale`, `edl checkpoint` and `edl stop`, and no others.
Does not own: access (`edl.dashboard.site`), nor what is shown (`edl.dashboard.page_feed`).

A browser that lost its connection sends the number of the last event it has seen, and gets the events after it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from edl.dashboard import page_feed, page_html
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_report import report
from edl.dashboard.page_view import change_of, event_of
from edl.dashboard.site import BEAT_S, HEADERS, Access, GuardedSite, message, plain
from edl.errors import EdlError
from edl.launch import locate_job
from edl.launch.locate_job import Whereabouts
from edl.outside.job_client import Ack, Retry

STOP_REASON = "stopped from its page"
ASK_S = 10.0


async def press(locate: Callable[[], Whereabouts], what: str) -> str:
    """Return the result in one line."""
    try:
        where = locate()
        match what:
            case "grow":
                async with where.client() as job:
                    return _asked(await job.scale_out(1, timeout_s=ASK_S))
            case "shrink":
                async with where.client() as job:
                    return _asked(await job.scale_in(1, timeout_s=ASK_S))
            case "checkpoint":
                async with where.client() as job:
                    await job.checkpoint(f"page-{secrets.token_hex(8)}", ASK_S)
                return "a checkpoint is asked for"
            case "stop":
                return f"job {where.job} {await locate_job.stop(where, STOP_REASON)}"
            case _:
                return "there is no such button"
    except EdlError as error:
        return str(error)


def _asked(answer: Ack | Retry) -> str:
    if isinstance(answer, Retry):
        return answer.reason
    return "1 worker is asked for" if answer.target == 1 else f"{answer.target} workers are asked for"


HEAD: Final = (
    '<link rel="icon" href="data:,"><link rel="stylesheet" href="uPlot.min.css">'
    '<link rel="stylesheet" href="page.css">'
    '<script src="uPlot.iife.min.js" defer></script><script src="page.js" defer></script>'
)
FORM_BYTES: Final = 4096
DRAWN_EACH: Final = 3  # charts are drawn anew after this many statuses
Act = Callable[[str], Awaitable[str]]


class PageServer(GuardedSite):
    """`act` carries out a button by its name; None means that there are no buttons."""

    def __init__(self, feed: Feed, access: Access, act: Act | None = None) -> None:
        super().__init__(access, {"": self._page, "events": self._events, "report": self._report}, self._press)
        self._feed = feed
        self._act = act
        self._said = ""
        self._charts: tuple[tuple[int, int], page_html.Charts] | None = (
            None  # numbers of status and event, and their charts
        )

    # ------------------------------------------------------------------------------------------------- what is asked

    async def _page(self, _: Request) -> Response:
        if self._feed.status is None:
            return plain("the job is not heard of yet; reload in a moment", 503)
        controls = None if self._act is None else page_html.Controls(self._access.check, self._said)
        shown = page_feed.view(self._feed), page_feed.newest(self._feed), self._drawn()
        return HTMLResponse(page_html.page(*shown, HEAD, controls), headers=HEADERS)

    async def _report(self, _: Request) -> Response:
        """Answer with the page as one file, to be saved."""
        if self._feed.status is None:
            return plain("the job is not heard of yet; reload in a moment", 503)
        named = {"Content-Disposition": f'attachment; filename="{self._feed.status.job}.html"'}
        return HTMLResponse(report(self._feed), headers=HEADERS | named)

    async def _events(self, request: Request) -> Response:
        given = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        after = int(given) if given.isdecimal() and len(given) < 12 else 0
        return self.streamed(self._tell(after))

    async def _tell(self, after: int) -> AsyncIterator[str]:
        looks, changed = -1, False  # `changed`: the ring has changed since charts were drawn
        while True:
            news = self._feed.news
            for number, flat in self._feed.after(after):
                yield _happened(number, flat)
                after, changed = number, changed or change_of(flat) is not None
            if self._feed.looks != looks and self._feed.status is not None:
                looks = self._feed.looks
                drawn = changed or looks % DRAWN_EACH == 0
                changed = changed and not drawn
                yield self._look(drawn=drawn)
            elif not news.is_set():
                yield ": beat\n\n"
            await self._feed.wait(news, BEAT_S)

    def _look(self, *, drawn: bool) -> str:
        """Make the message after another status of the job. With `drawn` it includes the charts, which are larger than
        all else.
        """
        view = page_feed.view(self._feed)
        parts = {
            "state": page_html.state(view),
            "tiles": page_html.tiles(view.tiles),
            "workers": page_html.workers(view.rows, view.more_workers),
            "data": page_html.bar(view.data, "samples"),
            "time": page_html.time_bar(view.time),
            "earlier": page_html.earlier_events(view.job, page_feed.earlier(self._feed)),
        }
        charts = msgspec.to_builtins(self._drawn()) if drawn or view.over else None
        return message("look", {"parts": parts, "charts": charts, "over": view.over})

    def _drawn(self) -> page_html.Charts:
        """Make the charts once for all browsers."""
        now = self._feed.looks, self._feed.count
        if self._charts is None or self._charts[0] != now:
            self._charts = now, page_feed.charts(self._feed)
        return self._charts[1]

    # ---------------------------------------------------------------------------------------------------- the buttons

    async def _press(self, request: Request) -> Response:
        if self._act is None:
            return plain("this page has no buttons: `edl dashboard --allow-scale` has", 403)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES:
                return plain("too long", 413)
        form = parse_qs(body.decode("latin-1"))
        if not self._access.may_press(request.headers, form.get("check", [""])[0]):
            return plain("this press of a button does not come from the page", 403)
        self._said = await self._act(form.get("do", [""])[0])
        return RedirectResponse(f"{self._access.place}/", 303, headers=HEADERS)


def _happened(number: int, flat: dict[str, Any]) -> str:
    return message("happened", {"html": page_html.row(event_of(number, flat)), "number": number}, number)
