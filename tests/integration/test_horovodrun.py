"""Plain `horovodrun`, as a user types it: what its driver decides happens without a stop, and no crash ends the job."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_job import Job
from pace import patient

from edl.core.audit.sample_account import account
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")
# The same, but that it knows already what it would import Horovod and TensorFlow for: three seconds of a core.
# One test types the plain command.
KNOWING = "from horovod.runner import launch; launch.gloo_built = lambda verbose: True; launch.run_commandline()"
BOOT_S = 90
EPOCHS = 30
CHECKPOINTS = Path(__file__).parents[2] / "docs" / "checkpoints.md"
LINES = re.compile(r"```bash\n(export EDL_JOB=mnist.*?)```", re.DOTALL)


class HorovodrunJob(Job):
    """Its size follows a file that a discovery script shows."""

    def run(self, script: Path) -> list[str]:
        """A cold one: what horovodrun has started is split in two, and one half started once more."""
        return [sys.executable, str(script)]

    @property
    def hosts(self) -> Path:
        return self.out / "hosts"

    def launch(self, workers: int, **environ: str) -> subprocess.Popen[str]:
        self.out.mkdir(exist_ok=True)
        script = self.out / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {self.hosts}\n")
        script.chmod(0o755)
        self.discover(workers)
        elastic = ["--min-np", "1", "--max-np", "4", "--host-discovery-script", str(script)]
        horovodrun = [sys.executable, "-c", KNOWING]
        command = [*horovodrun, "-np", str(workers), *elastic, "--network-interface", "lo", *self.command]
        return self.edl.start_command(command, **self.environ, EDL_JOB="s", EDL_MAX_RESTARTS="3", **environ)

    def discover(self, slots: int) -> None:
        self.discover_hosts(localhost=slots)

    def discover_hosts(self, **slots: int) -> None:
        working = self.hosts.with_suffix(".new")
        working.write_text("".join(f"{host}:{number}\n" for host, number in slots.items()))
        working.rename(self.hosts)


@pytest.mark.parametrize("kind", ["zookeeper", pytest.param("etcd", marks=pytest.mark.soak)])
def test_it_grows_and_shrinks_with_what_is_discovered_and_survives_a_crash(edl, tmp_path, kind):
    job = HorovodrunJob(edl, tmp_path / "out", 1, EDL_LOCAL_COORDINATOR=kind)
    job.wait_size(1)
    job.wait_steps(5)
    job.discover(2)
    job.wait_size(2)
    job.wait_steps(5)
    assert any("--listen-client-urls" in line for line in edl.processes().values()) == (kind == "etcd")

    victim = next(worker for worker in job.status()["workers"] if worker["rank"] == 0)
    os.kill(victim["pid"], signal.SIGKILL)
    edl.wait(lambda: victim["id"] not in [w["id"] for w in job.status()["workers"]], "it is lost")
    job.wait_size(2)  # its stand-in has started another one; horovodrun has not seen any of it
    job.wait_steps(5)

    job.discover(1)
    job.wait_size(1)
    events = job.finish()
    sizes = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
    assert sizes == [(1, 2), (2, 1), (1, 2), (2, 1)]
    assert [event["size"] for event in events if event["kind"] == "recounted"] == [2, 1]
    job.expect_exactly_once()
    job.expect_equal_models()


# soak: the driver's word: tests/unit/core/driver/test_horovod_counts.py, tests/simulation/test_driver_counts.py
@pytest.mark.soak
def test_a_host_is_left_in_the_two_steps_that_edl_migrate_names(edl, tmp_path):
    """Both names are this machine's; to horovodrun they are two hosts."""
    job = HorovodrunJob(edl, tmp_path / "out", 1)
    [before] = job.wait_size(1)["workers"]
    job.wait_steps(5)
    refused = edl("migrate", "s", "--from", before["host"])
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert f"job s does not leave {before['host']}: horovodrun's driver starts workers" in refused.stderr
    assert f"beside {before['host']}, and without {before['host']} once `edl status s` shows" in refused.stderr
    assert job.status()["size"] == 1

    job.discover_hosts(**{"localhost": 1, "127.0.0.1": 1})
    job.wait_size(2)
    job.wait_steps(5)
    job.discover_hosts(**{"127.0.0.1": 1})
    edl.wait(lambda: before["id"] not in [one["id"] for one in job.status()["workers"]], "it has left")
    job.wait_size(1)
    job.wait_steps(5)
    events = job.finish()
    sizes = [(event["from"], event["to"]) for event in events if event["kind"] == "scaled"]
    assert sizes == [(1, 2), (2, 1)]
    assert not {"batch_voided", "worker_lost"} & {event["kind"] for event in events}
    job.expect_exactly_once()
    job.expect_equal_models()


