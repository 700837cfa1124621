"""`edl.run(fn)` for real: functions of a script and of a notebook, through growth, deaths, errors and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pace import patient

from edl.launch.job_processes import marked
from edl.launch.job_records import Folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CALLER = Path(__file__).parent / "jobs" / "function_caller.py"
END_S = 90.0


class Caller:
    """A process that has called `edl.run`."""

    def __init__(
        self, edl, tmp_path: Path, which: str, under: Sequence[str] = (), coordinator: str = "embedded"
    ) -> None:
        """`under`: a command that takes the line, such as a terminal's. `coordinator`: its kind; without one there is
        the usual one, and workers have as many threads as a user's.
        """
        self.edl = edl
        self.until = tmp_path / "until"
        line = [sys.executable, str(CALLER), which, "fn", str(self.until)]
        if not coordinator:
            del edl.environ["OMP_NUM_THREADS"]
        environ = {"EDL_LOCAL_COORDINATOR": coordinator} if coordinator else {}
        self.process = edl.start_command([*under, shlex.join(line)] if under else line, **environ)

    def wait_running(self, size: int) -> dict[str, Any]:
        def status() -> dict[str, Any]:
            found: dict[str, Any] = self.edl.status("fn")
            return found if found["state"] == "running" and found["size"] == size and found["step"] > 3 else {}

        found: dict[str, Any] = self.edl.wait(status, f"{size} workers", END_S)
        return found

    def finish(self) -> tuple[str, str]:
        """Four seconds from now at the earliest, so that all workers know of it before."""
        self.until.with_suffix(".draft").write_text(str(self.edl.status("fn")["epoch"] + 100))
        self.until.with_suffix(".draft").replace(self.until)
        out: str
        err: str
        out, err = self.process.communicate(timeout=patient(END_S))
        return out, err


@pytest.mark.slow
def test_a_function_trains_through_growth_and_a_kill_and_returns_its_results_by_rank(edl, tmp_path: Path) -> None:
    caller = Caller(edl, tmp_path, "trains", coordinator="")
    caller.wait_running(2)
    assert edl("scale", "fn", "3", "--wait", timeout_s=END_S).returncode == 0
    before = caller.wait_running(3)
    os.kill(before["workers"][1]["pid"], signal.SIGKILL)
    edl.wait(lambda: before["workers"][1]["id"] not in str(edl.status("fn")["workers"]), "the death", END_S)
    caller.wait_running(3)
    out, err = caller.finish()
    assert caller.process.returncode == 0, err
    *lines, last = out.splitlines()
    results = json.loads(last)
    assert [rank for rank, _, _ in results] == [0, 1, 2]
    assert {size for _, size, _ in results} == {3} and len({weight for _, _, weight in results}) == 1
    assert sorted(line.partition(">:")[2] for line in lines) == ["trained 0", "trained 1", "trained 2"]
    assert "edl: job fn finished" in err
    assert not list(edl.home.glob("functions/*/*")), "the function is gone with the call"


@pytest.mark.slow
def test_an_exception_arrives_with_the_workers_traceback(edl, tmp_path: Path) -> None:
    caller = Caller(edl, tmp_path, "raises")
    out, err = caller.process.communicate(timeout=patient(END_S))
    assert caller.process.returncode == 1, err
    assert out.startswith("FunctionFailed: job fn failed: "), out
    assert "fn has raised on rank " in out
    assert 'raise ValueError(f"sample {ids[0]} is no good")' in out and "ValueError: sample" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [pytest.param(1, id="Ctrl-C"), pytest.param(2, id="Ctrl-C twice", marks=pytest.mark.soak)]
)
def test_ctrl_c_ends_the_job_with_all_its_processes(edl, tmp_path: Path, signals: int) -> None:
    caller = Caller(edl, tmp_path, "trains")
    caller.wait_running(2)
    for _ in range(signals):
        caller.process.send_signal(signal.SIGINT)
    out, err = caller.process.communicate(timeout=patient(END_S))
    assert (caller.process.returncode, out.splitlines()[-1]) == (130, "KeyboardInterrupt"), err
    assert "edl: job fn interrupted" in err
    mark = Folder(edl.home / "jobs" / "fn").read().mark
    assert not marked(mark), "all had ended before the call did"
    edl.wait_nothing_left()
    assert not list(edl.home.glob("functions/*/*"))


@pytest.mark.slow
def test_a_caller_that_is_killed_takes_its_job_along(edl, tmp_path: Path) -> None:
    caller = Caller(edl, tmp_path, "trains")
    caller.wait_running(2)
    caller.process.kill()
    caller.process.communicate(timeout=patient(END_S))
    edl.wait_nothing_left()


@pytest.mark.slow
def test_a_terminal_shows_where_the_job_stands_and_its_page(edl, tmp_path: Path) -> None:
    """Served as long as the job lives, to who has the link."""
    shows = ["script", "--quiet", "--return", "--flush", str(tmp_path / "shown"), "--command"]
    caller = Caller(edl, tmp_path, "trains", shows)
    caller.wait_running(2)

    def shown() -> str:
        return (tmp_path / "shown").read_bytes().decode(errors="replace")

    def link() -> str:
        found = re.findall(r"edl: the job's page: (\S+)", shown())
        return found[0] if found else ""

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # its token becomes a cookie
    with browser.open(edl.wait(link, "a link to the page", END_S), timeout=END_S) as page:
        assert page.status == 200 and b"<html" in page.read()
    caller.finish()
    assert caller.process.returncode == 0
    words = r"\r\x1b\[Kjob fn: running, 2 workers, step [\d,]+, epoch \d+, \d+% of it"
    assert re.search(words, shown()), shown()
    edl.wait_nothing_left()


CELLS = [
    "import edl\nlearning_rate = 0.1",
    """
