"""`edl.run(fn, np=2)`: a function as the workers of a job, from Python and from a notebook.

The job is one of `edl run`, in a process of its own: a notebook has an event loop in its main thread already, and its
process may have threads and CUDA, from which no worker should be forked. So this is the thin end: it hands the function
over, passes signals on, shows what comes, and collects the results.

Owns: the checks of a call, and the one process. Does not own: the files (`edl.launch.function_files`), the job
(`edl.launch.job_run`), what progress looks like (`edl.launch.function_view`).
"""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypedDict, TypeVar, Unpack

import msgspec

import edl
from edl.config import TABLE, Given, Setting, Settings
from edl.errors import ConfigError, FunctionFailed, UsageError
from edl.launch import function_files
from edl.launch.function_view import RunView, fitting_view
from edl.launch.job_processes import MARK
from edl.launch.job_records import Folder, records
from edl.protocol.checkpoint_record import PREEMPTED_CODE
from edl.protocol.record import Status

# As the kernel ends a trainer with its launcher; but the launcher, so that it ends its job.
INTERRUPTED_WITH_PARENT = ("setpriv", "--pdeathsig", "INT", "--")
LOOK_S = 0.25
END_S = 60.0  # for a job to end that was interrupted, before it is killed
PIECE = 65_536  # bytes
WRONG_USE = 2
SAID = "edl: "  # begins a line of edl's own

R = TypeVar("R")
Text = str | int | float | os.PathLike[str]


class RunSettings(TypedDict, total=False):
    job: str
    coordinator: str
    local_coordinator: str
    secret_file: Text
    num_proc: int
    min_np: int
    min_num_proc: int
    max_np: int
    max_num_proc: int
    max_restarts: int
    autoscale: str
    autoscale_every: int
    stragglers: str
    ring: str
    check_weights: int
    on_divergence: str
    batch_policy: str
    checkpoint: Text
    checkpoint_every: Text
    checkpoint_overhead: Text
    keep: int
    resume: Text
    output_filename: Text
    audit: Text
    virtual_workers: int
    verify_compute: Text
    processes: int
    network_interface: str
    session_timeout: float
    step_timeout: float
    keep_nodes: float
    zookeeper_port: int
    metrics_port: int
    metrics_address: str
    tensorboard: Text
    warm_starts: str
    log_level: str
    config: Text
    home: Text


