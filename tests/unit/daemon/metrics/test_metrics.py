"""What a scrape shows, and who is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from edl.clock import ManualClock
from edl.core.data.ledgers import new_ledger, restored_ledger
from edl.daemon.metrics import exposition, metrics_server
from edl.daemon.metrics.families import DaemonSeen, Family, Type, families, of_job
from edl.daemon.metrics.metrics_server import AT_ONCE, MetricsServer
from edl.errors import ConfigError
from edl.protocol.data_nouns import DataCounts, DataSpec
from edl.protocol.leader_messages import Observation, Phase
from edl.protocol.record import JobState, SavingStatus, Stable, Status, WorkerState, WorkerStatus
from edl.protocol.tally import Doing, Rate, Tally, Usage

SHIPPED = Path(metrics_server.__file__).with_name("shipped")
OPEN = "application/openmetrics-text; version=1.0.0"
CONTRACT = """edl_job_steps_total edl_job_samples_total edl_job_size edl_job_target_size edl_job_generation
edl_job_pause_seconds_total edl_job_scalings_total{reason} edl_job_workers_lost_total{cause}
edl_job_goodput_seconds_total edl_job_badput_seconds_total{cause} edl_job_checkpoint_age_seconds
edl_worker_seconds_total{worker,activity}"""
USAGE = Usage(10.0, 7, waited_s=1.5, loaded_s=0.5, cpu_s=9.0, memory=1000, reported={"loss": 0.5}, computed_s=8.0)
SEEN = Observation(phase=Phase.TRAINING, generation=2, step=7, leases_of=2, step_time_s=0.1, usage=USAGE)
OWN = DaemonSeen("j", "w0", "1.0", True, SEEN, {"signature": 3})


def status(workers: int = 2, **changes: object) -> Status:
    known = Status(
        job="j",
        state=JobState.RUNNING,
        reason="",
        term=3,
        generation=2,
        leader="w0",
        step=7,
        epoch=1,
        size=workers,
        target=workers,
        min_workers=1,
        max_workers=0,
        workers=tuple(
            WorkerStatus(f"w{n}", n, "host", 1, 2, WorkerState.TRAINING, 7, usage=USAGE, pace=0.5)
            for n in range(workers)
        ),
        data=DataCounts(1, 100, 60, 30, 10, 5),
        spec=None,
        rate=Rate(workers, 10, 100, 2.0),
        base=100,
        saving=SavingStatus(60.0, 0, "", 5, "/c"),
        started=900.0,
        tally=Tally(
            at=1000.0, doing=Doing.TRAINING, good_s=50.0, bad_s={"fault": 2.0}, pause_s=0.3, checkpointed_at=990.0
        ),
        stable=Stable(7, 448),
    )
    return msgspec.structs.replace(known, **changes)


def values(text: str) -> dict[str, float]:
    return {
        sample.name + json.dumps({k: v for k, v in sorted(sample.labels.items()) if k != "job"}): sample.value
        for family in plain_families(text)
        for sample in family.samples
    }


def test_all_names_of_the_contract_are_there_with_their_labels() -> None:
    text = exposition.encoded(families(OWN, status(), 1000.0), "")[0].decode()
    for wanted in CONTRACT.split():
        name, _, labels = wanted.rstrip("}").partition("{")
        found = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert found, name
        assert all(f'{label}="' in found[0] for label in ("job", *filter(None, labels.split(",")))), found[0]


def test_what_a_job_has_come_to() -> None:
    shown = values(exposition.encoded(of_job(status(), 1005.0), "")[0].decode())
    assert shown["edl_job_goodput_seconds_total{}"] == 50.0
    assert shown['edl_job_badput_seconds_total{"cause": "fault"}'] == 2.0
    assert shown['edl_job_badput_seconds_total{"cause": "switch"}'] == 0.0
    assert shown["edl_job_checkpoint_age_seconds{}"] == 15.0
    assert shown["edl_job_steps_total{}"] == 107.0
    assert shown['edl_worker_seconds_total{"activity": "wait", "worker": "w1"}'] == 1.5
    assert shown['edl_job_reported{"name": "loss"}'] == 0.5
    assert shown["edl_job_lease_ahead_steps{}"] == 5.0
    assert shown["edl_job_samples_lost{}"] == shown["edl_job_samples_repeated{}"] == 0.0


def test_where_a_job_stands_is_each_in_its_own_line() -> None:
    """All of them differ, so that none can stand for another."""
    tally = Tally(checkpoints=11, checkpoints_failed=12, checkpoint_bytes=13_000, checkpoint_stall_s=1.4)
    job = status(size=2, target=4, generation=5, term=6, epoch=7, tally=tally, data=DataCounts(7, 100, 60, 25, 15, 8))
    shown = values(exposition.encoded(of_job(job, 1000.0), "")[0].decode())
    expected = {
        "edl_job_size{}": 2,
        "edl_job_members{}": 2,
        "edl_job_target_size{}": 4,
        "edl_job_generation{}": 5,
        "edl_job_term{}": 6,
        "edl_job_epoch{}": 7,
        "edl_job_lease_ahead_steps{}": 8,
        'edl_job_epoch_samples{"state": "trained"}': 60,
        'edl_job_epoch_samples{"state": "leased"}': 25,
        'edl_job_epoch_samples{"state": "unassigned"}': 15,
        'edl_job_checkpoints_total{"outcome": "durable"}': 11,
        'edl_job_checkpoints_total{"outcome": "failed"}': 12,
        "edl_job_checkpoint_bytes_total{}": 13_000,
        "edl_job_checkpoint_stall_seconds_total{}": 1.4,
    }
    assert {name: shown[name] for name in expected} == expected


def test_samples_lost_and_repeated_are_those_of_the_ledgers_books() -> None:
    """Of books that are spoilt on purpose: one epoch is called ended too early, and a lease is there twice."""
    ledger = new_ledger(DataSpec(100, 2, 4), ["a", "b"])
    ledger.grant(5)
    books = ledger.snapshot()
    one, other = books.members
    spoilt = msgspec.structs.replace(other, leases=one.leases)
    ledger = restored_ledger(msgspec.structs.replace(books, ended=1, members=(one, spoilt)))
    shown = values(exposition.encoded(of_job(status(data=ledger.counts()), 1000.0), "")[0].decode())
    assert shown["edl_job_samples_repeated{}"] == 20.0
    assert shown["edl_job_samples_lost{}"] == 80.0  # 60 unassigned, and the 20 that both hold
    ledger = new_ledger(DataSpec(100, 2, 4), ["a", "b"])
    ledger.grant(5)
    shown = values(exposition.encoded(of_job(status(data=ledger.counts()), 1000.0), "")[0].decode())
    assert shown["edl_job_samples_repeated{}"] == shown["edl_job_samples_lost{}"] == 0.0


def test_a_leader_that_does_not_know_how_far_the_ring_is_leaves_that_out() -> None:
    text = exposition.encoded(of_job(status(stable=None), 1000.0), "")[0].decode()
    assert "edl_job_steps" not in text and "edl_job_samples_total" not in text
    assert "edl_job_scalings_total" in text


def test_one_that_does_not_lead_shows_itself_only() -> None:
    text = exposition.encoded(families(msgspec.structs.replace(OWN, leads=False), None, 0.0), "")[0].decode()
    assert "edl_daemon_leading" in text and "edl_job" not in text and "edl_worker" not in text


@pytest.mark.parametrize("job", ['a"b\\c\nd', "<script>"])
def test_labels_are_escaped(job: str) -> None:
    found = of_job(status(job=job), 1000.0)
    parsed = list(text_string_to_metric_families(exposition.encoded(found, OPEN)[0].decode()))
    assert {sample.labels["job"] for family in parsed for sample in family.samples} == {job}


def test_open_metrics_are_given_to_those_who_ask_for_them() -> None:
    body, kind = exposition.encoded(families(OWN, status(), 1000.0), OPEN)
    assert kind.startswith("application/openmetrics-text") and body.endswith(b"# EOF\n")
    assert exposition.encoded(families(OWN, status(), 1000.0), "")[1].startswith("text/plain")


def test_as_many_lines_as_there_are_members_and_no_more() -> None:
    """1,000 of them: every other label is of a closed list."""
    few, many = (of_job(status(workers), 1000.0) for workers in (1, 1000))
    lines = [sum(len(family.samples) for family in found) for found in (few, many)]
    assert lines[1] - lines[0] == 999 * 4
    assert len(exposition.encoded(many, "")[0]) < 500_000


# ----------------------------------------------------------------------------------------------------- what is shipped


def promtool(*arguments: str, given: bytes = b"") -> None:
    program = shutil.which("promtool") or str(Path(__file__).parents[4] / ".setup" / "promtool")
    if not Path(program).exists():
        pytest.fail("promtool is missing: source scripts/parts and call bring_what_looks, as scripts/test does")
    done = subprocess.run([program, *arguments], input=given, capture_output=True, check=False, cwd=SHIPPED)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.integration
def test_promtool_finds_no_fault_with_names_and_rules() -> None:
    promtool("check", "metrics", given=exposition.encoded(families(OWN, status(), 1000.0), "")[0])
    promtool("check", "rules", "edl-alerts.yml")
    promtool("test", "rules", "edl-alerts.test.yml")


@pytest.mark.integration
def test_promtool_reads_each_expression_of_the_board(tmp_path: Path) -> None:
    """As rules: promtool knows no boards, and there is no Grafana here."""
    board = json.loads((SHIPPED / "edl-board.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [marks["expr"] for marks in board["annotations"]["list"]]
    rules = [{"record": f"r{n}", "expr": expr.replace("$job", "j")} for n, expr in enumerate(asked)]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))  # which is YAML, too
    promtool("check", "rules", str(file))


def test_board_and_rules_speak_of_metrics_that_there_are() -> None:
    found = families(OWN, status(), 1000.0)
    names = {one.name + ("_total" if one.type is Type.COUNTER else "") for one in found}
    for file in ("edl-board.json", "edl-alerts.yml"):
        used = set(re.findall(r"edl_(?:job|worker|daemon)_[a-z_]+", (SHIPPED / file).read_text()))
        assert used and used <= names, used - names
    board = json.loads((SHIPPED / "edl-board.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 10
    for panel in board["panels"]:  # another leader is another instance: still one line
        assert all(" without (instance) (" in target["expr"] for target in panel["targets"])


# ----------------------------------------------------------------------------------------------------------- the server


async def ask(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    with contextlib.suppress(ConnectionResetError):  # who is not even heard
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer
    return b""


async def started() -> tuple[MetricsServer, int]:
    found = MetricsServer(lambda: [Family("edl_x", Type.GAUGE, "X.", (({"job": "j"}, 1.0),))])
    return found, await found.start("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("GET /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n", 200),
        ("HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n", 200),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        ("GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n", 200),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example:9\r\n\r\n", 403),
        ("GET /metrics HTTP/1.1\r\n\r\n", 403),
        ("POST /metrics HTTP/1.1\r\nHost: localhost:9\r\n\r\n", 405),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost:9\r\n\r\n", 404),
        (f"GET /metrics HTTP/1.1\r\nX: {'x' * 9000}\r\n\r\n", 431),
        ("\x16\x03\x01 nonsense\r\n\r\n", 403),
    ],
)
async def test_who_is_answered(request_: str, code: int) -> None:
    found, port = await started()
    answer = await ask(port, request_)
    assert answer.startswith(f"HTTP/1.1 {code} ".encode()), answer[:100]
    assert (b"edl_x" in answer) == (code == 200 and request_.startswith("GET"))
    await found.stop()


async def test_too_many_readers_hear_so_and_one_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.3)
    found, port = await started()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(AT_ONCE)]
    good = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".replace("localhost", "localhost:1")
    assert (await ask(port, good))[:12] in {b"HTTP/1.1 503", b""}
    for reader, _ in silent:
        assert await reader.read() == b""
    assert (await ask(port, good)).startswith(b"HTTP/1.1 200")
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()
    await found.stop()


@pytest.mark.parametrize("request_s", [0.2, 60.0])
async def test_one_that_does_not_read_its_answer_is_left_and_holds_up_no_end(
    request_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its time, or by the end of the daemon."""
    monkeypatch.setattr(metrics_server, "REQUEST_S", request_s)
    made, served = threading.Event(), list[asyncio.Task[Any]]()

    def encoded(*_: object) -> tuple[bytes, str]:
        made.set()
        return b"x" * 20_000_000, "text/plain"  # more than the kernel takes for a reader

    def read() -> list[Family]:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        return []

    monkeypatch.setattr(exposition, "encoded", encoded)
    found = MetricsServer(read)
    port = await found.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
        await until(made.is_set)
        if request_s < 1:
            await asyncio.wait_for(asyncio.gather(*served, return_exceptions=True), 10)
        await asyncio.wait_for(found.stop(), 10)
        assert len(served) == 1 and served[0].done()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_however_often_it_is_asked_for_it_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    found = MetricsServer(lambda: [Family("edl_x", Type.GAUGE, "X.", (({"job": "j"}, float(made.append(1) or 1)),))])
    port = await found.start("127.0.0.1", 0)
    request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n\r\n"
    monkeypatch.setattr(metrics_server, "KEPT_S", 1000.0)
    answers = [await ask(port, request.format("*/*")) for _ in range(5)]
    assert len(set(answers)) == len(made) == 1 and b"edl_x" in answers[0]
    forms = [await ask(port, request.format(f"x/{n}")) for n in range(metrics_server.FORMS)]
    assert [answer[9:12] for answer in forms] == [b"200"] * (metrics_server.FORMS - 1) + [b"429"]
    monkeypatch.setattr(metrics_server, "KEPT_S", 0.0)
    assert (await ask(port, request.format("x/9")))[9:12] == b"200"
    await found.stop()