def train(epochs):
    import time, torch
    import edl.torch as edl
    edl.init()
    model = torch.nn.Linear(2, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=learning_rate), model=model)
    for ids in edl.elastic_shard_generator(24, epochs=epochs).batches(4):
        model(torch.ones(len(ids), 2)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        edl.notify_batch_end()
    if epochs == 1:
        raise ValueError("too short")
    return edl.rank(), float(model.weight.sum())
""",
    'results = edl.run(train, (3,), np=2, ring="torch", job="cell")\nprint(results)',
    'edl.run(train, kwargs={"epochs": 1}, np=1, ring="torch", max_restarts=0)',
    'edl.run(train, (10**6,), np=2, ring="torch", job="long")',
    "print('still here')",
]


@pytest.mark.soak  # a notebook of the documentation: test_notebooks.py
def test_a_notebook_runs_its_cells_function(edl, tmp_path: Path) -> None:
    """By a real kernel, which is interrupted as its interface does it."""
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason="no Jupyter here: install ipykernel and jupyter_client beside edl")
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    path = os.pathsep.join([edl.environ["PYTHONPATH"], *(one for one in sys.path if one)])
    manager.start_kernel(env={**edl.environ, "PYTHONPATH": path, "IPYTHONDIR": str(tmp_path)}, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=patient(END_S))
        for cell in CELLS[:2]:
            assert _executed(client, cell)["error"] == ""
        said = _executed(client, CELLS[2])
        assert "job cell: " in said["shown"] and "[(0, " in said["stdout"], said
        said = _executed(client, CELLS[3])
        assert "FunctionFailed" in said["error"] and 'raise ValueError("too short")' in said["error"], said
        client.execute(CELLS[4])
        edl.wait(lambda: edl.status("long")["state"] == "running", "the long job", END_S)
        manager.interrupt_kernel()
        assert "KeyboardInterrupt" in _answer(client)["error"]
        mark = Folder(edl.home / "jobs" / "long").read().mark
        assert not marked(mark), "no process is left"
        assert "still here" in _executed(client, CELLS[5])["stdout"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    edl.wait_nothing_left()


def _executed(client: Any, cell: str) -> dict[str, str]:
    client.execute(cell)
    return _answer(client)


def _answer(client: Any) -> dict[str, str]:
    """What a cell prints, shows and raises."""
    said = {"stdout": "", "stderr": "", "shown": "", "error": ""}
    while True:
        message = client.get_iopub_msg(timeout=patient(END_S))
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                said[content["name"]] += content["text"]
            case "display_data" | "update_display_data":
                said["shown"] += content["data"]["text/plain"] + "\n"
            case "error":
                said["error"] += "\n".join(content["traceback"])
            case "status" if content["execution_state"] == "idle" and message["parent_header"]["msg_type"] == (
                "execute_request"
            ):
                return said
