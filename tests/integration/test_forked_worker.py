"""A worker that is forked is to its script, to the launcher and in /proc what a new process would be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from edl.host import daemon_process
from edl.host.daemon_process import Forker
from edl.host.host_processes import spawn_daemon, wait_exit
from edl.host.imported_modules import Imported, installed_folders
from edl.launch.child_worker import WorkerProcess, search_path, start_process
from edl.launch.forking import WarmPython, hindrance_of

pytestmark = pytest.mark.integration

SCRIPT = r"""
import atexit, collections, json, multiprocessing, os, resource, signal, sys, threading, time, warnings
import beside_it

found = threading.Thread(target=lambda: seen.append(threading.main_thread().name))  # a thread while it is imported
seen = []
found.start()
found.join()
while len(os.listdir("/proc/self/task")) > 1:
    time.sleep(0.001)  # the kernel has not done with it yet


class Thing:
    pass


def square(number):
    return number * number


def proc(name):
    with open(f"/proc/self/{name}", "rb") as file:
        return file.read()


def report():
    fields = proc("stat").decode().rpartition(")")[2].split()
    status = dict(line.split(":\t", 1) for line in proc("status").decode().splitlines() if ":\t" in line)
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "executable": sys.executable,
        "flags": repr(sys.flags), "xoptions": sys._xoptions, "warnoptions": sys.warnoptions,
        "main": {k: repr(v).partition(" at 0x")[0] for k, v in vars(main).items()
                 if k.startswith("__") and k != "__warningregistry__"},
        "module": [Thing.__module__, square.__module__, __doc__], "filters": len(warnings.filters) > 0,
        "environ": dict(os.environ), "cwd": os.getcwd(),
        "shown": [proc("cmdline").rstrip(b"\0").decode(), proc("comm").decode()],
        "shown environ": sorted(x.decode() for x in proc("environ").rstrip(b"\0").split(b"\0")),
        "leads": [os.getpid() == os.getpgrp() == os.getsid(0)],
        "signals": {k: status[k] for k in ("SigIgn", "SigBlk", "SigCgt", "ShdPnd")},
        "handlers": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "nice": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)),
                 proc("autogroup").split()[1:] if os.path.exists("/proc/self/autogroup") else 0,
                 proc("oom_score_adj").decode()],
        "limits": [resource.getrlimit(n) for n in range(16)], "umask": (os.umask(0o22), os.umask(0o22))[0],
        "threads": [len(os.listdir("/proc/self/task")), threading.main_thread() is threading.current_thread(),
                    threading.get_native_id() == os.getpid(), seen],
        "files": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{n}")),
        "streams": [(s.fileno(), s.isatty(), s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable(),
                     repr(s.buffer)) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "used": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) == 0, "rest": sys.stdin.read(),
        "recursion": sys.getrecursionlimit(), "traced": [sys.gettrace(), sys.getprofile()],
        "parents": [multiprocessing.parent_process(), multiprocessing.current_process().name, os.getppid()],
        "beside": os.path.basename(beside_it.__file__), "switch": sys.getswitchinterval(),
        "alarm": signal.alarm(0), "children": multiprocessing.active_children(),
    }


if __name__ == "__main__":
    atexit.register(print, "at exit", flush=True)
    told = report()
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            told[how] = pool.map(square, range(4))
    print(json.dumps(told, default=str), flush=True)
    exec(sys.argv[1] if len(sys.argv) > 1 else "")
