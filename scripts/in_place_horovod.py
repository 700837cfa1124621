"""For pytest in each worker of a job: Horovod's own tests, one after the other, at the same one on all workers.

Owns: that `hvd.init()` is called once and `hvd.shutdown()` does nothing, as stock Horovod wants it too; and telling
how each test ended here, to a file of this process in the folder that THEIR_TESTS_TOLD names. After a test that has
failed a collective is tried; unless that works, and the test has failed alike on all of so many workers
(THEIR_TESTS_WORKERS), the process ends: a ring that it has broken is no other test's. THEIR_TESTS_DONE names a file
with the tests that have ended before; THEIR_TESTS_FACE is what they call hvd.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

LOOK_S = 0.01


def pytest_collection_finish() -> None:
    """Their modules are imported, and have said what they want in the environment."""
    hvd: Any = importlib.import_module(os.environ["THEIR_TESTS_FACE"])
    hvd.init()
    hvd.init = hvd.shutdown = lambda *_, **__: None


def pytest_collection_modifyitems(items: list[Any]) -> None:
    done = set(json.loads(Path(os.environ["THEIR_TESTS_DONE"]).read_text()))
    items[:] = [item for item in items if item.nodeid not in done and "gpu" not in item.name]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool:
    folder = Path(os.environ["THEIR_TESTS_TOLD"])
    told = folder / f"{os.getpid()}.jsonl"
    _tell(told, item.nodeid, "begun", "")
    outcome, why = "passed", ""
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.outcome != "passed" and outcome == "passed":
            outcome, why = report.outcome, _first_line(report)
            sys.stdout.write(f"{item.nodeid}\n{report.longreprtext}\n")
    _tell(told, item.nodeid, outcome, why)
    sys.stdout.flush()
    if not _goes_on(folder, item.nodeid, int(os.environ["THEIR_TESTS_WORKERS"])):
        _tell(told, item.nodeid, "over", "")
        os._exit(0)
    return True


def _tell(told: Path, *words: str) -> None:
    with told.open("a") as file:
        file.write(json.dumps(words) + "\n")


def _goes_on(folder: Path, test: str, workers: int) -> bool:
    """All workers have ended it, and none is left with a broken ring. Whoever has started this job ends what waits for
    too long.
    """
    ended: list[tuple[str, str]] = []
    while len(ended) < workers:
        time.sleep(LOOK_S)
        ended = [(outcome, why) for name, outcome, why in lines(folder) if name == test and outcome != "begun"]
    if "failed" not in {outcome for outcome, _ in ended}:
        return True
    return len(set(ended)) == 1 and _works(test)


def _works(test: str) -> bool:
    """The ring does: all workers try it."""
    face = os.environ["THEIR_TESTS_FACE"]
    framework: Any = importlib.import_module(face.rpartition(".")[2])
    hvd: Any = importlib.import_module(face)
    try:
        hvd.allreduce(framework.ones([1]), name=f"after {test}")
    except Exception as error:  # noqa: BLE001 - whatever it is that a broken ring raises
        sys.stdout.write(f"after {test}: {error!r}\n")
        return False
    return True


def lines(folder: Path) -> Iterator[list[str]]:
    """What all workers have told; a line that is being written comes later."""
    for told in sorted(folder.glob("*.jsonl")):
        for line in told.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _first_line(report: Any) -> str:
    if isinstance(report.longrepr, tuple):  # of what is skipped: where, and why
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
