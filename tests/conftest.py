"""For all tests: machines are shared, so no example of a property test fails for having taken long, and workers that
wait for their peers leave the cores to others.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from warm_python import shared

from examples import USUAL, examples

settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=examples(USUAL),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")
for signum, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(signum) is signal.SIG_IGN:  # as under nohup: what tests start would inherit it
        signal.signal(signum, default)
os.environ.setdefault("EDL_SPIN_MS", "1")  # several jobs at a time: without naps they take 1.7 times the processor time
# And the threads of one sum would wait for one another, as they share the cores: small ones take thirty times as long.
# PyTorch reads how many as it is imported, which is before a warm worker has its own environment.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


gc.disable()  # until all tests are collected: frameworks come with a million objects, and none of them goes


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "write what follows in tests/transcripts anew, to be looked at"
    parser.addoption("--rewrite-transcripts", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts those of pytest-xdist: what they have in common lives as long as it."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        warm = contextlib.ExitStack()
        warm.enter_context(shared())
        config.add_cleanup(warm.close)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the end which parts of scripts/test failed before the tests: the end is what people read."""
    if before := os.environ.get("FAILED_BEFORE_TESTS"):
        terminalreporter.section("failed before the tests: " + before, red=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there once all tests are collected stays, and is not looked through again and again."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
