"""`edl run` with plain commands and its real ZooKeeper: starting, printing, ending, and wrong input."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import pytest
from pace import patient

from edl.launch.supervisor import END_GRACE_S, NEVER_JOINED

pytestmark = pytest.mark.integration

PYTHON = sys.executable
SLEEP = [PYTHON, "-c", "import time; print('up', flush=True); time.sleep(1000)"]
STUBBORN = [
    PYTHON,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)",
]


def edl_lines(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("edl: ")]


class TestPlainCommand:
    def test_lines_are_prefixed_and_the_job_is_handed_over(self, edl):
        script = (
            "import os, sys; print(os.environ['EDL_SLOT'], os.environ['EDL_JOB'], os.environ['EDL_NP']);"
            "print('oops', file=sys.stderr)"
        )
        done = edl("run", "-np", "2", "--job", "plain", PYTHON, "-c", script)
        assert done.returncode == 1, "no worker has joined the job: two trainings side by side are none"
        assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:0 plain 2", "[1]<stdout>:1 plain 2"]
        assert sorted(line for line in done.stderr.splitlines() if line[0] == "[") == [
            "[0]<stderr>:oops",
            "[1]<stderr>:oops",
        ]
        assert edl_lines(done.stderr) == [f"edl: job plain failed: {NEVER_JOINED}"]

    def test_settings_come_from_the_environment_too_and_other_spellings_do_not_leak(self, edl):
        names = "name for name in os.environ if ('NUM' in name or '_NP' in name) and 'THREADS' not in name"
        script = f"import os; print(sorted({names}))"
        done = edl("run", PYTHON, "-c", script, EDL_NUM_PROC="2", EDL_MAX_NUM_PROC="3")
        assert done.stdout.count("['EDL_NP']") == 2

    def test_the_secret_is_in_no_environment_and_on_no_command_line(self, edl):
        done = edl("run", "--job", "x", PYTHON, "-c", "import os; print(dict(os.environ))")
        secret = (edl.home / "jobs" / "x" / "secret").read_text()
        assert len(secret) == 64
        assert secret not in done.stdout
        assert "EDL_SECRET_FILE" in done.stdout

    def test_output_goes_to_files_as_well(self, edl, tmp_path):
        done = edl("run", "-np", "2", "--output-filename", "out", PYTHON, "-c", "print('hello')")
        assert done.stdout.count("hello") == 2
        assert (tmp_path / "out" / "rank.0" / "stdout").read_text() == "[0]<stdout>:hello\n"
        assert (tmp_path / "out" / "rank.1" / "stderr").read_text() == ""

    def test_what_is_left_running_in_the_background_is_ended(self, edl):
        done = edl("run", "bash", "-c", "sleep 1000 & setsid sleep 1000 & disown; echo done")
        assert done.stdout == "[0]<stdout>:done\n"
        assert edl.processes() == {}


class TestFailure:
    def test_a_script_that_raises_shows_its_own_traceback_and_one_line_of_ours(self, edl):
        done = edl("run", "-np", "1", "--job", "bad", PYTHON, "-c", "raise ValueError('boom')")
        assert done.returncode == 1
        assert done.stderr.count("ValueError: boom") == 1
        (line,) = edl_lines(done.stderr)
        assert line == "edl: job bad failed: worker 0 exited with code 1"

    def test_one_worker_that_fails_ends_the_others(self, edl):
        script = "import os, time; time.sleep(1000) if os.environ['EDL_SLOT'] == '0' else exit(3)"
        done = edl("run", "-np", "2", "--job", "bad", PYTHON, "-c", script)
        assert done.returncode == 1
        assert edl_lines(done.stderr)[0].startswith("edl: job bad failed: worker 1 exited with code 3")
        assert edl.processes() == {}

    def test_a_killed_worker_is_told_from_one_that_exited(self, edl):
        done = edl("run", "bash", "-c", "kill -9 $$")
        assert "worker 0 was killed by SIGKILL" in done.stderr


class TestBeforeAnyWorkerStarts:
    """Each of these is found out before the command runs even once."""

    def failing(self, edl, *arguments: str, **environ: str) -> str:
        begun = time.monotonic()
        done = edl("run", *arguments, PYTHON, "-c", "print('ran')", **environ)
        assert time.monotonic() - begun < patient(15)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert edl.processes() == {}
        return done.stderr

    @pytest.mark.slow
    def test_a_coordinator_where_nothing_listens(self, edl):
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))  # bound and not listening: no other process gets it
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            assert f"{address} refuses the connection" in self.failing(edl, "--coordinator", address)

    @pytest.mark.soak  # what is said then: test_security.py
    def test_a_coordinator_that_is_something_else(self, edl):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            assert "it is no ZooKeeper server" in self.failing(edl, "--coordinator", address)

    def test_a_port_in_use(self, edl):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            assert f"port {port} on 127.0.0.1 is in use" in self.failing(edl, "--zookeeper-port", port)

    def test_no_java(self, edl, tmp_path):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "setpriv").symlink_to("/usr/bin/setpriv")
        bare = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""}
        words = self.failing(edl, "--local-coordinator", "zookeeper", **bare)
        assert "needs Java and there is none: run `apt-get install" in words

    def test_a_place_for_output_that_is_none(self, edl, tmp_path):
        (tmp_path / "file").touch()
        assert "--output-filename: cannot make" in self.failing(edl, "--output-filename", "file")

    @pytest.mark.soak  # what is said then: test_security.py
    def test_a_host_that_does_not_exist(self, edl):
        assert "does not resolve" in self.failing(edl, "--coordinator", "nohost.invalid:2181")

    def test_a_secret_that_cannot_be_read(self, edl):
        assert "none (--secret-file or EDL_SECRET_FILE) cannot be read: No such file" in self.failing(
            edl, "--secret-file", "none"
        )

    def test_a_wrong_java(self, edl):
        assert "EDL_JAVA=/none is no program" in self.failing(edl, EDL_JAVA="/none")

    def test_a_foreign_edl_package(self, edl, tmp_path):
        (tmp_path / "other" / "edl").mkdir(parents=True)
        (tmp_path / "other" / "edl" / "__init__.py").touch()
        path = os.pathsep.join([str(tmp_path / "other"), edl.environ["PYTHONPATH"]])
        assert "finds another package" in self.failing(edl, PYTHONPATH=path)

    def test_a_name_that_is_in_use(self, edl):
        first = edl.start("run", "--job", "mine", *SLEEP)
        edl.wait_process("time.sleep")
        assert "job mine is running here already" in self.failing_name(edl)
        first.send_signal(signal.SIGINT)
        assert first.wait() == 1

    def failing_name(self, edl) -> str:
        done = edl("run", "--job", "mine", "true")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        return done.stderr


class TestInterrupt:
    def end(self, edl, launcher, *signals: signal.Signals) -> float:
        """Send the signals; returns how long it took."""
        begun = time.monotonic()
        for signum in signals:
            launcher.send_signal(signum)
        _, err = launcher.communicate(timeout=patient(30))
        took = time.monotonic() - begun
        assert launcher.returncode == 1
        assert edl_lines(err) == ["edl: job x interrupted"]
        assert edl.processes() == {}
        assert edl.json("status", "x")["state"] == "failed"
        assert edl.json("status", "x")["reason"] == "interrupted"
        return took

    @pytest.mark.parametrize(
        "signum",
        [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.soak) for one in (signal.SIGTERM, signal.SIGHUP))],
    )
    def test_ends_everything(self, edl, signum):
        launcher = edl.start("run", "-np", "2", "--job", "x", *SLEEP)
        edl.wait_process("time.sleep", 2)
        assert self.end(edl, launcher, signum) < 10

    def test_reaches_workers_behind_a_shell(self, edl):
        launcher = edl.start("run", "--job", "x", "bash", "-c", "sleep 1000; true")
        edl.wait_process("sleep 1000", 2)
        assert self.end(edl, launcher, signal.SIGINT) < 10

    @pytest.mark.slow
    def test_kills_a_stubborn_worker_after_a_grace(self, edl):
        launcher = edl.start("run", "--job", "x", *STUBBORN)
        assert launcher.stdout.readline() == "[0]<stdout>:up\n"
        assert END_GRACE_S <= self.end(edl, launcher, signal.SIGINT) < patient(END_GRACE_S + 10)

    @pytest.mark.soak  # so it is in test_run_job.py
    def test_twice_kills_it_at_once(self, edl):
        launcher = edl.start("run", "--job", "x", *STUBBORN)
        assert launcher.stdout.readline() == "[0]<stdout>:up\n"
        (worker,) = edl.wait_process("SIG_IGN")
        begun = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.2)  # two at once are one to the kernel
        launcher.send_signal(signal.SIGINT)
        edl.wait(lambda: worker not in edl.processes(), "the worker's end")
        assert time.monotonic() - begun < patient(END_GRACE_S)
        self.end(edl, launcher)

    # Some of the moments; all of them, without processes: `tests/unit/launch/test_interrupted_start.py`.
    @pytest.mark.parametrize(
        "moment",
        [
            pytest.param("record.json", marks=pytest.mark.soak),
            pytest.param("secret", marks=pytest.mark.soak),
            pytest.param("zookeeper/lock", marks=pytest.mark.soak),
            pytest.param("zookeeper/zoo.cfg", marks=pytest.mark.soak),
            "zookeeper/data/version-2",
        ],
    )
    def test_at_any_moment_of_the_start(self, edl, moment):
        launcher = edl.start("run", "-np", "3", "--job", "x", *SLEEP)
        edl.wait((edl.home / "jobs" / "x" / moment).exists, moment)
        assert self.end(edl, launcher, signal.SIGINT) < 10

    @pytest.mark.soak  # without processes: tests/unit/launch/test_interrupted_start.py
    @pytest.mark.parametrize("started", [1, 2, 3, 4])
    def test_between_two_workers(self, edl, started):
        launcher = edl.start("run", "-np", "5", "--job", "x", *SLEEP)
        edl.wait_process("time.sleep", started)
        assert self.end(edl, launcher, signal.SIGINT) < 10

    def test_nohup_is_respected(self, edl):
        launcher = edl.start("run", "--job", "x", *SLEEP, under=["nohup"])
        edl.wait_process("time.sleep")
        launcher.send_signal(signal.SIGHUP)
        assert edl.json("status", "x")["state"] == "starting"
        assert edl.wait_process("time.sleep")
        self.end(edl, launcher, signal.SIGTERM)


class TestKilledLauncher:
    @pytest.mark.soak  # so it is in test_run_job.py
    def test_leaves_nothing_and_its_record_says_so(self, edl):
        launcher = edl.start("run", "-np", "2", "--job", "x", "bash", "-c", "sleep 1000; true")
        edl.wait_process("sleep 1000", 4)
        begun = time.monotonic()
        launcher.kill()
        edl.wait_nothing_left()
        assert time.monotonic() - begun < patient(10)
        status = edl.json("status", "x")
        assert (status["state"], status["reason"]) == ("failed", "edl run was killed")
        assert edl("run", "--job", "x", "true").returncode == 1, "the name is free again"

    @pytest.mark.parametrize(
        "moment",
        [
            *(pytest.param(moment, marks=pytest.mark.soak) for moment in ("record.json", "zookeeper/zoo.cfg")),
            "zookeeper/data/version-2",
        ],
    )
    def test_during_the_start(self, edl, moment):
        launcher = edl.start("run", "-np", "2", "--job", "x", *SLEEP)
        edl.wait((edl.home / "jobs" / "x" / moment).exists, moment)
        launcher.kill()
        edl.wait_nothing_left()


class TestOtherCommands:
    @pytest.mark.soak  # so it is in test_run_job.py
    def test_a_job_that_runs_is_seen_and_stopped(self, edl):
        launcher = edl.start("run", "-np", "2", "--job", "x", *SLEEP)
        edl.wait_process("time.sleep", 2)
        seen = edl.json("status")
        assert (seen["job"], seen["state"], seen["target"], seen["workers"]) == ("x", "starting", 2, [])
        assert "job x: starting" in edl("status", "x").stdout
        stopped = edl("stop", "x")
        assert (stopped.returncode, stopped.stdout) == (0, "job x has ended\n")
        assert launcher.wait(timeout=patient(10)) == 1
        assert edl("stop", "x").stdout == "job x is over already (failed)\n"

    def test_without_a_living_job_status_lists_those_that_were(self, edl):
        assert (
            edl("status").stdout == "no job was started on this machine: `edl run -np 2 python train.py` starts one\n"
        )
        edl("run", "--job", "x", "true")
        assert edl.json("status")["jobs"][0]["state"] == "failed"
        listed = edl("status").stdout.splitlines()
        assert listed[0].split() == ["job", "state", "started", "command"]
        assert listed[1].split()[:2] == ["x", "failed"]
        assert edl("events", "x").stdout == ""

    def test_a_reader_of_ours_that_goes_away_is_no_failure_of_the_job(self, edl):
        launcher = edl.start("run", "--job", "x", PYTHON, "-c", "[print(n) for n in range(100_000)]")
        assert launcher.stdout.readline() == "[0]<stdout>:0\n"
        launcher.stdout.close()
        assert launcher.wait(timeout=patient(30)) == 1
        assert edl.json("status", "x")["reason"] == NEVER_JOINED