def run(
    fn: Callable[..., R],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    page: bool | None = None,
    **settings: Unpack[RunSettings],
) -> list[R]:
    """Run `fn(*args, **kwargs)` as each worker of a job on this machine; return what the workers returned, by rank.

    It is `edl run` with a function in the place of a command: workers are fresh processes, `edl scale JOB N` makes the
    job grow while this call waits, and a worker that is killed is replaced. Inside of `fn` stands what stands in a
    script, `edl.init()` first. The list has the results of those workers whose `fn` has returned in the job's last
    life: not of one that was lost, or told to leave.

    Args:
        fn: any function, of a notebook's cell or a script too, with what it uses (by cloudpickle).
        args: its arguments.
        kwargs: its keyword arguments.
        np: workers to start with (default: as many as `min_np`, 1).
        page: serve the job's page meanwhile, and show its link. None: in a notebook or a terminal, where the extra
            `dashboard` is installed.
        settings: the flags of `edl run`, with underscores: `min_np=1, max_np=4, job="mnist", checkpoint="ck"`. Each
            that is not given is as `EDL_JOB`, `EDL_MAX_NP` and so on have it.

    In the main thread Ctrl-C, or a notebook's interrupt, ends the job with all its processes, a second one at once;
    then KeyboardInterrupt is raised. Raises `errors.FunctionFailed`, with the worker's traceback, when the job has
    failed; UsageError and ConfigError for a wrong call.

    >>> import edl
    >>> def train(rate):
    ...     import edl.torch as edl
    ...
    ...     edl.init()
    ...     return edl.rank(), rate
    >>> edl.run(train, args=(0.1,), np=1, page=False)
    [(0, 0.1)]
    """
    _check_call(fn, args, kwargs)
    given = _given({**settings, **({} if np is None else {"np": np})})
    asked = Settings.from_given(given, os.environ)
    if asked.processes > 1:
        raise UsageError(
            f"edl.run(processes={asked.processes}): a function has workers of one process yet; give a script to `edl "
            f"run --processes {asked.processes}`"
        )
    home = asked.home
    content = function_files.pickled(function_files.FunctionCall(fn, args, kwargs or {}))
    folder = function_files.make_private(home)
    try:
        function_files.write_function(folder, content)
        _Job(given, home, folder).run(fitting_view(), page)
        found: list[R] = function_files.read_results(folder)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_call(fn: object, args: object, kwargs: object) -> None:
    if MARK in os.environ or "HOROVOD_RANK" in os.environ:
        raise UsageError(
            "edl.run() inside of a worker: this process trains in a job already; call it from a notebook or a script "
            "that is no worker itself"
        )
    if not callable(fn):
        raise UsageError(f"edl.run({fn!r}): must be a function")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise UsageError(f"edl.run(args={args!r}): must be a tuple of fn's arguments, such as args=(0.1,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"edl.run(kwargs={kwargs!r}): must be a dict of fn's keyword arguments")


def _given(settings: Mapping[str, Any]) -> dict[str, Given]:
    """Return the given settings by their fields. Raises UsageError."""
    known = {name: setting for setting in TABLE for name in keywords_of(setting)}
    found: dict[str, Given] = {}
    for name, value in settings.items():
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            more = f"did you mean {near[0]}?" if near else "its keywords are the flags of `edl run`"
            raise UsageError(f"edl.run({name}=...): there is no such setting; {more}")
        if value is None:
            continue
        field, quote = known[name].field, f"{name}={value!r}"
        if field in found:
            raise UsageError(f"edl.run({found[field].quote}, {quote}): these are one setting; give one of them")
        found[field] = Given(os.fspath(value) if isinstance(value, os.PathLike) else str(value), quote)
    return found


def keywords_of(setting: Setting) -> list[str]:
    return [flag.lstrip("-").replace("-", "_") for flag in setting.flags]


class _Job:
    def __init__(self, given: Mapping[str, Given], home: Path, folder: Path) -> None:
        flags = {setting.field: setting.flags[-1] for setting in TABLE if setting.flags}
        typed = [f"{flags[field]}={one.text}" for field, one in given.items()]
        worker = [sys.executable, "-P", "-m", "edl.launch.function_worker", str(folder)]
        self._command = _command("run", *typed, "--", *worker)
        self._home = home
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._page: subprocess.Popen[bytes] | None = None
        self._interrupts = 0
        self._name = ""
        self._seen = b""  # the job's status
        self._said = ""  # what edl has said last

    def run(self, view: RunView, page: bool | None) -> None:
        """Wait until the job is over. Raises KeyboardInterrupt, ConfigError, FunctionFailed."""
        wants_page = _has_page() and view.lives if page is None else page
        if wants_page and not _has_page():
            raise ConfigError("edl.run(page=True) needs the page's server: pip install 'horovod-edl[dashboard]'")
        with self._passing_signals_on():
            try:
                self._process = _started(self._command)
                if self._interrupts:
                    self._process.send_signal(signal.SIGINT)
                self._follow(self._process, view, wants_page)
            finally:
                self._end()
                view.end()
        if self._interrupts:
            raise KeyboardInterrupt
        self._check(self._process.returncode)

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """Hand Ctrl-C to the job, which ends by it: here it must not come between two instructions."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or before in {None, signal.SIG_IGN}:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def _follow(self, process: subprocess.Popen[bytes], view: RunView, wants_page: bool) -> None:
        """Show the job's output until the process has ended and its output has been read."""
        with selectors.DefaultSelector() as selector:
            for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, _LineReader(stream, name))
            over = False
            while selector.get_map():
                ready = selector.select(0 if over else LOOK_S)
                if over and not ready:
                    return  # what still holds the other end says nothing more
                for key, _ in ready:
                    lines, ended = key.data.read()
                    for line in lines:
                        self._show(view, key.data.name, line)
                    if ended:
                        selector.unregister(key.fileobj)
                over = process.poll() is not None
                self._look(view, selector if wants_page else None)
        process.wait()

    def _show(self, view: RunView, stream: str, line: str) -> None:
        if stream == "page":
            view.link(line.rsplit(None, 1)[-1])
            return
        if line.startswith(SAID):
            self._said = line.removeprefix(SAID).strip()
        view.show(stream, line)

    def _look(self, view: RunView, page: selectors.BaseSelector | None) -> None:
        if not self._name:
            self._name = next((one.job for _, one in records(self._home) if one.launcher_pid == self._pid), "")
        if not self._name:
            return
        try:
            content = Folder(self._home / "jobs" / self._name).status.read_bytes()
            if content == self._seen:
                return
            status = msgspec.json.decode(content, type=Status)
        except (OSError, msgspec.MsgspecError):
            return
        self._seen = content
        view.progress(status)
        if page is not None and self._page is None:
            self._page = _started(_command("dashboard", self._name, f"--home={self._home}"), errors=subprocess.DEVNULL)
            assert self._page.stdout is not None
            page.register(self._page.stdout, selectors.EVENT_READ, _LineReader(self._page.stdout, "page"))

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _end(self) -> None:
        for process in (self._process, self._page):
            if process is None:
                continue
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()  # its guard ends what is left
                    process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _check(self, code: int) -> None:
        """Raise an error if the job has not finished."""
        if code == 0:
            return
        said = self._said or f"`edl run` ended with code {code}"
        if code == WRONG_USE:
            raise ConfigError(f"edl.run(): {said}")
        raised = None if code == PREEMPTED_CODE else function_files.read_raised(self._folder)
        told = f"\n\nfn has raised on rank {raised.rank}:\n\n{raised.text.rstrip()}" if raised else ""
        raise FunctionFailed(f"{said}{told}")


class _LineReader:
    def __init__(self, stream: IO[bytes], name: str) -> None:
        self.name = name
        self._file = stream.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def read(self) -> tuple[list[str], bool]:
        """Return the complete lines that have come, and whether the stream has ended."""
        piece = os.read(self._file, PIECE)
        text = self._rest + self._decoder.decode(piece, final=not piece)
        lines = text.splitlines(keepends=True)
        self._rest = lines.pop() if piece and lines and not lines[-1].endswith("\n") else ""
        return lines, not piece


def _command(*typed: str) -> list[str]:
    # `edl`, by this Python and from this package.
    return [sys.executable, "-P", "-c", "import sys, horovod_edl; sys.exit(horovod_edl.main())", *typed]


def _started(command: Sequence[str], errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start it in its own session, out of reach of a terminal's Ctrl-C; it is interrupted when this process dies."""
    source = str(Path(edl.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.Popen(
            [*INTERRUPTED_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ConfigError("setpriv is missing, which ends a job with its caller: apt-get install util-linux") from None


def _has_page() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))