async def test_a_record_that_cannot_be_written_ends_no_worker(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("no folder")
    offer = metrics_server.MetricsOffer("j", "w0", ManualClock(), tmp_path)
    link = await offer.start("127.0.0.1", 0, lambda: (SEEN, {}), status)
    assert link.startswith("http://127.0.0.1:")
    await offer.stop()


async def test_the_next_free_port_is_taken_and_prometheus_finds_it(tmp_path: Path) -> None:
    first, port = await started()
    offer = metrics_server.MetricsOffer("j", "w0", ManualClock(), tmp_path)
    link = await offer.start("127.0.0.1", port, lambda: (SEEN, {}), status)
    assert link != f"http://127.0.0.1:{port}/metrics"
    target = json.loads((tmp_path / "metrics" / "w0.json").read_text())
    assert link == f"http://{target[0]['targets'][0]}/metrics"
    assert (tmp_path / "metrics" / "w0.json").stat().st_mode & 0o077 == 0
    own = int(link.split(":")[2].partition("/")[0])
    assert b"edl_job_size" in await ask(own, "GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
    await offer.stop()
    assert not (tmp_path / "metrics" / "w0.json").exists()
    await first.stop()


async def test_an_address_that_is_not_ours_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"--metrics-port 0: cannot listen at 192\.0\.2\.1"):
        await metrics_server.MetricsOffer("j", "w0", ManualClock(), None).start(
            "192.0.2.1", 0, lambda: (SEEN, {}), status
        )


@pytest.mark.integration  # processes that take seconds: not for scripts/check
def test_a_daemon_imports_nothing_of_this_before_it_is_asked_for() -> None:
    code = "import sys, edl.daemon.daemon, edl.cli.run; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_the_page_of_documentation_has_all_of_them() -> None:
    text = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"edl_(?:job|worker|daemon)_[a-z_]+", text))
    found = families(OWN, status(), 1000.0)
    assert told == {one.name + ("_total" if one.type is Type.COUNTER else "") for one in found}
