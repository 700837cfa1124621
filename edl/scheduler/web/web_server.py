"""HTTP interface of a cluster: starlette, over one session with the coordinator, as `python -m edl.scheduler http`.

Owns: what is asked for by which address, within bounds, and the process, which the keeper starts again where it dies.
Does not own: who may ask and which wishes are whole (`edl.cluster.queue.submission`), nor what becomes of them
(`edl.scheduler.cluster_client`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edl import __version__
from edl.cluster.queue import job_view
from edl.cluster.queue.job_view import Accounts, JobList, JobShown, brief, shown
from edl.cluster.queue.queue_entries import Submission
from edl.cluster.queue.submission import (
    JobWish,
    QueueFull,
    SizeWish,
    TokenHolder,
    check_fits,
    checked_name,
    checked_worker,
    submission,
)
from edl.errors import ConfigError, EdlError, NoSuchJob, StoreUnavailable, UsageError
from edl.host.http_serving import listen, serve
from edl.scheduler.cluster_client import ClusterClient, ClusterStatus
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.cluster_processes import connected, mind_keeper
from edl.scheduler.environ_files import EnvironFiles, handed_on
from edl.scheduler.queue_store import QueueStore
from edl.scheduler.tokens import TokenBook
from edl.scheduler.worker_logs import LogPiece, LogPlace, Printed, marked_lines

# The interface describes itself in OpenAPI's words, made of the forms that it takes and gives.


class TakenJob(msgspec.Struct, frozen=True):
    name: str


class SizedJob(msgspec.Struct, frozen=True):
    name: str
    np: int | None


class RefusedRequest(msgspec.Struct, frozen=True):
    """`error`: the reason, in one line."""

    error: str


FORMS: Final = (
    JobWish, SizeWish, JobList, JobShown, ClusterStatus, Accounts, LogPiece, TakenJob, SizedJob, RefusedRequest,
)  # fmt: skip
JOB: Final = {"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}
REFUSALS: Final = {
    "400": "the request is not right", "401": "no token, or one that opens nothing", "403": "the job is another user's",
    "404": "there is no such thing", "409": "the name is taken", "413": "the body is too long",
    "429": "the queue is full, of this user's jobs or of all: wait, or cancel some",
    "503": "too busy, or the coordinator does not answer: try again",
}  # fmt: skip


@cache
def document() -> bytes:
    _, forms = msgspec.json.schema_components(FORMS, ref_template="#/components/schemas/{name}")
    found = {
        "openapi": "3.1.0",
        "info": {"title": "A cluster of edl", "version": __version__},
        "components": {
            "schemas": forms,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": _paths(),
    }
    return msgspec.json.encode(found)


def _paths() -> dict[str, Any]:
    follow = [
        _query("follow", "1: and what is printed from now on, until the job is over", "integer"),
        _query("worker", "only of this worker"),
        _query("form", "text, or lines: one JSON object for each piece"),
        _query("after", "to go on where it broke off: WORKER=INODE:AT, more of them after commas"),
    ]
    wait = [JOB, _query("timeout_s", "answer by then, over or not (default and at most: 55)", "integer")]
    over = _query("over", "how many of the jobs that are over, the newest (default: 200)", "integer")
    whole = _query("whole", "1: each with its events, and the devices that were its own", "integer")
    return {
        "/v1/openapi.json": {"get": _call("this document", ok={"200": None})},
        "/v1/cluster": {"get": _call("nodes, and how many jobs are in which state", ok={"200": "ClusterStatus"})},
        "/v1/accounts": {
            "get": _call(
                "device-seconds by job and user", [_query("form", "json, or csv: text/csv")], ok={"200": "Accounts"}
            )
        },
        "/v1/jobs": {
            "get": _call("jobs that wait or run, and the newest that are over", [over, whole], ok={"200": "JobList"}),
            "post": _call("submit a job", body="JobWish", ok={"201": "TakenJob", "200": "TakenJob"}),
        },
        "/v1/jobs/{job}": {
            "get": _call("one job, with what has happened to it", [JOB], ok={"200": "JobShown"}),
            "delete": _call("cancel it", [JOB], ok={"202": "JobShown", "200": "JobShown"}),
        },
        "/v1/jobs/{job}/size": {
            "put": _call("ask for so many workers", [JOB], body="SizeWish", ok={"202": "SizedJob"}),
        },
        "/v1/jobs/{job}/logs": {
            "get": _call("what its workers have printed", [JOB, *follow], ok={"200": None}),
        },
        "/v1/jobs/{job}/wait": {"get": _call("the job, once it is over", wait, ok={"200": "JobShown"})},
    }


def _query(name: str, words: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": words, "schema": {"type": kind}}


def _call(
    words: str, given: list[dict[str, Any]] | None = None, *, ok: dict[str, str | None], body: str | None = None
) -> dict[str, Any]:
    answers: dict[str, Any] = {
        code: {"description": "done"} | ({} if form is None else {"content": _content(form)})
        for code, form in ok.items()
    }
    answers |= {code: {"description": why, "content": _content("RefusedRequest")} for code, why in REFUSALS.items()}
    found: dict[str, Any] = {"summary": words, "responses": answers}
    if given:
        found["parameters"] = given
    if body is not None:
        found["requestBody"] = {"required": True, "content": _content(body)}
    return found


def _content(form: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}


logger = logging.getLogger("edl")

BODY_BYTES: Final = 1_000_000
BODY_S: Final = 30.0  # for a body to come
STREAMS: Final = 32  # logs that are followed
WAITS: Final = 48  # callers who wait for a job
WAIT_S: Final = 55.0  # at most, before an answer says that it is not over
LOOK_S: Final = 0.25
BEAT_S: Final = 5.0  # a word at least so often, where a log is followed
SHOWN_OVER: Final = 200  # jobs that are over, in a list that asks for no number
AFTER: Final = re.compile(r"([A-Za-z0-9._-]{1,80})=([0-9]{1,20}):([0-9]{1,15})")

T = TypeVar("T")
Answer = Callable[[Request, TokenHolder], Awaitable[Response]]


class ClusterServer:
    """Routes of one cluster. `environ`: variables that each job gets, before its owner's own."""

    def __init__(self, client: ClusterClient, book: TokenBook, environ: dict[str, str]) -> None:
        self._client, self._book = client, book
        self._environ = handed_on(environ)
        self._turns = {"streams": asyncio.Semaphore(STREAMS), "waits": asyncio.Semaphore(WAITS)}
        routes = [
            Route("/v1/openapi.json", self._guarded(self._document), methods=["GET"]),
            Route("/v1/cluster", self._guarded(self._cluster), methods=["GET"]),
            Route("/v1/accounts", self._guarded(self._accounts), methods=["GET"]),
            Route("/v1/jobs", self._guarded(self._list), methods=["GET"]),
            Route("/v1/jobs", self._guarded(self._submit), methods=["POST"]),
            Route("/v1/jobs/{job}", self._guarded(self._describe), methods=["GET"]),
            Route("/v1/jobs/{job}", self._guarded(self._cancel), methods=["DELETE"]),
            Route("/v1/jobs/{job}/size", self._guarded(self._scale), methods=["PUT"]),
            Route("/v1/jobs/{job}/logs", self._guarded(self._logs), methods=["GET"]),
            Route("/v1/jobs/{job}/wait", self._guarded(self._wait), methods=["GET"]),
            Route("/{rest:path}", self._guarded(self._nothing), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})

    def _guarded(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Answer only requests with a token; tell each error in one line."""

        @functools.wraps(answer)
        async def guarded(request: Request) -> Response:
            try:
                caller = self._book.caller(request.headers.get("authorization", ""))
                if caller is None:
                    return _said("a token is needed: Authorization: Bearer TOKEN", 401, {"WWW-Authenticate": "Bearer"})
                return await answer(request, caller)
            except HTTPException:
                raise
            except NoSuchJob as error:
                return _said(str(error), 404)
            except (UsageError, ConfigError) as error:
                taken = isinstance(error, UsageError) and "another name" in str(error)
                return _said(str(error), 429 if isinstance(error, QueueFull) else 409 if taken else 400)
            except StoreUnavailable as error:
                return _said(f"the coordinator does not answer: {error}", 503, {"Retry-After": "1"})
            except EdlError as error:
                logger.warning("%s %s: %s", request.method, request.url.path, error)
                return _said(str(error), 500)

        return guarded

    # ---------------------------------------------------------------------------------------------------- the cluster

    async def _document(self, _: Request, __: TokenHolder) -> Response:
        return Response(document(), media_type="application/json", headers=HEADERS)

    async def _cluster(self, _: Request, caller: TokenHolder) -> Response:
        status = await self._client.status()
        if not caller.owner:  # its processes and its story are the owner's
            status = msgspec.structs.replace(status, coordinator="", scheduler="", processes={}, story=())
        return _json(status)

    async def _accounts(self, request: Request, caller: TokenHolder) -> Response:
        jobs = [job for job in await self._client.queue.jobs() if caller.may_open(job.asked.user)]
        found = job_view.accounts_of(jobs, time.time())
        if request.query_params.get("form", "json") != "csv":
            return _json(found)
        text = job_view.as_csv(found)
        return Response(text, media_type="text/csv; charset=utf-8", headers=HEADERS)

    async def _nothing(self, request: Request, _: TokenHolder) -> Response:
        return _said(f"there is no {request.method} {request.url.path}: GET /v1/openapi.json says what there is", 404)

    # ----------------------------------------------------------------------------------------------------------- jobs

    async def _list(self, request: Request, caller: TokenHolder) -> Response:
        most = _whole(request, "over", SHOWN_OVER, 0, 100_000)
        jobs = await self._client.queue.jobs()
        over = [job for job in jobs if job.over]
        kept = {job.name for job in sorted(over, key=lambda job: job.ended or 0.0)[max(0, len(over) - most) :]}
        now = time.time()
        found = [shown(job, now) for job in jobs if not job.over or job.name in kept]
        whole = request.query_params.get("whole", "0") == "1"
        return _json(JobList(tuple(caller.sees(job) if whole else brief(caller.sees(job)) for job in found)))

    async def _submit(self, request: Request, caller: TokenHolder) -> Response:
        wish = await _form(request, JobWish)
        user = wish.user or caller.user
        if not user:
            raise ConfigError("user: name whose job it is; this token is the owner's, and opens all")
        if not caller.may_open(user):
            return _said(f"this token is {caller.user}'s: it submits no jobs of {user}", 403)
        highest = self._client.config.priorities.get(user, 0)
        if not caller.owner and wish.priority > highest:
            raise_by = f"`edl cluster start --highest-priority {user}:{wish.priority}` raises that"
            return _said(f"priority {wish.priority}: this token is {user}'s, who may have {highest}; {raise_by}", 403)
        asked = submission(wish, user, time.time())
        check_fits(asked, [len(node.devices) for node in self._client.config.nodes], flags=False)
        before = await self._submitted_before(asked)
        if before is None:
            await self._client.submit(asked, {**self._environ, **handed_on(wish.environ)})
        return _json({"name": asked.name}, 201 if before is None else 200)

    async def _submitted_before(self, asked: Submission) -> Submission | None:
        """Find the job of a repeated request, whose first answer was lost."""
        found = await self._client.queue.job(asked.name) if asked.ticket else None
        same = found is not None and (found.asked.user, found.asked.ticket) == (asked.user, asked.ticket)
        return found.asked if same and found is not None else None

    async def _opened(self, request: Request, caller: TokenHolder) -> JobShown:
        """Raises NoSuchJob, ConfigError; HTTPException where it is another's."""
        name = checked_name(request.path_params["job"])
        job = shown(await self._client.job(name), time.time())
        if not caller.may_open(job.user):
            raise HTTPException(403, f"job {name} is {job.user}'s, and this token {caller.user}'s")
        return job

    async def _describe(self, request: Request, caller: TokenHolder) -> Response:
        return _json(await self._opened(request, caller))

    async def _cancel(self, request: Request, caller: TokenHolder) -> Response:
        job = await self._opened(request, caller)
        if not job.over:
            await self._client.queue.cancel(job.name)
        return _json(job, 200 if job.over else 202)

    async def _scale(self, request: Request, caller: TokenHolder) -> Response:
        job = await self._opened(request, caller)
        wish = await _form(request, SizeWish)
        await self._client.scale(job, wish.np)
        return _json({"name": job.name, "np": wish.np}, 202)

    async def _wait(self, request: Request, caller: TokenHolder) -> Response:
        """Return the job as it is when it is over, or after a while."""
        patience = _whole(request, "timeout_s", int(WAIT_S), 0, int(WAIT_S))
        job = await self._opened(request, caller)
        if self._turns["waits"].locked():
            raise HTTPException(503, TOO_MANY)
        async with self._turns["waits"]:
            until = time.monotonic() + patience
            changed = asyncio.Event()
            watch = self._client.queue.watch(f"/edl-cluster/jobs/{job.name}", changed.set)
            try:
                while not job.over and (left := until - time.monotonic()) > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(left, BEAT_S)):
                            await changed.wait()
                    changed.clear()
                    job = shown(await self._client.job(job.name), time.time())
            finally:
                watch.close()
        return _json(job)

    # ----------------------------------------------------------------------------------------------------------- logs

    async def _logs(self, request: Request, caller: TokenHolder) -> Response:
        asks = request.query_params
        follow, lines = asks.get("follow", "0") == "1", asks.get("form", "text") == "lines"
        worker = asks.get("worker")
        job = await self._opened(request, caller)
        if worker is not None:
            checked_worker(worker)
        after = {name: LogPlace(int(inode), int(at)) for name, inode, at in AFTER.findall(asks.get("after", ""))}
        printed = Printed(self._client.home.job_logs(job.name), worker, after)
        if worker is not None and not printed.workers() and (job.over or not follow):
            return _said(printed.lacking(job.name), 404)
        if self._turns["streams"].locked():
            raise HTTPException(503, TOO_MANY)
        media = "application/x-ndjson" if lines else "text/plain; charset=utf-8"
        told = self._told(job.name, printed, follow=follow, lines=lines)
        return StreamingResponse(told, media_type=media, headers=HEADERS)

    async def _told(self, name: str, printed: Printed, *, follow: bool, lines: bool) -> AsyncIterator[bytes]:
        """Yield a piece at a time, as fast as the client reads."""
        said = time.monotonic()
        async with self._turns["streams"]:
            over = False
            while not over:
                over = not follow or await self._is_over(name)
                several = printed.worker is None and len(await asyncio.to_thread(printed.workers)) > 1
                pieces = printed.news(final=over)
                while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                    text = marked_lines(piece) if several else piece.text
                    yield msgspec.json.encode(piece) + b"\n" if lines else text.encode()
                    said = time.monotonic()
                if not over:
                    if lines and time.monotonic() - said > BEAT_S:
                        said = time.monotonic()
                        yield b"\n"
                    await asyncio.sleep(LOOK_S)
            if lines:
                yield b'{"over":true}\n'

    async def _is_over(self, name: str) -> bool:
        """Return False while the coordinator is away: that changes nothing of what is printed."""
        try:
            found = await self._client.queue.job(name)
        except StoreUnavailable:
            return False
        return found is None or (found.over and not found.workers)


