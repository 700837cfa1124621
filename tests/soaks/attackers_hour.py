"""Another user of the machine attacks every server that edl starts, from the first millisecond of each start.

    python -m tests.soaks.attackers_hour [--starts 200] [--kinds zookeeper,cluster,...] [--json]

It must be run as root, who plays the other user (`tests.soaks.stranger`, uid 65534), in a network namespace of its own,
so that nothing else on the machine is spoken to. Each start is one of KINDS, in turn. While it starts, serves and is
used, the stranger speaks to all ports that listen, and walks all folders. A start is good if the stranger was let in to
nothing, no server ended meanwhile, its user was served after the attack, and no node of a stranger's is in its tree.
Exit code 1 if one was not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from edl.coordination.child_server import free_port
from edl.coordination.coordinator_settings import Coordinator
from edl.coordination.etcd.etcd_connection import EtcdConnection
from edl.coordination.etcd.etcd_messages import TXN, RangeRequest, RequestOp, TxnRequest
from edl.coordination.etcd.etcd_transactions import DEFAULT_PREFIX, KeyLayout
from edl.coordination.local_coordinator import start_local
from edl.coordination.store import connect
from edl.errors import EdlError
from edl.host.credentials import digest_of

ROOT = Path(__file__).parents[2]
INSIDE = "EDL_ATTACKED_INSIDE"
STRANGER = 65_534
PYTHON = Path(sys.executable).resolve()  # outside of the environment, which may be closed to others
AS_STRANGER = ("setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups")
USE_S = 0.5  # for so long at least each server is attacked while it serves
ANSWER_S = 5.0
OURS = {"zookeeper", "edl", "edl-cluster", "edl-turns", "used"}  # what may be at the root of a tree


# ------------------------------------------------------------------------------------------------------- the stranger


@contextlib.asynccontextmanager
async def stranger_in(base: Path, faults: list[str], tried: Counter[str]) -> AsyncIterator[None]:
    """At work all the while; then, what it was let in to is a fault."""
    program = base / "public" / "stranger.py"
    program.parent.mkdir(exist_ok=True)
    program.write_bytes(Path(__file__).with_name("stranger.py").read_bytes())
    home = base / "home"
    sockets = [home / "cluster" / "etcd" / "client:1", home / "etcd" / "client:1", home / "embedded" / "socket"]
    sockets.append(home / "jobs" / NAME / "embedded" / "socket")
    process = await asyncio.create_subprocess_exec(
        *AS_STRANGER, PYTHON, "-I", program, base / "home", *sockets,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        said, _ = await process.communicate(b"")
        told = json.loads(said)
        tried.update(told["tried"])
        faults += [f"let in: {what}, {count} times" for what, count in told["let_in"].items()]


# ----------------------------------------------------------------------------------------------------- what is started


async def local(base: Path, kind: str, faults: list[str], *, port: int | None = None) -> None:
    """The coordinator of `edl run`, of `horovodrun` and of a cluster."""
    digest = digest_of(secrets.token_hex(32).encode())
    guest = asyncio.create_task(_etcd_guest(port, faults)) if port and kind == "etcd" else None
    (base / "home").mkdir(mode=0o700)  # as edl makes it
    server = await start_local(kind, base / "home", port=port, digest=digest)
    ended = asyncio.create_task(server.wait_exit())
    try:
        await asyncio.sleep(USE_S)
        store = await connect(server.coordinator, ANSWER_S, connect_timeout_s=4 * ANSWER_S)
        await store.create("/used", b"value")
        if strange := set(await store.children("/")) - OURS:
            faults.append(f"nodes of a stranger: {strange}")
        await store.close()
        if ended.done():
            faults.append("the server has ended")
    finally:
        for task in filter(None, (ended, guest)):
            task.cancel()
        await asyncio.wait(list(filter(None, (ended, guest))))
        await server.stop()


async def _etcd_guest(port: int, faults: list[str]) -> None:
    """An etcd at a port is spoken to by its own client, without a password, from before it listens."""
    first, end = KeyLayout(DEFAULT_PREFIX).all()
    look = TxnRequest(success=(RequestOp(request_range=RangeRequest(first, end, count_only=True)),))
    while True:
        guest = EtcdConnection(("127.0.0.1", port), Coordinator(f"etcd://127.0.0.1:{port}"), patience_s=0.2)
        try:
            await guest.open()
            await guest.call(TXN, look, timeout_s=0.5)
            faults.append("let in: etcd, without a password")
            return
        except EdlError:
            await asyncio.sleep(0.002)
        finally:
            await guest.close()


Words = tuple[str | Path, ...]
EDL: Words = (Path(sys.executable).with_name("edl"),)


async def begin(base: Path, words: Words) -> asyncio.subprocess.Process:
    environ = {**os.environ, "EDL_HOME": str(base / "home"), "XDG_RUNTIME_DIR": str(base / "home")}
    environ |= {"EDL_METRICS_PORT": "0", "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(
        *words, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


async def said_by(base: Path, *words: str | Path, fine: tuple[int, ...] = (0,)) -> str:
    process = await begin(base, words)
    said = (await process.communicate())[0].decode()
    if process.returncode not in fine:
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {process.returncode}: {said[-2000:]}")
    return said


async def cluster(base: Path, kind: str, faults: list[str]) -> None:
    """With its HTTP interface, and the page that shows it."""
    line = ("cluster", "start", "--nodes", "localhost:1", "--policy", "fifo", "--http", str(free_port()))
    await said_by(base, *EDL, *line, "--local-coordinator", kind)
    page = await begin(base, (*EDL, "dashboard"))
    try:
        assert page.stdout is not None
        await page.stdout.readline()  # the link
        await said_by(base, *EDL, "submit", "--name", "mine", "true")
        await said_by(base, *EDL, "wait", "mine", fine=(0, 1))
        jobs = json.loads(await said_by(base, *EDL, "queue", "--json"))["jobs"]
        if [job["name"] for job in jobs] != ["mine"]:
            faults.append(f"the queue has {jobs}")
        if page.returncode is not None:
            faults.append("the page has ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            page.terminate()
        await page.communicate()
        await said_by(base, *EDL, "cluster", "stop", "--now", fine=(0, 1))
    log = (base / "home" / "cluster" / "logs" / "keeper.log").read_text()
    faults += ["the coordinator has ended"] * log.count("coordinator has ended")
    faults += [
        f"{name} has ended" for name in ("http", "scheduler-1", "agent-localhost") if log.count(f"{name} is s") > 1
    ]


JOB = """
import torch, edl.torch as edl
edl.init()
model = torch.nn.Linear(4, 1)
opt = edl.Optimizer(torch.optim.SGD(model.parameters(), 0.01), model=model)
for batch in edl.elastic_shard_generator(4000, epochs=1).batches(20):
    opt.zero_grad()
    model(torch.ones(len(batch), 4)).mean().backward()
    opt.step()
    edl.notify_batch_end()
