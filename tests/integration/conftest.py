"""`edl` as a user types it, with a home of its own, and a look at what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pace import patient
from warm_python import FORKING, WARM, WarmPython

from edl import client
from edl.errors import EdlError

pytest.register_assert_rewrite("elastic_job")  # what it compared is told, as in a test
MAIN = [sys.executable, "-c", "import sys; from horovod_edl import main; sys.exit(main())"]
ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
# Many processes share few cores: who waits for its peers naps soon (tests/conftest.py), and Horovod's threads of all
# workers ask one another every few milliseconds, not every single one, whether there is anything to reduce.
SPARING = {"EDL_SPIN_MS": os.environ.get("EDL_SPIN_MS", "1"), "HOROVOD_CYCLE_TIME": "5"}
# Between two looks of a test that waits for something: at first, and once it has waited for long. Each look at a job
# costs this process and the job's leader some milliseconds.
LOOK_S, RARELY_S = 0.03, 0.12


class Command(subprocess.Popen[str]):
    """A command that a test waits for. One that does not end in time says where its tasks wait, if it has imported
    tests/integration/warm/launch.py; the signal ends another.
    """

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        try:
            return super().communicate(input, timeout)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGUSR2)
        try:
            told: Sequence[str | bytes | None] = super().communicate(timeout=5)
        except subprocess.TimeoutExpired as still:
            told = [still.output, still.stderr]
        pytest.fail("\n".join([f"{self.args!r} has not ended within {timeout} s", *map(repr, told)]))


class Edl:
    """Runs `edl` with all its processes marked by their EDL_HOME."""

    def __init__(self, home: Path, cwd: Path, warm: WarmPython) -> None:
        self.home = home
        self.cwd = cwd
        self.warm = warm
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "HOROVOD_"))}
        self.environ = {**kept, **SPARING, "EDL_HOME": str(home), "PYTHONPATH": str(ROOT), "EDL_MAX_RESTARTS": "0"}
        self.environ["EDL_WARM_STARTS"] = "off"  # forks are tested by themselves, and these have their own
        self._started: list[Command] = []
        self._looks: dict[str, client.Job] = {}

    def __call__(self, *arguments: str, timeout_s: float = WAIT_S, **environ: str) -> subprocess.CompletedProcess[str]:
        """To its end."""
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=patient(timeout_s))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *arguments: str, under: Sequence[str] = (), **environ: str) -> Command:
        """`under`: a command that starts it, such as nohup. A warm job's ZooKeeper is warm too, unless
        EDL_TEST_COORDINATOR is empty, and so are its daemons, unless EDL_TEST_OWN is.
        """
        warm = any(word.startswith(str(WARM)) for word in arguments)
        if warm:
            environ = {"EDL_TEST_COORDINATOR": self.warm.coordinator(), **self.warm.own(), **environ}
        code = FORKING if warm else MAIN[2]
        boots = under or (arguments[:1] in {("run",), ("torchrun",)} and not warm)
        line = [*under, *MAIN[:2], code] if boots else self.warm.line(code)
        return self.start_command([*line, *arguments], **environ)

    def start_command(self, command: Sequence[str], **environ: str) -> Command:
        """Something else than `edl`, in the same surroundings."""
        process = Command(
            command,
            env={**self.environ, **environ},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def status(self, job: str) -> dict[str, Any]:
        """As `edl status --json` shows it, without a process for each look."""
        try:
            status: dict[str, Any] = msgspec.to_builtins(self._look(job).status())
        except EdlError:  # not started yet
            self.look_away(job)
            return {"state": "none", "size": 0, "target": 0, "step": 0, "workers": []}
        return status

    def events(self, job: str) -> list[dict[str, Any]]:
        """As `edl events --json` shows them."""
        try:
            return [event.flat() for event in self._look(job).events()]
        except EdlError:
            self.look_away(job)
            return []

    def _look(self, job: str) -> client.Job:
        """By one connection: to open one for each of a thousand looks would keep a core busy."""
        if job not in self._looks:
            self._looks[job] = client.Job(job)
        return self._looks[job]

    def look_away(self, job: str) -> None:
        if (look := self._looks.pop(job, None)) is not None:
            look.close()

    def processes(self) -> dict[int, str]:
        """All living processes that came from here: pid to command line."""
        mark = f"EDL_HOME={self.home}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """The first true value of a condition. On a busy machine its time is as much longer."""
        began = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - began
            assert waited < patient(timeout_s), f"never: {what}; {self._what_there_is()}"
            time.sleep(min(max(LOOK_S, waited / 10), RARELY_S))
        return value

    def _what_there_is(self) -> str:
        """Return what tells why a wait was in vain."""
        jobs = [f"{name}: {self.status(name)}; newest events: {self.events(name)[-12:]}" for name in [*self._looks]]
        processes = [f"{pid} {line.strip()}" for pid, line in self.processes().items()]
        return "\n".join([*jobs, "processes:", *processes])

    def wait_process(self, word: str, count: int = 1) -> list[int]:
        def found() -> list[int]:
            pids = [pid for pid, line in self.processes().items() if word in line and not is_launcher(line)]
            return pids if len(pids) >= count else []

        pids: list[int] = self.wait(found, f"{count} processes with {word!r}")
        return pids

    def wait_nothing_left(self) -> None:
        self.wait(lambda: not self.processes(), "nothing left")

    def clean_up(self) -> None:
        """Again and again: who is being killed may just be starting another. Then only, as a child may hold a pipe."""
        for job in list(self._looks):
            self.look_away(job)
        deadline = time.monotonic() + WAIT_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"they outlive SIGKILL: {left}"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()  # no zombie
            time.sleep(0.01)
        for process in self._started:
            process.kill()
            process.communicate()


def is_launcher(line: str) -> bool:
    return "horovod_edl import main" in line


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmPython]:
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def edl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, warm: WarmPython
) -> Iterator[Edl]:
    edl = Edl(tmp_path / "home", tmp_path, warm)
    monkeypatch.setenv("EDL_HOME", str(edl.home))  # for a look by `edl.client` in this process
    yield edl
    left = edl.processes()
    edl.clean_up()
    assert not left or request.node.stash[FAILED], "processes were left behind"  # by who failed: no other fault
