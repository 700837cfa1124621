"""`edl hosts` beside a job that is scaled: what horovodrun's own discovery reads of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MAIN
from elastic_job import Job
from horovod.runner.elastic.discovery import HostDiscoveryScript
from pace import patient

from edl.launch.job_records import Folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class Discovery(HostDiscoveryScript):  # type: ignore[misc]
    """`horovodrun --host-discovery-script "edl hosts ..."`, on a machine with such a home."""

    def __init__(self, edl, home: Path, *arguments: str, **environ: str) -> None:
        super().__init__(shlex.join([*MAIN, "hosts", "s", *arguments]), 1)
        self._environ = {**edl.environ, "EDL_HOME": str(home), **environ}

    def _execute_discovery_script(self) -> str:
        """As Horovod's, without the watcher that it starts beside each run, which costs seconds."""
        return subprocess.check_output(self._discovery_script, shell=True, env=self._environ, text=True)

    def __call__(self) -> dict[str, int]:
        found: dict[str, int] = self.find_available_hosts_and_slots()
        return found


@pytest.mark.soak  # what is printed when: tests/unit/launch/test_host_slots.py
def test_horovodruns_discovery_sees_the_size_that_is_asked_for(edl, tmp_path):
    where = ("-np", "2", "--hosts", "node1:2,node2:2")
    launcher = Discovery(edl, edl.home, *where)  # on the machine of `edl run`
    assert launcher() == {"node1": 2}  # before there is a job
    job = Job(edl, tmp_path / "out", workers=2, EDL_TEST_COORDINATOR="")
    job.wait_size(2)
    folder = Folder(edl.home / "jobs" / "s")
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(folder.secret.read_bytes())
    named = {"EDL_COORDINATOR": folder.read().coordinator, "EDL_SECRET_FILE": str(secret)}
    elsewhere = Discovery(edl, tmp_path / "other home", *where, **named)  # on any other
    assert launcher() == elsewhere() == {"node1": 2}

    for size, found in (("3", {"node1": 2, "node2": 1}), ("1", {"node1": 1})):
        assert edl("scale", "s", size).returncode == 0
        assert elsewhere() == found  # it is on record when `edl scale` returns
        edl.wait(lambda found=found: launcher() == found, f"{found} in the launcher's record")

    assert edl("stop", "s", timeout_s=60).returncode == 0
    job.launcher.communicate(timeout=patient(60))
    assert launcher() == {"node1": 2}  # the job is over, and may begin anew
    assert elsewhere() == {"node1": 1}  # and its coordinator gone: the last that was seen


def test_nothing_heavy_is_imported_for_it():
    """It runs each second, beside training."""
    script = (
        "import sys; from edl.cli import main; main(['hosts', 'nosuch']);"
        "print([name for name in ('numpy', 'grpc', 'kazoo', 'rich', 'horovod') if name in sys.modules])"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["localhost:1", "[]"]