print("trained", flush=True)
"""


async def job(base: Path, launcher: Words, faults: list[str]) -> None:
    """One that trains, with metrics."""
    (base / "job.py").write_text(JOB)
    said = await said_by(base, *launcher, sys.executable, base / "job.py")
    if "trained" not in said:
        faults.append(f"the job did not train: {said[-1000:]}")


NAME = "attacked"
RUN: Words = (*EDL, "run", "-np", "1", "--ring", "torch", "--job", NAME)
HOROVODRUN: Words = (Path(sys.executable).with_name("horovodrun"), "-np", "1", "--network-interfaces", "lo")

Start = Callable[[Path, list[str]], Awaitable[None]]
KINDS: dict[str, tuple[int, Start]] = {  # of each 40 starts so many; what is started
    "zookeeper": (17, lambda base, faults: local(base, "zookeeper", faults)),
    "zookeeper-port": (4, lambda base, faults: local(base, "zookeeper", faults, port=free_port())),
    "etcd": (4, lambda base, faults: local(base, "etcd", faults)),
    "etcd-port": (4, lambda base, faults: local(base, "etcd", faults, port=free_port())),
    "cluster": (2, lambda base, faults: cluster(base, "zookeeper", faults)),
    "cluster-etcd": (1, lambda base, faults: cluster(base, "etcd", faults)),
    "embedded": (4, lambda base, faults: local(base, "embedded", faults)),
    "run": (2, lambda base, faults: job(base, RUN, faults)),
    "run-embedded": (1, lambda base, faults: job(base, (*RUN, "--local-coordinator", "embedded"), faults)),
    "horovodrun": (1, lambda base, faults: job(base, HOROVODRUN, faults)),
}


# ---------------------------------------------------------------------------------------------------------- the starts


async def attacked(kind: str, tried: Counter[str]) -> list[str]:
    """One start; what was wrong with it."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="edl-attacked-") as folder:
        base = Path(folder)
        os.chmod(base, 0o711)  # noqa: PTH101
        try:
            async with stranger_in(base, faults, tried):
                await KINDS[kind][1](base, faults)
        except (EdlError, RuntimeError, OSError) as error:
            faults.append(f"{type(error).__name__}: {error}")
    return faults


def plan(starts: int, kinds: list[str]) -> list[str]:
    """So many of each as their shares say, one of each at least, in turn."""
    whole = sum(KINDS[kind][0] for kind in kinds)
    counts = {kind: max(1, round(starts * KINDS[kind][0] / whole)) for kind in kinds}
    counts[kinds[0]] += max(0, starts - sum(counts.values()))
    return [kind for turn in range(max(counts.values())) for kind in kinds if counts[kind] > turn]


def enter_namespace(arguments: list[str]) -> None:
    """Begin again where nothing listens but what is attacked, and another user can be played."""
    if os.environ.get(INSIDE):
        with socket.socket() as link:  # up with its loopback interface
            fcntl.ioctl(link, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x8 | 0x40))
        return
    if os.geteuid() != 0:
        sys.exit("attackers_hour: only root can play another user")
    command = ["unshare", "--net", sys.executable, "-m", "tests.soaks.attackers_hour", *arguments]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    enter_namespace(sys.argv[1:])
    began, tried, done = time.monotonic(), Counter[str](), Counter[str]()
    wrong: dict[str, list[str]] = {}
    for number, kind in enumerate(plan(options.starts, options.kinds.split(",")), 1):
        faults = asyncio.run(attacked(kind, tried))
        done[kind] += 1
        if faults:
            wrong[f"{number} {kind}"] = faults
            print(f"start {number}, {kind}: {'; '.join(faults)[:600]}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {"starts": sum(done.values()), "kinds": done, "tried": tried, "wrong": wrong}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['starts']} starts in {time.monotonic() - began:.0f} s: {dict(done)}")
        print(f"tried: {dict(tried)}; starts that were not good: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
