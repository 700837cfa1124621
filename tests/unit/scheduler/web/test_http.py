"""The HTTP interface over real sockets: who may do what, what is refused, and how `edl` elsewhere speaks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from edl.cluster.queue import submission as submission_module
from edl.cluster.queue.queue_entries import JobPhase
from edl.cluster.queue.submission import JobWish, submission
from edl.coordination.memory_store import MemoryServer
from edl.errors import ConfigError, EdlError, NoSuchJob, TimedOut, UsageError
from edl.host import http_serving
from edl.host.http_serving import listen, serve
from edl.scheduler import cluster_start
from edl.scheduler import remote_cluster as remote_module
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import JOBS, QueueStore
from edl.scheduler.remote_cluster import RemoteCluster
from edl.scheduler.tokens import TokenBook, read_token
from edl.scheduler.web import web_server as server_module
from edl.scheduler.web.web_server import BODY_BYTES, ClusterServer
from edl.scheduler.worker_logs import GONE, LogPlace, Printed

pytestmark = pytest.mark.integration
WISH = JobWish(name="a", command=("train",), folder="/")
ASKED = submission(WISH, "ann", 1.0)


class Served:
    """An interface that is served, and callers of it."""

    def __init__(self, folder: Path) -> None:
        self.home = ClusterHome(folder)
        self.home.make()
        self.book = TokenBook(self.home)
        self.book.make()
        config = ClusterConfig(
            (NodeGiven("n", (0, 1)),), "fifo", {}, {}, "h:1", False, 1, 1.0, 0.0, priorities={"cat": 5}
        )
        self.queue = QueueStore(MemoryServer().connect(), EnvironFiles(self.home.environs))
        self.client = ClusterClient(self.home, config, self.queue)
        self.server = ClusterServer(self.client, self.book, {"PATH": "/bin", "EDL_NP": "9"})
        self.ear = listen("127.0.0.1", 0)
        self.port = self.ear.getsockname()[1]
        self.owner = read_token(self.book.owners)

    def remote(self, token: str = "") -> RemoteCluster:
        return RemoteCluster(f"http://127.0.0.1:{self.port}", token or self.owner)

    async def ask(
        self, path: str, verb: str = "GET", body: bytes = b"", token: str | None = None, **fields: str
    ) -> tuple[int, str]:
        """Code and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        fields = {"Host": "x", "Connection": "close", "Content-Length": str(len(body))} | fields
        fields |= {"Authorization": f"Bearer {self.owner if token is None else token}"} if token != "" else {}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{verb} {path} HTTP/1.0\r\n{head}\r\n".encode() + body)
        told = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        head, _, rest = told.decode().partition("\r\n\r\n")
        return int(head.split()[1]), rest

    async def submit(self, name: str, user: str = "ann", **more: Any) -> tuple[int, str]:
        wish = {"name": name, "command": ["train"], "folder": "/", "user": user, **more}
        return await self.ask("/v1/jobs", "POST", json.dumps(wish).encode())

    async def become(self, name: str, **changes: Any) -> None:
        """As a scheduler would write it."""
        job = await self.queue.job(name)
        assert job is not None
        await self.queue.store.write(f"{JOBS}/{name}", msgspec.json.encode(msgspec.structs.replace(job, **changes)))

    def printed(self, worker: str, text: str, name: str = "a") -> Path:
        folder = self.home.job_logs(name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{worker}.log"
        with path.open("a") as file:
            file.write(text)
        return path


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    found = Served(folder)
    await found.queue.prepare()
    task = asyncio.create_task(serve(found.server.app, found.ear))
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found.ear.close()


@pytest.mark.parametrize("token", ["", "wrong", "x" * 10_000, "\xff"])
async def test_without_a_token_that_opens_something_everything_is_refused(tmp_path: Path, token: str) -> None:
    async with served(tmp_path) as http:
        await http.submit("a")
        for verb, path in (
            ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/jobs/a"), ("DELETE", "/v1/jobs/a"),
            ("GET", "/v1/jobs/a/logs"), ("PUT", "/v1/jobs/a/size"), ("GET", "/v1/accounts"), ("GET", "/v1/cluster"),
            ("GET", "/v1/openapi.json"), ("GET", "/"), ("GET", "/v1/jobs/a/wait"),
        ):  # fmt: skip
            code, body = await http.ask(path, verb, token=token)
            assert (code, "a token is needed" in body) == (401, True), (verb, path, body)
        assert await http.queue.wishes() == ()


def test_tokens_lie_in_files_that_only_their_owner_reads(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    home.make()
    book = TokenBook(home)
    book.make()
    given = book.give("ann")
    files = [path for path in home.folder.iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not any(given in path.read_text() for path in files)  # a digest is kept
    book.owners.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it"):
        read_token(book.owners)
    with pytest.raises(ConfigError, match="no name of a user"):
        book.give("../ann")


def test_a_users_token_is_given_anew_and_taken_back(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    home.make()
    book = TokenBook(home)
    book.make()
    first, second = book.give("ann"), book.give("ann")
    other = book.give("bob")

    def whose(token: str) -> str | None:
        found = book.caller(f"Bearer {token}")
        return None if found is None else found.user

    assert [whose(token) for token in (first, second, other)] == [None, "ann", "bob"]
    assert whose(read_token(book.owners)) == ""
    book.take("ann")
    assert [whose(token) for token in (second, other)] == [None, "bob"]
    assert book.caller(f"Basic {other}") is None
    book.owners.write_text("")
    assert book.caller("Bearer \xa0") is None
    with pytest.raises(ConfigError, match="no token of a user ann"):
        book.take("ann")


async def test_a_users_token_asks_for_no_higher_priority_than_the_user_may_have(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        ann, cat = http.book.give("ann"), http.book.give("cat")

        def body(name: str, priority: int, **more: str) -> bytes:
            return json.dumps({"name": name, "command": ["x"], "folder": "/", "priority": priority, **more}).encode()

        code, told = await http.ask("/v1/jobs", "POST", body("a", 1), ann)
        assert (code, "--highest-priority ann:1" in told) == (403, True)
        assert (await http.ask("/v1/jobs", "POST", body("a", -5), ann))[0] == 201
        assert (await http.ask("/v1/jobs", "POST", body("b", 5), cat))[0] == 201
        assert (await http.ask("/v1/jobs", "POST", body("c", 6), cat))[0] == 403
        assert (await http.ask("/v1/jobs", "POST", body("d", 99, user="ann")))[0] == 201  # by the owner's token


async def test_a_user_opens_own_jobs_only(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        ann, bob = http.book.give("ann"), http.book.give("bob")
        body = json.dumps({"name": "a", "command": ["train", "--key=s3cret"], "folder": "/ann"}).encode()
        assert (await http.ask("/v1/jobs", "POST", body, ann))[0] == 201
        http.printed("a-1", "ann's output\n")
        for verb, path in (
            ("GET", "/v1/jobs/a"), ("GET", "/v1/jobs/a/logs"), ("DELETE", "/v1/jobs/a"), ("GET", "/v1/jobs/a/wait"),
            ("GET", "/v1/jobs/a/logs?worker=a-1&follow=1"),
        ):  # fmt: skip
            code, told = await http.ask(path, verb, token=bob)
            assert (code, "job a is ann's" in told) == (403, True), (path, told)
        assert (await http.ask("/v1/jobs/a/size", "PUT", b'{"np":1}', bob))[0] == 403
        assert (await http.ask("/v1/jobs", "POST", body.replace(b'"a"', b'"b"')[:-1] + b',"user":"ann"}', bob))[
            0
        ] == 403
        code, listed = await http.ask("/v1/jobs", token=bob)
        assert (code, [job["name"] for job in json.loads(listed)["jobs"]]) == (200, ["a"])
        assert "s3cret" not in listed
        assert "/ann" not in listed
        assert "s3cret" in (await http.ask("/v1/jobs", token=ann))[1]
        assert (await http.ask("/v1/jobs/a/logs", token=ann))[1] == "ann's output\n"
        assert json.loads((await http.ask("/v1/accounts", token=bob))[1])["jobs"] == []
        assert json.loads((await http.ask("/v1/cluster", token=bob))[1])["processes"] == {}
        assert await http.queue.wishes() == ()


@pytest.mark.parametrize("name", ["..%2f..%2fsecret", "%2e%2e", "..", "a%00", "a%0ab", "x" * 60, "%2fetc%2fpasswd"])
async def test_no_path_leads_out_of_a_jobs_folder(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as http:
        await http.submit("a")
        (http.home.folder / "secret").write_text("the secret")
        for path in (f"/v1/jobs/{name}", f"/v1/jobs/{name}/logs", f"/v1/jobs/a/logs?worker={name}"):
            code, told = await http.ask(path)
            assert code in {400, 404}, (path, told)
            assert "the secret" not in told


async def test_a_worker_without_output_is_answered_by_those_that_have_some(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        await http.submit("a")
        code, told = await http.ask("/v1/jobs/a/logs?worker=a-7")
        assert (code, "job a has no output of any worker" in told) == (404, True)
        http.printed("a-1", "one\n")
        http.printed("a-2", "two\n")
        code, told = await http.ask("/v1/jobs/a/logs?worker=a-7")
        assert (code, "job a has no output of a worker a-7: there is some of a-1, a-2" in told) == (404, True)


async def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        await http.submit("a")
        (http.home.folder / "secret").write_text("the secret\n")
        http.printed("a-1", "mine\n")
        (http.home.job_logs("a") / "a-2.log").symlink_to(http.home.folder / "secret")
        assert (await http.ask("/v1/jobs/a/logs"))[1] == "[a-1] mine\n"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", 400, "truncated"),
        (b'{"name":"a"}', 400, "missing required field"),
        (b'{"name":"../a","command":["x"],"folder":"/","user":"u"}', 400, "$.name"),
        (b'{"name":"a","command":["x"],"folder":"here","user":"u"}', 400, "must be a whole path"),
        (b'{"name":"a","command":[],"folder":"/","user":"u"}', 400, "$.command"),
        (b'{"name":"a","command":["x"],"folder":"/"}', 400, "name whose job it is"),
        (b'{"name":"a","command":["x"],"folder":"/","user":"u","more":1}', 400, "unknown field"),
        (b'{"name":"a","command":["x"],"folder":"/","user":"u","np":2,"max_np":1}', 400, "must be at least np"),
        (b'{"name":"a","command":["x"],"folder":"/","user":"u","min_np":3}', 400, "the cluster has 2 devices"),
        (b'{"name":"a","command":["x\\u0000"],"folder":"/","user":"u"}', 400, "null character"),
        (b'{"name":"a","command":["x"],"folder":"/","user":"u","environ":{"A=B":"1"}}', 400, "no name of a variable"),
        (b" " * (BODY_BYTES + 1), 413, "more than"),
        (b'{"name":"a","command":["' + b"x" * 500_000 + b'"],"folder":"/","user":"u"}', 400, "put it into a file"),
    ],
)  # fmt: skip
async def test_a_submission_that_is_not_right_is_refused_in_one_line(
    tmp_path: Path, body: bytes, code: int, words: str
) -> None:
    async with served(tmp_path) as http:
        found, told = await http.ask("/v1/jobs", "POST", body)
        assert (found, words in json.loads(told)["error"]) == (code, True), told
        assert await http.queue.names() == ()


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    async with served(tmp_path) as http:
        code, told = await http.ask("/v1/jobs", "POST", b"{", **{"Content-Length": "100"})
        assert (code, "did not come within" in told) == (408, True)


async def test_what_a_life_is_given_by_the_cluster_is_nobodys_to_send(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        await http.submit("a", environ={"EDL_SECRET_FILE": "/x", "EDL_COORDINATOR": "x", "SEED": "1", "PATH": "/mine"})
        job = await http.queue.job("a")
        assert job is not None
        assert http.queue.environ(job) == {"PATH": "/mine", "SEED": "1"}


async def test_a_queue_that_is_full_of_a_users_jobs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_module, "OF_USER", submission_module.QueueShare(1, 10_000, 10_000))
    async with served(tmp_path) as http:
        assert (await http.submit("a", "ann"))[0] == 201
        code, told = await http.submit("b", "ann")
        assert (code, "user ann has 1 jobs in it, and 1 are allowed: wait" in told) == (429, True)
        assert (await http.submit("c", "bob"))[0] == 201
        assert (await http.submit("d", "cid", folder="/" + "x" * 390_000))[0] == 400
        with pytest.raises(UsageError, match="the queue is full: user ann has"):
            await asyncio.to_thread(http.remote().submit, JobWish("b", ("train",), "/", user="ann"))


async def test_the_same_submission_twice_is_one_and_another_of_that_name_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        answers = [(await http.submit("a", ticket="t"))[0] for _ in range(2)]
        assert answers == [201, 200]
        assert (await http.submit("a", ticket="other"))[0] == 409
        assert (await http.submit("a", "bob", ticket="t"))[0] == 409
        assert (await http.submit("a"))[0] == 409


async def test_a_size_is_asked_for_within_what_was_submitted(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        await http.submit("a", max_np=2)
        assert (await http.ask("/v1/jobs/a/size", "PUT", b'{"np":2}'))[0] == 202
        assert await http.queue.sizes() == {"a": (2, 0)}
        code, told = await http.ask("/v1/jobs/a/size", "PUT", b'{"np":3}')
        assert (code, "1 to 2 workers, and not for 3" in told) == (400, True)
        assert (await http.ask("/v1/jobs/a/size", "PUT", b"{}"))[0] == 400
        await http.become("a", phase=JobPhase.FINISHED)
        assert (await http.ask("/v1/jobs/a/size", "PUT", b'{"np":1}'))[0] == 400


async def test_edl_on_another_machine_submits_lists_waits_and_cancels(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        ann = http.remote(http.book.give("ann"))
        await asyncio.to_thread(ann.submit, WISH)
        [job] = await asyncio.to_thread(ann.jobs)
        assert (job.name, job.user, job.state, job.command) == ("a", "ann", "queued", ("train",))
        assert (await asyncio.to_thread(ann.job, "a")).events
        with pytest.raises(UsageError, match="there is a job a already"):
            await asyncio.to_thread(ann.submit, WISH)
        with pytest.raises(NoSuchJob, match="has no job b"):
            await asyncio.to_thread(ann.job, "b")
        with pytest.raises(TimedOut, match="it is queued"):
            await asyncio.to_thread(ann.wait, "a", 0.1, repr)
        assert not (await asyncio.to_thread(ann.cancel, "a")).over
        assert await http.queue.wishes() == ("a",)
        states: list[str] = []
        waiting = asyncio.create_task(asyncio.to_thread(ann.wait, "a", 60, lambda job: states.append(job.state)))
        await until(lambda: bool(states))
        await http.become("a", phase=JobPhase.CANCELLED, ended=time.time())
        assert (await asyncio.wait_for(waiting, 20)).state == "cancelled"
        assert (await asyncio.to_thread(ann.accounts)).users[0].user == "ann"
        assert (await asyncio.to_thread(http.remote().status)).jobs == {"cancelled": 1}
        with pytest.raises(ConfigError, match="the token opens nothing there"):
            await asyncio.to_thread(http.remote("wrong").jobs)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it asks for is another thread's
            await asyncio.sleep(0.01)


async def test_a_log_is_followed_over_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "AGAIN_S", 0.05)
    found = Served(tmp_path)
    await found.queue.prepare()
    first = asyncio.create_task(serve(found.server.app, found.ear))
    await found.client.submit(ASKED, {})
    found.printed("a-1", "one\n")
    told: list[str] = []
    reading = asyncio.create_task(asyncio.to_thread(lambda: found.remote().logs("a", None, told.append, follow=True)))
    await until(lambda: "".join(told) == "one\n")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    found.ear.close()
    found.printed("a-1", "two\n")
    with listen("127.0.0.1", found.port) as ear:
        second = asyncio.create_task(serve(ClusterServer(found.client, found.book, {}).app, ear))
        await until(lambda: "".join(told) == "one\ntwo\n")
        found.printed("a-1", "the end")
        await found.become("a", phase=JobPhase.FINISHED)
        await asyncio.wait_for(reading, 20)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    assert "".join(told) == "one\ntwo\nthe end"


async def test_who_follows_too_many_logs_is_refused_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STREAMS", 1)
    async with served(tmp_path) as http:
        await http.submit("a")
        http.printed("a-1", "x\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(
            f"GET /v1/jobs/a/logs?follow=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {http.owner}\r\n\r\n".encode()
        )
        await reader.readuntil(b"x\n")
        code, told = await http.ask("/v1/jobs/a/logs")
        assert (code, "too many wait" in told) == (503, True)
        assert (await http.ask("/v1/jobs/a"))[0] == 200
        writer.close()

        async def free() -> bool:
            return (await http.ask("/v1/jobs/a/logs"))[0] == 200

        async with asyncio.timeout(20):
            while not await free():  # noqa: ASYNC110 - the server's own turn is asked for
                await asyncio.sleep(0.05)


async def test_a_job_that_bombs_output_is_read_a_piece_at_a_time(tmp_path: Path) -> None:
    """Nothing of a log is kept while its reader does not read."""
    async with served(tmp_path) as http:
        await http.submit("a")
        http.printed("a-1", "x" * 8_000_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port, limit=4096)
        writer.write(f"GET /v1/jobs/a/logs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {http.owner}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert (await asyncio.wait_for(http.ask("/v1/jobs/a"), 10))[0] == 200
        total = 0
        while piece := await asyncio.wait_for(reader.read(65536), 10):
            total += len(piece)
            if piece.endswith(b"0\r\n\r\n"):
                break
        assert total >= 8_000_000
        writer.close()


async def test_the_document_tells_of_every_route(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        code, told = await http.ask("/v1/openapi.json")
        document = json.loads(told)
        there = {
            (route.path, verb.lower())
            for route in http.server.app.routes
            if isinstance(route, Route)
            for verb in route.methods or ()
            if verb != "HEAD"
        }
        assert code == 200
        assert {(path, verb) for path, verbs in document["paths"].items() for verb in verbs} == {
            (path, verb) for path, verb in there if "rest" not in path
        }
        named = set(re.findall(r'"#/components/schemas/(\w+)"', told))
        assert named <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://node1:8000", "in the clear: use https://, or a tunnel"),
        ("node1:8000", "must be http://HOST:PORT"),
        ("ftp://node1", "must be http://HOST:PORT"),
        ("http://127.0.0.1:8000/jobs", "must be http://HOST:PORT"),
        ("http://127.0.0.1:bad", "--cluster http://127.0.0.1:bad"),
        ("http://ann@127.0.0.1:8000", "must be http://HOST:PORT"),
        ("http://1000:x@127.0.0.1:8000", "must be http://HOST:PORT"),
        ("https://1000@node1:8000", "leave out 1000@"),
    ],
)
def test_a_token_goes_nowhere_in_the_clear(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        RemoteCluster(url, "token")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:1", "127.0.0.1"),  # where the server listens: at [::1] another user may
        ("https://localhost:1", "localhost"),  # as its certificate says
    ],
)
def test_localhost_is_where_the_server_listens(monkeypatch: pytest.MonkeyPatch, url: str, host: str) -> None:
    monkeypatch.setattr(remote_module, "PATIENCE_S", 0.0)
    called: list[str] = []

    def connect(address: tuple[str, int], *_: object) -> None:
        called.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(EdlError, match="nothing listens there"):
        RemoteCluster(url, "token").jobs()
    assert called == [host]


STRANGER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as ear:
    print(ear.getsockname()[1], flush=True)
    while True:
        link, _ = ear.accept()
        with link:
            said = link.recv(1000)
            print(len(said), flush=True)
            link.sendall(said and b"HTTP/1.0 200 OK\\r\\n\\r\\n{\\"jobs\\": []}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_another_users_server_at_the_port_is_sent_no_token_unless_it_is_named() -> None:
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-I", "-c", STRANGER]
    with subprocess.Popen(nobody, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        port = int(stranger.stdout.readline())
        try:
            for user in ("", "1000@"):
                words = rf"uid 65534: if that user keeps the cluster, write http://65534@127\.0\.0\.1:{port}$"
                with pytest.raises(ConfigError, match=words):
                    RemoteCluster(f"http://{user}127.0.0.1:{port}", "token").jobs()
                assert stranger.stdout.readline() == "0\n"
            assert RemoteCluster(f"http://65534@127.0.0.1:{port}", "token").jobs() == ()
        finally:
            stranger.kill()


def test_a_server_that_stays_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "PATIENCE_S", 0.0)
    with listen("127.0.0.1", 0) as ear:
        port = ear.getsockname()[1]
    with pytest.raises(EdlError, match=rf"127\.0\.0\.1:{port}: nothing listens there: start the cluster by "):
        RemoteCluster(f"http://127.0.0.1:{port}", "token").jobs()


def test_a_name_that_is_no_hosts_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "PATIENCE_S", 0.0)

    def connect(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(EdlError, match=r"^https://nowhere\.invalid: there is no host of this name: look at --cluster$"):
        RemoteCluster("https://nowhere.invalid", "token").jobs()


def self_signed(certificate: str, key: str) -> None:
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    line += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(line, check=True, capture_output=True)


async def test_beyond_loopback_it_speaks_tls_and_who_trusts_nobody_sends_no_token(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    await asyncio.to_thread(self_signed, certificate, key)
    found = Served(tmp_path / "home")
    await found.queue.prepare()
    task = asyncio.create_task(serve(found.server.app, found.ear, certificate, key))
    url = f"https://localhost:{found.port}"
    try:
        assert await asyncio.to_thread(RemoteCluster(url, found.owner, certificate).jobs) == ()
        with pytest.raises(ConfigError, match="its certificate is not trusted"):
            await asyncio.to_thread(RemoteCluster(url, found.owner).jobs)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found.ear.close()


async def test_who_has_no_token_keeps_out_nobody_who_has_one(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        silent = [await asyncio.open_connection("127.0.0.1", http.port) for _ in range(http_serving.MOST_CONNECTIONS)]
        assert (await http.ask("/v1/jobs"))[0] == 200
        refused = [await asyncio.open_connection("127.0.0.1", http.port) for _ in range(http_serving.CONNECTIONS // 4)]
        for _, writer in refused:
            writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        for reader, _ in refused:  # each is told so, and loses its connection
            told = await asyncio.wait_for(reader.read(), 20)
            assert b" 401 " in told and b"connection: close" in told.lower()
        kept_reader, kept = await asyncio.open_connection("127.0.0.1", http.port)
        asks = f"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {http.owner}\r\n\r\n".encode()
        for _ in range(2):  # who was let in keeps the connection while others come and ask nothing
            kept.write(asks)
            head = await asyncio.wait_for(kept_reader.readuntil(b"\r\n\r\n"), 20)
            assert b" 200 " in head
            await kept_reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            silent += [await asyncio.open_connection("127.0.0.1", http.port) for _ in range(http_serving.MOST_IDLE)]
        for _, writer in [*silent, *refused, (kept_reader, kept)]:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_a_handshake_that_does_not_come_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_serving, "ASK_S", 0.3)
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    await asyncio.to_thread(self_signed, certificate, key)
    found = Served(tmp_path / "home")
    task = asyncio.create_task(serve(found.server.app, found.ear, certificate, key))
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
    try:
        async with asyncio.timeout(20):  # by itself asyncio waits for a minute
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    finally:
        writer.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found.ear.close()


async def test_handshakes_that_do_not_come_make_room_for_one_that_does(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    await asyncio.to_thread(self_signed, certificate, key)
    found = Served(tmp_path / "home")
    await found.queue.prepare()
    task = asyncio.create_task(serve(found.server.app, found.ear, certificate, key))
    silent = [await asyncio.open_connection("127.0.0.1", found.port) for _ in range(http_serving.MOST_IDLE + 8)]
    try:
        url = f"https://localhost:{found.port}"
        assert await asyncio.to_thread(RemoteCluster(url, found.owner, certificate).jobs) == ()
        for reader, _ in silent[:8]:  # the oldest
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), http_serving.ASK_S / 2) == b""
    finally:
        for _, writer in silent:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found.ear.close()


def test_what_listens_beyond_loopback_has_a_certificate(tmp_path: Path) -> None:
    for text in ("0.0.0.0:8443", "[::]:8443"):
        with pytest.raises(ConfigError, match="tokens would cross the network in the clear"):
            cluster_start.http_of(text, None, None, None)
    with pytest.raises(ConfigError, match="go together"):
        cluster_start.http_of("8443", "cert.pem", None, None)
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        cluster_start.http_of("0.0.0.0:8443", str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"), None)
    with pytest.raises(ConfigError, match="by its numbers"):
        cluster_start.http_of("node1:8443", None, None, None)
    given = cluster_start.http_of("0", None, None, None)
    assert given is not None
    assert (given.address, given.url) == ("127.0.0.1", f"http://127.0.0.1:{given.port}")
    assert cluster_start.http_of("0", None, None, given) == given  # as before


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """One connection after the other gets these, as they are. Its address."""
    with listen("127.0.0.1", 0) as ear:

        def serve_each() -> None:
            for answer in answers:
                link, _ = ear.accept()
                with link:
                    link.recv(65536)
                    link.sendall(answer)

        thread = threading.Thread(target=serve_each, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{ear.getsockname()[1]}"
        thread.join(20)


def test_an_answer_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "AGAIN_S", 0.01)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n"
    with answering(head + b'{"jo', head + b'{"jobs":[]}') as url:
        assert RemoteCluster(url, "token").jobs() == ()


def test_a_log_that_was_silent_for_long_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 20))  # each look at the clock is 20 s later
    monkeypatch.setattr("edl.scheduler.remote_cluster.time.monotonic", lambda: next(now))
    monkeypatch.setattr(remote_module, "AGAIN_S", 0.0)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with answering(head + b"\n\n", head + b'{"over":true}\n') as url:
        RemoteCluster(url, "token").logs("a", None, repr, follow=True)


def test_what_is_missing_of_a_log_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "a-1.log").write_text("no whole line")
    printed = Printed(tmp_path, None, {"a-1": LogPlace(1, 999)})
    assert [piece.text for piece in printed.news(final=False)] == [GONE]
    assert list(printed.news(final=False)) == []


def test_it_listens_at_addresses_of_ipv6() -> None:
    here = Path("/proc/net/if_inet6")
    if not here.exists() or f"{1:032x}" not in here.read_text():
        pytest.skip("this machine has no ::1")
    given = cluster_start.http_of("[::1]:0", None, None, None)
    assert given is not None
    assert given.url == f"http://[::1]:{given.port}"
    assert cluster_start.http_of("[::1]:0", None, None, given) == given
