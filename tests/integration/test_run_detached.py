"""`edl run --detach`, and what `edl run` keeps of what a job has shown, with plain commands."""

from __future__ import annotations

import json
import os
import sys

import pytest

from edl.client import Job

pytestmark = pytest.mark.integration
SCRIPT = "import time; print('up', flush=True); time.sleep(1000)"


@pytest.mark.slow
def test_a_job_in_the_background_is_looked_at_and_stopped(edl):
    done = edl("run", "--detach", "-np", "2", "--job", "apart", sys.executable, "-c", SCRIPT)
    assert (done.returncode, done.stdout) == (0, "apart\n"), done.stderr
    assert "edl logs apart --follow" in done.stderr
    record = json.loads((edl.home / "jobs" / "apart" / "record.json").read_text())
    assert os.getsid(record["launcher_pid"]) == record["launcher_pid"], "a closed terminal would end it"
    kept = edl.home / "jobs" / "apart" / "logs" / "output.log"
    edl.wait(lambda: kept.read_text().count("up") == 2, "both have printed")
    assert sorted(edl("logs", "apart").stdout.splitlines())[:2] == ["[0]<stdout>:up", "[1]<stdout>:up"]
    assert edl("status", "apart").stdout.startswith("job apart: starting")
    following, waiting = edl.start("logs", "apart", "--follow"), edl.start("wait", "apart")
    assert edl("stop", "apart").stdout == "job apart has ended\n"
    assert following.communicate()[0].splitlines()[-1] == "edl: job apart interrupted"
    assert waiting.communicate()[1] == "edl: job apart failed: interrupted\n"
    assert (following.returncode, waiting.returncode) == (0, 1)
    edl.wait_nothing_left()


@pytest.mark.slow
def test_a_client_waits_for_a_job_that_has_just_been_started(edl):
    script = "import time, edl.torch as edl; time.sleep(1); edl.init(); [edl.notify_batch_end() or time.sleep(0.01)"
    script += " for _ in edl.elastic_shard_generator(100, epochs=10**6).batches(1)]"
    done = edl("run", "-d", "-np", "2", "--ring", "torch", "--job", "young", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    with Job("young") as job:
        assert job.wait(timeout=120).size == 2
        job.stop()
    edl.wait_nothing_left()


@pytest.mark.slow
def test_what_keeps_a_job_from_beginning_is_said_where_it_was_typed(edl):
    flags = ("--job", "x", "--coordinator", "127.0.0.1:1", sys.executable, "-c", SCRIPT)
    there, apart = edl("run", *flags), edl("run", "-d", *flags)
    assert (apart.returncode, apart.stdout, apart.stderr) == (there.returncode, "", there.stderr)
    assert there.returncode and there.stderr.count("\n") == 1
    edl.wait_nothing_left()


def test_an_interrupt_before_it_has_begun_ends_it(edl):
    process = edl.start("run", "-d", "--job", "x", sys.executable, "-c", SCRIPT)
    record = edl.home / "jobs" / "x" / "record.json"
    edl.wait(record.exists, "the launcher is there")
    process.terminate()
    out, err = process.communicate()
    if json.loads(record.read_text())["coordinator"]:
        pytest.skip("it had begun by then")
    assert (process.returncode, out) == (1, "") and "interrupted" in err
    edl.wait_nothing_left()


def test_a_job_inherits_no_variable_of_the_command_that_started_it(edl):
    script = "import os; print(sorted(name for name in os.environ if name in ('EDL_JSON', 'EDL_WAIT', 'EDL_CLUSTER')))"
    done = edl("run", sys.executable, "-c", script, EDL_JSON="1", EDL_WAIT="1", EDL_CLUSTER="http://127.0.0.1:1")
    assert done.stdout == "[0]<stdout>:['EDL_CLUSTER']\n"