TOO_MANY: Final = "too many wait just now: try again in a moment"
HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


async def _form(request: Request, kind: type[T]) -> T:
    """Raises ConfigError, HTTPException."""
    body = await _body(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"the body is not right: {error}") from None


async def _body(request: Request) -> bytes:
    """Raises HTTPException where it is too long, or comes too slowly."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES:
                    raise HTTPException(413, f"more than {BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"it did not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "it broke off") from None
    return body


def _whole(request: Request, name: str, usual: int, least: int, most: int) -> int:
    """Raises ConfigError."""
    text = request.query_params.get(name, str(usual))
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name}={text}: must be a whole number from {least} to {most}")
    return int(text)


def _json(value: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), code, media_type="application/json", headers=HEADERS)


def _said(words: str, code: int, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": words})
    return Response(body, code, media_type="application/json", headers={**HEADERS, **(headers or {})})


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _said(error.detail, error.status_code)


async def serve_http(home: ClusterHome) -> None:
    """Serve the HTTP interface until cancelled. Raises ConfigError."""
    config = home.config()
    if config.http is None:
        raise ConfigError("the cluster was started without --http")
    book = TokenBook(home)
    book.make()
    store = await connected(home.coordinator(), config.session_timeout_s)
    queue = QueueStore(store, EnvironFiles(home.environs))
    minding = asyncio.create_task(mind_keeper(home))
    try:
        with listen(config.http.address, config.http.port, "--http") as ear:
            logger.info("listens at %s", config.http.url)
            client = ClusterClient(home, config, queue)
            await serve(
                ClusterServer(client, book, dict(os.environ)).app, ear, config.http.certificate, config.http.key
            )
    finally:
        minding.cancel()
        await asyncio.gather(minding, return_exceptions=True)
        await store.close()