@pytest.mark.soak  # as stand-ins have it: tests/unit/horovodrun/test_proxy_machine.py
def test_without_horovodrun_the_workers_finish_the_job(edl, tmp_path):
    job = HorovodrunJob(edl, tmp_path / "out", 2, epochs=5)
    job.wait_size(2)
    job.wait_steps(5)
    job.launcher.kill()
    job.launcher.communicate()
    edl.wait(lambda: len(job.results()) == 2, "both have come to their end", timeout_s=120)
    edl.wait_nothing_left()
    job.expect_exactly_once()
    job.expect_equal_models()
    assert not {"worker_lost", "worker_left", "scaled"} & {event["kind"] for event in job.events()}


@pytest.mark.soak  # that it runs workers is shown above
def test_a_number_of_workers_that_does_not_change(edl, tmp_path):
    command = [sys.executable, str(Path(__file__).parents[2] / "examples" / "torch_digits.py"), "--epochs", "1"]
    process = edl.start_command([HOROVODRUN, "-np", "2", *command])
    out, err = process.communicate(timeout=patient(BOOT_S))
    assert process.returncode == 0, out + err
    assert "rank 0 of 2: accuracy" in out
    assert "rank 1 of 2: accuracy" in out
    edl.wait_nothing_left()


@pytest.mark.soak  # what a stand-in does then: tests/unit/horovodrun/test_proxy_machine.py
def test_interrupted_it_leaves_nothing_behind_and_is_no_success(edl, tmp_path):
    """Of the job: two threads of horovodrun's race for the exit status, and it may be 0 with any script."""
    job = HorovodrunJob(edl, tmp_path / "out", 1)
    job.wait_size(1)
    job.wait_steps(3)
    job.launcher.send_signal(signal.SIGINT)
    told = "".join(job.launcher.communicate(timeout=patient(60)))
    assert edl.events("s")[-1]["kind"] == "job_failed", told
    assert "those that have it were told to leave" in told
    edl.wait_nothing_left()


class ShelledJob(HorovodrunJob):
    """As a batch system has it: a shell gets the signal, by the lines of docs/checkpoints.md."""

    def launch(self, workers: int, **environ: str) -> subprocess.Popen[str]:
        self.out.mkdir(exist_ok=True)
        self.discover(workers)
        hosts, train = self.out / "hosts.sh", self.out / "train.sh"
        hosts.write_text(f"#!/bin/sh\ncat {self.hosts}\n")
        train.write_text(f"#!/bin/sh\nexec {shlex.join(self.command)}\n")
        for script in (hosts, train):
            script.chmod(0o755)
        lines = LINES.search(CHECKPOINTS.read_text())
        assert lines, "the lines are gone from the docs"
        typed = lines[1].replace("python train.py", str(train)).replace("./hosts.sh", str(hosts))
        typed = typed.replace("horovodrun -np 2", f"horovodrun -np {workers} --network-interface lo")
        typed = typed.replace("~/checkpoints", str(self.out.parent / "checkpoints"))
        path = f"{Path(HOROVODRUN).parent}:{os.environ['PATH']}"
        return self.edl.start_command(["bash", "-c", typed], **self.environ, PATH=path, **environ)


@pytest.mark.soak
def test_a_shell_that_gets_the_signal_has_the_job_saved_and_the_same_lines_go_on(edl, tmp_path):
    first = ShelledJob(edl, tmp_path / "first", 2, epochs=EPOCHS)
    edl.wait(lambda: (edl.status("mnist") or {}).get("step", 0) >= 10, "it trains", timeout_s=BOOT_S)
    first.launcher.send_signal(signal.SIGTERM)
    told = "".join(first.launcher.communicate(timeout=patient(60)))
    assert first.launcher.returncode == 75, told
    saved = edl.events("mnist")[-1]
    assert edl.status("mnist")["state"] == "preempted", saved
    edl.wait_nothing_left()

    checkpoints = tmp_path / "checkpoints" / "mnist"
    newest = max(path.name for path in checkpoints.glob("0*-*"))
    assert newest.startswith("0001-"), newest
    second = ShelledJob(edl, tmp_path / "second", 1, epochs=EPOCHS)
    told = "".join(second.launcher.communicate(timeout=patient(BOOT_S)))
    assert second.launcher.returncode == 0, told
    edl.look_away("mnist")
    assert edl.status("mnist")["base"] == int(newest.split("-")[2])
    assert f"job mnist goes on from step {int(newest.split('-')[2])}, {checkpoints / newest}" in told
    assert max(path.name for path in checkpoints.glob("0*-*")).startswith("0002-")
    whole = account([*read(first.audit), *read(second.audit)])
    assert whole.clean, whole
    edl.wait_nothing_left()


@pytest.mark.soak  # the check itself: tests/unit/trainer/test_fork_stand_in.py
def test_a_script_that_calls_init_too_late_is_told_so(edl, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import threading, time\nimport edl.torch as edl\n"
        "threading.Thread(target=time.sleep, args=(60,), name='loader', daemon=True).start()\nedl.init()\n"
    )
    process = edl.start_command([HOROVODRUN, "-np", "1", sys.executable, str(script)])
    out, err = process.communicate(timeout=patient(BOOT_S))
    assert process.returncode != 0
    assert "call edl.init() before any thread is started (loader run)" in out + err
    edl.wait_nothing_left()
