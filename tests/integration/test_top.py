"""`edl top` on a terminal: it goes on until the job is over, or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from conftest import MAIN
from elastic_job import Job
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
AWAY = "\x1b[?1049l"  # back from the screen that it drew on to what was there before


class Terminal:
    """`edl top s` on one. All that it writes is read at once: a terminal that is full would hold it up."""

    def __init__(self, edl) -> None:
        self._master, slave = pty.openpty()
        environ = {**edl.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "60"}
        command = [*MAIN, "top", "s"]
        self.process = subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self._told = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: it has ended
            while piece := os.read(self._master, 65536):
                self._told += piece

    @property
    def raw(self) -> str:
        return self._told.decode(errors="replace")

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.raw)

    def steps(self) -> set[str]:
        """That it has shown."""
        return set(re.findall(r"^step +([\d,]+)", self.text, re.MULTILINE))

    def end(self) -> str:
        """By itself, without a fault; what stays on the terminal."""
        assert self.process.wait(patient(60)) == 0, self.text
        self._reader.join(10)
        os.close(self._master)
        assert "Traceback" not in self.text
        before, away, after = self.raw.rpartition(AWAY)
        assert before and away
        return ESCAPES.sub("", after)


@pytest.mark.slow
def test_a_job_is_drawn_again_and_again_until_it_is_over_or_nobody_looks(edl, tmp_path: Path) -> None:
    job = Job(edl, tmp_path, 1)
    job.wait_size(1)
    left, stays = Terminal(edl), Terminal(edl)
    for one in (left, stays):
        edl.wait(lambda one=one: len(one.steps()) >= 3, "it is drawn as it goes on", 60)
        assert "job s  running" in one.text
    left.process.send_signal(signal.SIGINT)
    assert left.end().strip() == ""
    job.finish()
    after = stays.end()
    assert "job s  finished" in after
    assert "job_finished" in after
