"""The interface in OpenAPI's words, made of the forms that it takes and gives.

Owns: the document. Does not own: the forms, nor the routes (a test compares).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from edl import __version__
from edl.cluster.queue.job_view import Accounts, JobList, JobShown
from edl.cluster.queue.submission import JobWish, SizeWish
from edl.scheduler.cluster_client import ClusterStatus
from edl.scheduler.worker_logs import LogPiece


class TakenJob(msgspec.Struct, frozen=True):
    """A job that was submitted."""

    name: str


class SizedJob(msgspec.Struct, frozen=True):
    """Workers that a job was asked to have."""

    name: str
    np: int | None


class RefusedRequest(msgspec.Struct, frozen=True):
    """Answer to a request that is refused: the reason, in one line."""

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
