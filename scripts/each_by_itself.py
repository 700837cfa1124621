"""For pytest: each test in a process of its own, which is forked once all is imported; a job of edl has one training.

Owns: that, and telling how each test ended to the file that THEIR_TESTS_TOLD names. THEIR_TESTS_IMPORT: a module that
no test need import again.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol


def pytest_collection_finish() -> None:
    if name := os.environ.get("THEIR_TESTS_IMPORT"):
        importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool:  # noqa: ARG001 - the hook's name
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    outcome, why = _ended(item)
    with Path(os.environ["THEIR_TESTS_TOLD"]).open("a") as told:
        told.write(json.dumps([item.nodeid, outcome, why]) + "\n")
    sys.stdout.write(f"{outcome} {item.nodeid} {why}\n")
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _ended(item: Any) -> tuple[str, str]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setsid()
        _run(item, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as words:
        ready, _, _ = select.select([words], [], [], float(os.environ["THEIR_TESTS_SECONDS"]))
        said = words.read() if ready else b""
    if not ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        outcome, why = json.loads(said)
        return outcome, why
    return "failed", "it did not end in time" if not ready else f"its process ended with {status}"


def _run(item: Any, writing: int) -> None:
    """Never comes back."""
    outcome, why = "passed", ""
    try:
        for report in runtestprotocol(item, log=False, nextitem=None):
            if report.outcome != "passed" and outcome == "passed":
                outcome, why = report.outcome, _first_line(report)
                sys.stdout.write(f"{report.longreprtext}\n")
        with os.fdopen(writing, "w") as words:
            json.dump([outcome, why], words)
        _end_job()
        sys.stdout.flush()
    finally:
        os._exit(0)  # whatever has happened, this process must not go on with the next test


def _end_job() -> None:
    """Of edl, where the test began one."""
    for name in ("edl.torch", "edl.tensorflow"):
        module = sys.modules.get(name)
        if module is not None:
            try:
                module.shutdown()
            except BaseException as error:  # noqa: BLE001 - the test has ended before, however its job does
                sys.stdout.write(f"the job of edl: {error!r}\n")


def _first_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
