"""A real job that grows, loses rank 0 and lives on, as TensorBoard and a receiver of OpenTelemetry see it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from elastic_job import Job
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edl.exports.curves import STEPS, WORKERS, Curves, Teller
from edl.exports.tensorboard import TensorBoardFiles
from edl.launch.job_records import Folder
from edl.launch.status_poller import Point, read_figures

GAP_S = 5.0  # at most between two points around a planned change: there is one a second

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class Receiver:
    """What takes spans over OTLP/HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces", self.path
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request: Any) -> None:
        for whole in request.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in whole.resource.attributes})
            self.spans += [span for scope in whole.scope_spans for span in scope.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def counting(points: list[Point]) -> list[Point]:
    """The naive twin: points of steps that were not trained once more in a later life, one for each step."""
    lives = [index for index, (before, after) in enumerate(pairwise(points), 1) if after.base != before.base]
    kept: list[Point] = []
    for index, point in enumerate(points):
        if index in lives:
            kept = [one for one in kept if one.step <= point.base]
        if not kept or point.step > kept[-1].step:
            kept.append(point)
    return kept


def kill(job: Job, *ranks: int) -> None:
    workers = {worker["rank"]: worker["pid"] for worker in job.status()["workers"]}
    for rank in ranks or [rank for rank in workers if rank is not None]:
        os.kill(workers[rank], signal.SIGKILL)


def expect_curves(job: Job, folder: Path) -> None:
    points = counting(list(read_figures(Folder(job.edl.home / "jobs" / "s"))))
    found = read(folder)
    losses = found.Scalars("loss")
    assert [(one.step, round(one.value, 4)) for one in losses] == [
        (point.step, round(point.figures["loss"], 4)) for point in points if "loss" in point.figures
    ]
    steps = [one.step for one in found.Scalars(WORKERS)]
    assert steps == sorted(set(steps))
    assert steps == [point.step for point in points]
    assert {3.0, 2.0} <= {one.value for one in found.Scalars(WORKERS)}
    assert all(one.value > 0 for one in found.Scalars(STEPS))


def expect_no_gap(job: Job, folder: Path) -> None:
    """Through each planned change, by the time at which the points were: its pause, and no more than there is between
    two points in any case.
    """
    at = sorted(one.wall_time for one in read(folder).Scalars(WORKERS))
    changes = list(takewhile(lambda one: not one["forced"], (one for one in job.events() if one["kind"] == "scaled")))
    assert changes  # those before the first death: what another life trains again is taken back
    for change in changes:
        before = max(one for one in at if one <= change["ts"])
        after = min(one for one in at if one > change["ts"])
        assert after - before < GAP_S + change["pause_ms"] / 1000, (change, before, after)


def expect_story(job: Job, folder: Path) -> None:
    events = job.events()
    told = read(folder / "events").Tensors("job/events")
    assert [one.step for one in told] == list(range(1, len(events) + 1))
    words = [one.tensor_proto.string_val[0].decode() for one in told]
    assert [line.split("**")[1] for line in words] == [event["kind"] for event in events]
    assert any("life_begun" in line and "the one before" in line for line in words)


def expect_spans(job: Job, receiver: Receiver) -> None:
    changes = [event for event in job.events() if event["kind"] == "scaled"]
    wholes = [span for span in receiver.spans if span.name == "switch"]
    assert all(found["service.name"] == "edl" and found["edl.job"] == "s" for found in receiver.resources)
    assert len(wholes) == len(changes)
    for whole, change in zip(sorted(wholes, key=lambda one: one.end_time_unix_nano), changes, strict=True):
        assert whole.end_time_unix_nano == pytest.approx(change["ts"] * 1e9, abs=1e4)
        parts = [span for span in receiver.spans if span.parent_span_id == whole.span_id]
        assert all(span.trace_id == whole.trace_id for span in parts)
        for part in parts:
            assert whole.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
            assert part.end_time_unix_nano <= whole.end_time_unix_nano
    grown = next(one for one in wholes if {a.key: a.value.int_value for a in one.attributes}["edl.workers.after"] == 3)
    names = {span.name for span in receiver.spans if span.parent_span_id == grown.span_id}
    assert names == {"plan", "boot", "rehearsal", "leave", "enter", "state"}


def write(folder: Path, points: list[Point], story: list[dict[str, Any]]) -> None:
    """As one run of `edl run` does."""
    files, teller = TensorBoardFiles(folder), Teller("here")
    files.take(Curves("here").take(points), [*teller.take(story), *teller.rest()], teller.count)
    files.close()


def test_another_run_of_the_same_line_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    event = {"ts": 1.0, "job": "j", "kind": "epoch_ended", "term": 1, "generation": 1, "step": 5, "epoch": 1}
    first = [Point(1.0, 10, 80, 2, {"loss": 0.5}), Point(2.0, 20, 160, 2, {"loss": 0.4}), Point(3.0, 30, 240, 2)]
    write(tmp_path, first, [event, event])
    write(tmp_path, [Point(9.0, 24, 16, 3, {"loss": 0.3}, 22), Point(10.0, 34, 96, 3, {}, 22)], [event])
    found = read(tmp_path)
    assert [(one.step, one.value) for one in found.Scalars(WORKERS)] == [(10, 2.0), (20, 2.0), (24, 3.0), (34, 3.0)]
    assert [one.step for one in found.Scalars("loss")] == [10, 20, 24]
    assert [one.step for one in read(tmp_path / "events").Tensors("job/events")] == [1, 2, 3]


@pytest.mark.soak  # what is told: tests/unit/exports/; that files are written: above
def test_a_job_is_told_of_as_a_whole_through_growth_the_death_of_rank_0_and_another_life(
    edl, tmp_path: Path, receiver: Receiver
) -> None:
    board = tmp_path / "board"
    job = Job(
        edl,
        tmp_path,
        2,
        EDL_TENSORBOARD=str(board),
        EDL_CHECKPOINT=str(tmp_path / "ck"),
        EDL_CHECKPOINT_EVERY="20steps",
        EDL_MAX_RESTARTS="2",
        EDL_SESSION_TIMEOUT="4",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
    )
    job.wait_size(2)
    job.wait_steps(30)
    job.scale(3)
    job.wait_size(3)
    job.wait_steps(30)
    assert read(board / "s").Scalars("loss")  # while it trains
    kill(job, 0)
    edl.wait(lambda: [one for one in job.events() if one["kind"] == "scaled" and one["forced"]], "the ring without it")
    job.wait_steps(30)
    kill(job)
    edl.wait(lambda: "life_begun" in [one["kind"] for one in job.events()], "another life", 60)
    edl.look_away("s")
    edl.wait(lambda: edl.status("s")["state"] == "running" and edl.status("s")["step"] > 30, "its steps", 60)
    job.finish()
    expect_curves(job, board / "s")
    expect_no_gap(job, board / "s")
    expect_story(job, board / "s")
    expect_spans(job, receiver)
