"""`edl.run` up to where it starts a process: what it refuses, how a function travels, and what people see."""

from __future__ import annotations

import io
import linecache
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import edl
from edl.config import TABLE
from edl.errors import ConfigError, UsageError
from edl.launch import function_files, function_worker
from edl.launch.function_files import FunctionCall, Raised
from edl.launch.function_run import RunSettings, keywords_of
from edl.launch.function_view import NotebookView, PlainView, TerminalView, fitting_view, words_of
from edl.protocol.data_nouns import DataCounts, DataSpec
from edl.protocol.record import JobState, Status


class Figures:
    """Of a module that workers do not find: it travels with the function."""

    def __init__(self, loss: float) -> None:
        self.loss = loss


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EDL_LAUNCH", "HOROVOD_RANK", "EDL_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    return tmp_path


def test_its_keywords_are_the_flags_of_edl_run() -> None:
    flags = {name for setting in TABLE for name in keywords_of(setting)}
    assert set(RunSettings.__annotations__) | {"np"} == flags


LOCK = threading.Lock()
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"fn": 3}, UsageError, r"edl\.run\(3\): must be a function"),
    ({"args": "ab"}, UsageError, r"args='ab'\): must be a tuple"),
    ({"kwargs": [1]}, UsageError, r"kwargs=\[1\]\): must be a dict"),
    ({"np": 0}, ConfigError, "np=0: must be a whole number of at least 1"),
    ({"np": True}, ConfigError, "np=True: must be a whole number"),
    ({"np": 3, "max_np": 2}, ConfigError, "np=3 is more than max_np=2"),
    ({"num_prc": 2}, UsageError, "num_prc=...*did you mean num_proc"),
    ({"hosts": 2}, UsageError, "hosts=...*the flags of `edl run`"),
    ({"np": 2, "num_proc": 3}, UsageError, "one setting"),
    ({"ring": "rung"}, ConfigError, "ring='rung'"),
    ({"job": "a b"}, ConfigError, "job='a b'"),
    ({"fn": lambda: LOCK}, UsageError, "cannot be handed to workers: .*lock"),
]