"""
BESIDE = "import json\n"
KNOWN = {"edl-imports"}

Start = Callable[[list[str], Mapping[str, str]], WorkerProcess]


def starting(folder: Path, command: list[str], environ: Mapping[str, str], modules: tuple[str, ...]) -> Any:
    """A warm process that can be forked."""

    async def start() -> WarmPython:
        assert not hindrance_of(command)
        warm = WarmPython(command, environ, folder / "warm.log", lambda _: None)
        done = await warm.import_modules(Imported(modules, ("beside_it",), installed_folders()), eager=True)
        assert done is not None and not done.refused, (done, (folder / "warm.log").read_text())
        return warm

    return start()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def ended(process: WorkerProcess) -> tuple[int, list[str], list[str]]:
    """What it has told, and how it has ended."""
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        out, err = process.stdout.read().decode(), process.stderr.read().decode()
    return process.wait(), out.splitlines(), err.splitlines()


async def both(
    folder: Path, command: list[str], environ: Mapping[str, str], modules: tuple[str, ...] = ("numpy",)
) -> list[tuple[int, list[str], list[str]]]:
    """Forked, and started anew."""
    warm = await starting(folder, command, environ, modules)
    try:
        forked = warm.fork(environ)
        assert forked is not None, (folder / "warm.log").read_text()
        return [ended(forked), ended(start_process(command, environ))]
    finally:
        warm.end()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "its own").mkdir()
    (tmp_path / "its own" / "script.py").write_text(SCRIPT)
    (tmp_path / "its own" / "beside_it.py").write_text(BESIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "its own"))
    return tmp_path


PLACE = "its own/../its own/script.py"
FLAGS = ["-u", "-O", "-X", "dev", "-Werror::ImportWarning", "-P"]


@pytest.mark.parametrize(
    "command",
    [
        ["python", PLACE, "", "ü", "a b"],
        ["python", *FLAGS, PLACE],
        [sys.executable, "-m", "script", "", "-x"],
        ["python", "-Wdefault", "-m", "package.module"],
        ["python", "-c", f"import runpy; runpy.run_path({PLACE!r}, run_name='__main__')", "pass"],
    ],
    ids=["script", "flags", "module", "package", "code"],
)
def test_it_is_what_a_new_process_would_be(place: Path, command: list[str]) -> None:
    (place / "package").mkdir()
    (place / "package" / "__init__.py").touch()
    (place / "package" / "module.py").write_text(SCRIPT)
    environ = {
        **os.environ,
        "PATH": search_path(os.environ),
        "MARK": "ü",
        "EMPTY": "",
        "PYTHONHASHSEED": "5",
        "PYTHONIOENCODING": ":backslashreplace",
        "OMP_NUM_THREADS": "3",
    }
    (code, out, err), (code_anew, out_anew, err_anew) = run(both(place, command, environ))
    assert (code, out[1:], err) == (code_anew, out_anew[1:], err_anew) == (0, ["at exit"], [])
    forked, anew = json.loads(out[0]), json.loads(out_anew[0])
    for told in (forked, anew):
        told["shown environ"] = sorted(told["shown environ"])
    assert forked == anew


def test_a_forked_daemon_is_what_a_new_process_would_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the test's runs in its place, and prints where its stack begins, and its session."""
    (place / "its own" / "forked").mkdir()
    (place / "its own" / "forked" / "__init__.py").touch()
    (place / "its own" / "forked" / "daemon.py").write_text(
        "if __name__ != 'forked.daemon':\n" + indent(SCRIPT, "    ")
    )
    monkeypatch.setattr(daemon_process, "MODULE", "forked.daemon")
    monkeypatch.setattr(daemon_process, "COMMAND", words := ("-P", "-m", "forked.daemon"))
    command = [sys.executable, *words]
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    environ = daemon_process.environ_of({**os.environ, "MARK": "ü", "EMPTY": ""})
    arguments = ["print(proc('stat').decode().rpartition(')')[2].split()[25], os.getsid(0))", "", "a b"]
    pids, stacks, sessions = list[int](), list[str](), {str(os.getsid(0))}

    async def start_both() -> None:
        warm = WarmPython(
            command, daemon_process.environ_of(os.environ), place / "warm.log", pids.append, what="daemons"
        )
        try:
            done = await warm.import_modules(Imported(("forked.daemon",), (), installed_folders()), eager=True)
            assert done is not None and not done.refused, (done, (place / "warm.log").read_text())
            forker = Forker(warm._socket.fileno())
            pids.append(forker.fork(arguments, environ, place / "forked"))
            pids.append(spawn_daemon([*command, *arguments], environ, place / "anew"))
            assert all(pids), (place / "warm.log").read_text()
            for pid in pids:
                await wait_exit(pid)
            stacks.append(stack_of(warm.pid))
            sessions.add(str(os.getsid(warm.pid)))
        finally:
            warm.end()

    run(start_both())
    (told, shown, *end), (told_anew, shown_anew, *end_anew) = (
        (place / name).read_text().replace(str(place / name), "log").splitlines() for name in ("forked", "anew")
    )
    forked, anew = json.loads(told), json.loads(told_anew)
    for one in (forked, anew):
        one["shown environ"] = sorted(one["shown environ"])
    assert forked == anew
    (stack, session), (stack_anew, _) = shown.split(), shown_anew.split()
    assert [stack] == stacks != [stack_anew]
    assert session not in sessions
    assert end == end_anew == ["at exit"]


ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "sys.exit('it is over')": 1,
    "sys.exit()": 0,
    "raise ValueError('no')": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "os._exit(9)": 9,
    "os.kill(os.getpid(), 9)": -9,
    "os.kill(os.getpid(), 15)": -15,
    "os.abort()": -6,
    "threading.Thread(target=lambda: (time.sleep(0.1), print('a thread', flush=True))).start()": 0,
    "threading.Thread(target=lambda: 1 / 0).start()": 0,
    "print(square(3)); 1 / 0": 1,
    "sys.excepthook = lambda *seen: print(seen[:2]); {}['x']": 1,
    "class A:\n def __del__(self): print('taken apart', flush=True)\na = A()": 0,
}


@pytest.mark.slow
def test_it_ends_as_a_new_process_would(place: Path) -> None:
    """The code comes from a variable, so that one warm process serves all."""
    script = place / "ends.py"
    script.write_text(f"import os\nimport sys\nsys.argv[1:] = [os.environ['CODE']]\n{SCRIPT}")
    command = ["python", "ends.py"]

    async def compare() -> None:
        warm = await starting(
            place, command, {**os.environ, "PATH": search_path(os.environ), "CODE": "x" * 200}, ("numpy",)
        )
        try:
            for code, status in ENDS.items():
                environ = {**os.environ, "PATH": search_path(os.environ), "CODE": code}
                worker = warm.fork(environ)
                assert worker is not None, (place / "warm.log").read_text()
                forked, anew = ended(worker), ended(start_process(command, environ))
                told = [(one[0], one[1][1:], [without_address(line) for line in one[2]]) for one in (forked, anew)]
                assert told[0] == told[1], code
                assert forked[0] == status, code
        finally:
            warm.end()

    run(compare())


def stack_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[25]


def without_address(line: str) -> str:
    return re.sub(r"0x[0-9a-f]+|Thread-\d+", "", line)