@pytest.mark.parametrize(("call", "kind", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_a_wrong_call_is_one_clear_line(home: Path, call: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as found:
        edl.run(**{"fn": print, **call})
    assert "\n" not in str(found.value)
    assert not list(home.glob("functions/*/*")), "nothing is left of it"


def test_a_tensor_of_a_gpu_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        def __init__(self, device: str) -> None:
            self.device, self.is_cuda = device, device != "cpu"

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    here, there = Tensor("cpu"), Tensor("cuda:0")
    assert function_files.pickled(FunctionCall(lambda: here, (), {}))
    with pytest.raises(
        UsageError, match=r"a tensor of this process on cuda:0, .*: make it inside fn, or hand over its"
    ):
        function_files.pickled(FunctionCall(lambda: there, (), {}))


def test_a_worker_calls_none_inside_of_a_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_LAUNCH", "mark")
    with pytest.raises(UsageError, match="inside of a worker"):
        edl.run(print)


def test_the_package_has_no_other_name_and_imports_no_framework() -> None:
    look = "import sys, edl; edl.run; print([one for one in ('torch', 'tensorflow', 'numpy') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        edl.rum  # type: ignore[attr-defined] # noqa: B018


# ------------------------------------------------------------------------------------------------------ its files


def test_what_is_handed_over_is_this_users_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        folder = called(home, max, 1, 2)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (*folder.parents, folder, folder / "function")}
    assert modes[folder / "function"] == 0o600
    assert {modes[folder], modes[folder.parent], modes[folder.parent.parent]} == {0o700}


def linked(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


SPOILS = [lambda path: path.chmod(0o620), lambda path: path.unlink(), linked]


@pytest.mark.parametrize("spoil", SPOILS, ids=["written by others", "not there", "a link"])
def test_a_file_that_another_could_have_written_is_not_read(home: Path, spoil: Any) -> None:
    folder = called(home, max, 1, 2)
    spoil(folder / "function")
    with pytest.raises(ConfigError, match=r"EDL_HOME that is shared|not a file of this user alone"):
        function_files.open_call(folder)


def test_a_function_takes_along_what_it_uses_and_where_it_stands(home: Path) -> None:
    linecache.cache["<cell 1>"] = (20, None, ["def cell(): return 1\n"], "<cell 1>")
    try:
        content = function_files.pickled(FunctionCall(Figures, (), {"loss": 0.5}))
    finally:
        del linecache.cache["<cell 1>"]
    call = function_files.read_call(io.BytesIO(content))
    assert call.function(*call.args, **call.kwargs).loss == 0.5
    assert linecache.getline("<cell 1>", 1) == "def cell(): return 1\n"
    linecache.cache.pop("<cell 1>")


def test_results_are_by_rank_and_of_the_last_life(home: Path) -> None:
    folder = function_files.make_private(home)
    for rank in range(12):
        function_files.write_result(folder, 1, rank, "old")
    for rank in (10, 3, 7, 2, 5):
        function_files.write_result(folder, 2, rank, rank)
    function_files.write_result(folder, 2, 0, Figures(1))
    first, *others = function_files.read_results(folder)
    assert isinstance(first, Figures) and others == [2, 3, 5, 7, 10]
    with pytest.raises(UsageError, match=r"what fn returned on rank 3 cannot come back: .*; return numbers"):
        function_files.write_result(folder, 2, 3, LOCK)


def test_the_first_exception_counts_that_follows_from_no_other(home: Path) -> None:
    folder = function_files.make_private(home)
    assert function_files.read_raised(folder) is None
    for number, (at, follows) in enumerate([(3.0, False), (1.0, True), (2.0, False)]):
        raised = Raised(at=at, rank=number, text="", follows=follows)
        (folder / f"raised-{number}").touch(0o600)
        (folder / f"raised-{number}").write_bytes(msgspec.json.encode(raised))
    assert function_files.read_raised(folder).rank == 2


# ------------------------------------------------------------------------------------------------------ a worker


def called(home: Path, function: Any, *args: Any) -> Path:
    folder = function_files.make_private(home)
    function_files.write_function(folder, function_files.pickled(FunctionCall(function, args, {})))
    return folder


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(function_worker, "_rank", lambda: 4)


@pytest.mark.usefixtures("in_worker")
class TestWorker:
    def test_leaves_its_result(self, home: Path) -> None:
        folder = called(home, max, 3, 5)
        function_worker.main(folder)
        assert function_files.read_results(folder) == [5]

    def test_leaves_the_traceback_of_its_function_alone(self, home: Path) -> None:
        folder = called(home, int, "three")
        with pytest.raises(ValueError, match="three"):
            function_worker.main(folder)
        raised = function_files.read_raised(folder)
        assert raised.rank == 4 and "ValueError: invalid literal" in raised.text
        assert "function_worker" not in raised.text

    def test_that_was_told_to_leave_leaves_nothing(self, home: Path) -> None:
        folder = called(home, sys.exit, 0)
        with pytest.raises(SystemExit):
            function_worker.main(folder)
        assert [path.name for path in folder.iterdir()] == ["function"]

    def test_without_its_file_says_what_other_hosts_need(self, home: Path) -> None:
        with pytest.raises(SystemExit, match="EDL_HOME that is shared"):
            function_worker.main(home / "nowhere")


# ------------------------------------------------------------------------------------------------------ the views


def status(**changes: Any) -> Status:
    counts = DataCounts(1, 200, 50, 0, 150, 0)
    fields = {
        "job": "mnist", "state": JobState.RUNNING, "reason": "", "term": 1, "generation": 1, "leader": "", "step": 1200,
        "epoch": 1, "size": 2, "target": 2, "min_workers": 1, "max_workers": 4, "workers": (), "data": counts,
        "spec": DataSpec(200, 3, 4, False, 0),
    }  # fmt: skip
    return Status(**{**fields, **changes})


def test_words_say_where_a_job_stands() -> None:
    assert words_of(status()) == "job mnist: running, 2 workers, step 1,200, epoch 2 of 3, 25% of it"
    assert words_of(status(target=3, data=None)) == "job mnist: running, 2 of 3 workers, step 1,200"


def test_a_terminal_keeps_where_the_job_stands_below_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = TerminalView()
    view.progress(status())
    view.progress(status())
    view.show("stdout", "[0]<stdout>:loss 3\n")
    view.end()
    shown = capsys.readouterr()
    assert shown.out == "[0]<stdout>:loss 3\n"
    words = words_of(status())
    assert shown.err == f"\r\x1b[K{words}\r\x1b[K{words}\r\x1b[K"


def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Output:
        def __init__(self, shown: Any, **more: Any) -> None:
            self.shown = [shown]

        def update(self, shown: Any, raw: bool) -> None:
            self.shown.append(shown)

    class IPython:
        display = Output
        kernel = None

        @classmethod
        def get_ipython(cls) -> Any:
            return cls

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    monkeypatch.setitem(sys.modules, "IPython.display", IPython)
    view = fitting_view()
    assert isinstance(view, NotebookView)
    view.progress(status())
    view.progress(status())
    view.link("http://127.0.0.1:1/?a=1&b=2")
    view.end()
    first, second, last = view._output.shown
    assert first["text/plain"] == last["text/plain"] == words_of(status())
    assert second["text/plain"].endswith("its page: http://127.0.0.1:1/?a=1&b=2")
    assert '<a href="http://127.0.0.1:1/?a=1&amp;b=2"' in second["text/html"]


def test_a_file_has_the_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    view = fitting_view()
    assert type(view) is PlainView
    view.progress(status())
    view.show("stderr", "edl: job mnist finished\n")
    view.end()
    assert capsys.readouterr() == ("", "edl: job mnist finished\n")
