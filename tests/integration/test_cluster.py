"""A cluster with real jobs on this machine: shrunk, sent away and resumed, while its processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from pace import patient
from test_forked_newcomers import stack
from warm_python import WarmPython

from edl.cli import main
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.store import AccessDenied, connect
from edl.core.audit.sample_account import account
from edl.launch.job_processes import marked
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.worker_folders import mark_of, script_of
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
DIGITS = Path(__file__).parents[2] / "examples" / "torch_digits.py"
SHARDED = Path(__file__).parent / "jobs" / "sharded.py"
SAMPLES = 1797


class LiveCluster:
    """Of two devices."""

    def __init__(self, home: Path, warm: WarmPython) -> None:
        self.home, self.places, self.warm = home, ClusterHome(home), warm

    def __call__(self, *words: str, code: int = 0, **environ: str) -> str:
        """In this process; what it has printed."""
        out, err = io.TextIOWrapper(raw := io.BytesIO(), "utf-8", write_through=True), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            for name in [name for name in os.environ if name.startswith("EDL_") and not name.startswith("EDL_TEST")]:
                patch.delenv(name)
            for name, value in {"EDL_HOME": str(self.home), "EDL_WARM_STARTS": "off", **environ}.items():
                patch.setenv(name, value)
            found = main(list(words))
        printed = raw.getvalue().decode()
        assert found == code, (found, printed, err.getvalue())
        return printed + err.getvalue()

    def submit(self, name: str, *flags: str, epochs: int = 2, step_s: float = 0.02) -> Path:
        """Digits; the folder of its audit."""
        audit = self.home / "audits" / name
        line = [*self.warm.command(DIGITS), "--epochs", str(epochs), "--step-time", str(step_s)]
        self("submit", "--name", name, *flags, *line, EDL_AUDIT=str(audit))
        return audit

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("describe", name, "--json"))
        return found

    def until(self, name: str, *states: str, **wanted: Any) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            job = self.job(name)
            assert job["state"] in states or job["state"] not in {"failed", "cancelled", "finished"}, job
            return job if job["state"] in states and all(job[key] >= least for key, least in wanted.items()) else None

        found: dict[str, Any] = wait(there, f"{name} is {states} {wanted}")
        return found

    def processes(self, worker: str) -> list[int]:
        folders = self.places.folder.glob(f"nodes/*/workers/{worker}")
        return [pid for folder in folders for pid in marked(mark_of(folder))]

    def scripts(self, name: str) -> list[int]:
        """The pids of the job's workers that live, as they came."""
        folders = [
            self.places.folder / "nodes" / "localhost" / "workers" / one["id"] for one in self.job(name)["workers"]
        ]
        return [pid for folder in folders if (pid := script_of(folder)) and Path(f"/proc/{pid}").exists()]

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        pid = wait(lambda: self.places.pid(name), f"{name} lives")
        os.kill(pid, number)
        return int(pid)

    def leader(self) -> str:
        def leads() -> str:
            return str(json.loads(self("cluster", "status", "--json"))["scheduler"])

        return str(wait(leads, "a scheduler leads"))

    def expect_exactly_once(self, audit: Path, epochs: int = 2) -> None:
        found = account(read(audit))
        assert found.clean, found
        assert [(epoch.total, epoch.trained) for epoch in found.epochs] == [(SAMPLES, SAMPLES)] * epochs


def wait(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - began < patient(timeout_s), f"never: {what}"
        time.sleep(0.1)
    return value


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster") / "home", warm)
    cluster("cluster", "start", "--nodes", "localhost:2", "--policy", "fifo", "--session-timeout", "3", "--http", "0")
    try:
        yield cluster
    finally:
        cluster("cluster", "stop", "--now")
        assert cluster.places.living() == {}


def test_a_command_runs_and_what_it_prints_is_kept(cluster: LiveCluster) -> None:
    assert (
        cluster("submit", "--name", "hello", "sh", "-c", "echo $EDL_JOB on $CUDA_VISIBLE_DEVICES; echo err >&2")
        == "hello\n"
    )
    assert "job hello has finished" in cluster("wait", "hello")
    assert set(cluster("logs", "hello").splitlines()) == {"hello on 0", "err"}
    assert cluster("logs", "hello", "--worker", "hello-1") == cluster("logs", "hello", "-f")
    [job] = [job for job in json.loads(cluster("queue", "--json"))["jobs"] if job["name"] == "hello"]
    assert (job["state"], job["workers"]) == ("finished", [])
    log = cluster.places.job_logs("hello") / "hello-1.log"
    assert log.stat().st_mode & 0o777 == 0o600
    expect_unreadable_by_another_user(log, cluster.home)


def expect_unreadable_by_another_user(log: Path, home: Path) -> None:
    """From any folder of the cluster's, though that user had come into it."""
    assert log.read_text()
    if os.geteuid() != 0:
        return  # no other user can be played
    for folder in [folder for folder in log.parents if folder.is_relative_to(home)]:
        read = subprocess.run(
            ["cat", log.relative_to(folder)],
            check=False,
            cwd=folder,
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
        )
        assert (read.returncode, read.stdout) == (1, b""), folder
        assert b"Permission denied" in read.stderr


def test_a_job_is_submitted_from_elsewhere_though_the_http_server_is_killed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    given = cluster.places.config().http
    assert given is not None
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(cluster("cluster", "token", "ann"))
    url = given.url

    def there(*words: str, code: int = 0) -> str:
        return cluster(*words, code=code, EDL_CLUSTER=url, EDL_TOKEN_FILE=str(token), EDL_HOME=str(tmp_path))

    line = ("--name", "far", "--folder", str(tmp_path), "--env", "WORD=hello", "sh", "-c", "echo $WORD from $PWD")
    assert there("submit", *line) == "far\n"
    cluster.kill("http")
    assert "job far has finished" in there("wait", "far")
    assert there("logs", "far", "-f") == f"hello from {tmp_path}\n"
    assert "user ann" in there("describe", "far")
    cluster("submit", "--name", "near", "true")
    assert "and this token ann's" in there("logs", "near", code=2)
    assert "far" in there("queue")
    assert "far,ann,finished" in there("cluster", "accounts", "--csv")


@pytest.mark.soak  # what it asks for and says: tests/unit/cli/test_cluster_scale.py
def test_edl_scale_asks_the_queue_for_a_job_of_the_cluster(cluster: LiveCluster) -> None:
    given = cluster.places.config().http
    assert given is not None
    cluster.submit("sized", "--min-np", "1", "-np", "2", "--max-np", "2", epochs=500, step_s=0.05)
    cluster.until("sized", "running", step=2)
    refused = cluster("scale", "sized", "3", code=1)
    assert refused == "edl: job sized cannot have 3 workers: it was submitted for 1 to 2\n"
    assert "job sized has 1 worker\n" in cluster("scale", "sized", "1", "--wait", "--timeout", "60")
    job = cluster.job("sized")
    assert (job["state"], len(job["workers"]), job["lives"]) == ("running", 1, 1)
    token = str(cluster.places.folder / "token")
    asked = cluster("scale", "sized", "2", EDL_CLUSTER=given.url, EDL_TOKEN_FILE=token)
    assert asked == "job sized: 2 workers asked for\n"
    wait(lambda: len(cluster.job("sized")["workers"]) == 2, "it grows again")
    cluster("cancel", "sized")
    cluster("wait", "sized", code=1)


@pytest.mark.slow
def test_the_clusters_page_is_served_here_and_of_a_cluster_elsewhere(cluster: LiveCluster, tmp_path: Path) -> None:
    cluster("submit", "--name", "seen", "true")
    cluster("wait", "seen")
    given = cluster.places.config().http
    assert given is not None
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(cluster("cluster", "token", "eve"))
    there = ("--cluster", given.url, "--token-file", str(token))
    for home, flags in ((cluster.home, ()), (tmp_path, there)):
        with page_of(home, *flags) as link:
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            text = opener.open(link, timeout=30).read().decode()
            assert "localhost" in text
            assert 'data-worker="seen-1"' in text


@contextlib.contextmanager
def page_of(home: Path, *flags: str) -> Iterator[str]:
    """`edl dashboard` without a job; its link."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
    line = [sys.executable, "-c", "import sys; from edl.cli import main; sys.exit(main())", "dashboard", *flags]
    page = subprocess.Popen(line, env={**outside, "EDL_HOME": str(home)}, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        yield page.stdout.readline().removeprefix("cluster: ").strip()
    finally:
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0
        page.stdout.close()


ROW = """const row = [...document.querySelectorAll('#queue tbody tr')]
      .find((one) => one.cells[0].innerText === 'watched');
    return row ? [row.cells[3].innerText, row.cells[5].innerText] : []"""
SLOTS = "return [...document.querySelectorAll('#nodes h3, #nodes li')].map((one) => one.innerText)"


@pytest.mark.soak  # its page is looked at in test_cluster_page.py
def test_a_job_is_seen_on_the_clusters_page_as_it_comes_and_goes(cluster: LiveCluster) -> None:
    with page_of(cluster.home) as link, Browser(1280) as browser:
        browser.driver.get(link)
        wait(lambda: browser.run("return document.querySelector('#link').textContent") == "live", "it is told")
        assert browser.run(ROW) == []
        assert browser.run(SLOTS)[0].startswith("localhost")
        cluster.submit("watched", epochs=100, step_s=0.1)
        wait(lambda: browser.run(ROW)[:1] == ["running"], "the job runs on the page")
        wait(lambda: browser.run(ROW)[1] not in {"", "0"}, "its steps are counted there")
        wait(lambda: any("watched-1" in slot for slot in browser.run(SLOTS)[1:]), "its worker is in a slot of the node")
        cluster("cancel", "watched")
        wait(lambda: browser.run(ROW)[0] == "cancelled", "its end is on the page")
        wait(lambda: not any("watched-1" in slot for slot in browser.run(SLOTS)), "its slot is free again")
        assert browser.complaints() == []


def test_a_fault_of_the_script_ends_its_job_and_says_why(cluster: LiveCluster) -> None:
    cluster("submit", "--name", "bad", "python", "-c", "import nope")
    assert "a module that its script imports is not there: ModuleNotFoundError" in cluster("wait", "bad", code=1)
    job = cluster.job("bad")
    assert (job["state"], job["cause"]["code"], job["cause"]["domain"]) == ("failed", "bad-import", "workload")
    assert "No module named 'nope'" in cluster("logs", "bad")


def test_a_file_that_is_not_there_fails_its_job_at_once(cluster: LiveCluster) -> None:
    cluster("submit", "--name", "fileless", "python", "-c", "open('/no/such/train.csv')")
    cluster("wait", "fileless", code=1)
    job = cluster.job("fileless")
    assert (job["state"], job["lives"]) == ("failed", 1)
    assert (job["cause"]["code"], job["cause"]["domain"], job["cause"]["retry"]) == ("missing-file", "data", False)


@pytest.mark.soak  # causes: tests/unit/cluster/queue/test_end_causes.py; retries: test_queue_machine.py there
def test_a_disk_that_is_full_is_tried_again_until_it_has_room(cluster: LiveCluster, tmp_path: Path) -> None:
    full = f"""
import pathlib
been = pathlib.Path({str(tmp_path / "been")!r})
if not been.exists():
    been.touch()
    with open("/dev/full", "w", buffering=1) as disk:
        disk.write("a checkpoint\\n")
"""
    cluster("submit", "--name", "roomless", "python", "-c", full)
    cluster("wait", "roomless", "--timeout", "120")
    job = cluster.job("roomless")
    assert (job["state"], job["lives"]) == ("finished", 2), job
    assert (job["cause"]["code"], job["cause"]["domain"], job["cause"]["retry"]) == (
        "full-disk",
        "infrastructure",
        True,
    )


@pytest.mark.soak  # causes: tests/unit/cluster/queue/test_end_causes.py; retries: test_queue_machine.py there
def test_a_job_whose_script_a_person_kills_begins_again(cluster: LiveCluster, tmp_path: Path) -> None:
    cluster(
        "submit", "--name", "struck", "sh", "-c", f"test -e {tmp_path}/been || {{ touch {tmp_path}/been; sleep 999; }}"
    )
    wait((tmp_path / "been").exists, "it runs")
    for pid in [pid for pid in cluster.processes("struck-1") if not is_warden(pid)]:
        os.kill(pid, signal.SIGKILL)
    cluster("wait", "struck", "--timeout", "120")
    job = cluster.job("struck")
    assert (job["state"], job["lives"]) == ("finished", 2), job
    assert (job["cause"]["code"], job["cause"]["domain"], job["cause"]["retry"]) == ("killed", "infrastructure", True)


def is_warden(pid: int) -> bool:
    return b"worker_wrapper.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_what_a_job_prints_is_bounded(cluster: LiveCluster) -> None:
    bomb = "import sys\nfor _ in range(400): sys.stdout.write('x' * 65535 + '\\n')\nprint('the end')"
    cluster("submit", "--name", "bomb", "python", "-c", bomb)
    cluster("wait", "bomb")
    kept = sum(path.stat().st_size for path in cluster.places.job_logs("bomb").iterdir())
    assert kept <= 2 * (4 << 20) + 65536
    assert cluster("logs", "bomb").rstrip().endswith("the end")


@pytest.mark.slow
def test_a_job_goes_on_while_scheduler_agent_keeper_and_coordinator_are_killed(cluster: LiveCluster) -> None:
    audit = cluster.submit("stands", "-np", "2", "--min-np", "2", "--max-np", "2", epochs=3, step_s=0.1)
    cluster.until("stands", "running")
    leader = cluster.leader()
    cluster.kill(leader.partition(" ")[0])
    cluster.kill("agent-localhost")
    wait(lambda: cluster.leader() != leader, "another scheduler leads")
    cluster.kill("keeper")  # and with it ZooKeeper
    cluster("wait", "stands", "--timeout", "120")
    job = cluster.job("stands")
    assert (job["state"], job["lives"]) == ("finished", 1), job
    assert {
        worker for event in job["events"] if event["kind"] == "worker_gone" for worker in event["words"].split()[:1]
    } == {
        "stands-1",
        "stands-2",
    }
    cluster.expect_exactly_once(audit, epochs=3)
    assert json.loads(cluster("cluster", "status", "--json"))["nodes"][0]["held"] == {}


def test_who_is_more_urgent_trains_once_others_have_shrunk(cluster: LiveCluster) -> None:
    audit = cluster.submit("broad", "-np", "2", "--min-np", "1", "--max-np", "2", epochs=4, step_s=0.05)
    cluster.until("broad", "running")
    assert json.loads(cluster("status", "broad", "--json"))["leader"] and "job_started" in cluster("events", "broad")
    assert "broad" in cluster("top", "broad")
    urgent = cluster.submit("urgent", "--priority", "5", epochs=1)
    cluster("wait", "urgent", "--timeout", "120")
    cluster("wait", "broad", "--timeout", "120")
    broad = cluster.job("broad")
    assert (broad["lives"], broad["preemptions"]) == (1, 0)
    assert any("job urgent of priority 5 is to train" in event["words"] for event in broad["events"])
    cluster.expect_exactly_once(audit, epochs=4)
    cluster.expect_exactly_once(urgent, epochs=1)


@pytest.mark.slow
def test_who_cannot_shrink_is_saved_sent_away_and_goes_on_where_it_was(cluster: LiveCluster) -> None:
    audit = cluster.submit("rigid", "-np", "2", "--min-np", "2", "--max-np", "2", epochs=6, step_s=0.05)
    cluster.until("rigid", "running", step=25)
    cluster.submit("urgent2", "-np", "2", "--min-np", "2", "--max-np", "2", "--priority", "5", epochs=1)
    cluster.until("rigid", "preempted", "resuming")
    assert "step 20 epoch 0" in cluster("logs", "rigid")
    cluster("wait", "urgent2", "--timeout", "120")
    cluster("wait", "rigid", "--timeout", "120")
    job = cluster.job("rigid")
    assert (job["preemptions"], job["lives"]) == (1, 2)
    assert any(event["words"].startswith("it goes on from step") for event in job["events"]), job["events"]
    assert "lost" not in job["used_s"]
    cluster.expect_exactly_once(audit, epochs=6)
    logs = [cluster("logs", "rigid", "--worker", f"rigid-{number}") for number in (1, 2, 3, 4)]
    assert ["step 20 epoch 0" in "".join(life) for life in (logs[:2], logs[2:])] == [True, False]
    assert ["accuracy" in log for log in logs] == [False, False, True, True]


@pytest.mark.soak  # the rule is tested without processes, and one that is found dead is in the test of engines
def test_a_worker_that_is_killed_is_replaced(cluster: LiveCluster) -> None:
    audit = cluster.submit("mended", "-np", "2", "--min-np", "1", "--max-np", "2", epochs=8, step_s=0.05)
    cluster.until("mended", "running", step=2)
    for pid in cluster.processes("mended-2"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait(lambda: any(one["id"] == "mended-3" for one in cluster.job("mended")["workers"]), "another comes")
    cluster("wait", "mended", "--timeout", "120")
    assert cluster.job("mended")["cause"]["domain"] == "infrastructure"
    cluster.expect_exactly_once(audit, epochs=8)


@pytest.mark.soak  # of a job without a cluster: test_forked_newcomers.py
def test_a_newcomer_of_a_job_and_a_replacement_are_forked(cluster: LiveCluster) -> None:
    audit, flags = cluster.home / "audits" / "forked", ("--min-np", "1", "-np", "1", "--max-np", "2")
    line = ("python", str(DIGITS), "--epochs", "100", "--step-time", "0.05")
    cluster("submit", "--name", "forked", "--warm-starts", "eager", *flags, *line, EDL_AUDIT=str(audit))
    log = cluster.places.logs / "agent-localhost.log"
    wait(lambda: "forked: warm starts on: " in log.read_text(), "a process to fork from", 120)
    cluster("scale", "forked", "2", "--wait", "--timeout", "60")
    first, newcomer = cluster.scripts("forked")
    assert (forked := stack(newcomer)) != stack(first)
    os.kill(newcomer, signal.SIGKILL)
    wait(lambda: len({*cluster.scripts("forked")} - {newcomer}) == 2, "it is replaced")
    cluster("scale", "forked", "2", "--wait", "--timeout", "60")
    [replacement] = {*cluster.scripts("forked")} - {first}
    assert stack(replacement) == forked
    cluster("cancel", "forked")
    cluster("wait", "forked", code=1)
    assert account(read(audit)).clean


def test_a_job_that_is_cancelled_leaves_no_process(cluster: LiveCluster) -> None:
    cluster("submit", "--name", "long", "sh", "-c", "echo begun; sleep 1000")
    wait(lambda: "begun" in cluster("logs", "long"), "it runs")
    assert cluster("cancel", "long") == "job long is to be cancelled\n"
    assert "cancelled" in cluster("wait", "long", code=1)
    wait(lambda: not cluster.processes("long-1"), "no process is left")
    assert cluster("stop", "long") == "job long is over already: cancelled\n"
    assert cluster("logs", "long") == "begun\n"
    assert cluster("status", "long") == cluster("describe", "long")
    ended = json.loads(cluster("status", "long", "--json"))
    assert (ended["job"], ended["state"], ended["target"], ended["workers"]) == ("long", "failed", 1, [])
    assert ended["reason"].startswith("cancelled")


@pytest.mark.soak  # that a cluster drains is tested in simulated time, and that a job is saved and goes on above
def test_a_cluster_that_is_stopped_goes_on_with_its_queue(cluster: LiveCluster) -> None:
    audit = cluster.submit("kept", epochs=5, step_s=0.05)
    cluster.until("kept", "running", step=2)
    assert cluster.processes("kept-1")
    assert "1 jobs wait for the next" in cluster("cluster", "stop")
    assert not cluster.processes("kept-1")
    assert cluster.places.living() == {}
    assert "does not run" in cluster("queue", code=1)
    cluster("cluster", "start", "--nodes", "localhost:2", "--policy", "fifo", "--session-timeout", "3")
    cluster("wait", "kept", "--timeout", "120")
    assert cluster.job("kept")["preemptions"] == 1
    cluster.expect_exactly_once(audit, epochs=5)


def test_what_devices_were_used_for_can_be_had_as_a_table(cluster: LiveCluster) -> None:
    cluster("submit", "--name", "short", "--user", "kim", "sleep", "0.3")
    cluster("wait", "short")
    found = json.loads(cluster("cluster", "accounts", "--json"))
    [kim] = [user for user in found["users"] if user["user"] == "kim"]
    assert (kim["jobs"], kim["device_s"] > 0.3) == (1, True)
    lines = cluster("cluster", "accounts", "--csv").splitlines()
    assert lines[0].startswith("job,user,state,")
    assert len(lines) == len(found["jobs"]) + 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit",), "name the command to run"),
        (("submit", "--name", "../x", "true"), "must be 1 to 48 letters"),
        (("submit", "--min-np", "3", "--max-np", "3", "true"), "the cluster has 2 devices"),
        (("submit", "--name", "hello", "true"), "there is a job hello already"),
        (("submit", "--batch-range", "9:3", "true"), "--batch-range 9:3: must be FEWEST:MOST"),
        (("submit", "--priority", "high", "true"), "--priority high: must be a whole number"),
        (("describe", "../../etc/passwd"), "no job ../../etc/passwd "),
        (("logs", "hello", "--worker", "../../secret"), "is no worker's id"),
        (("logs", "hello", "--worker", "7"), "job hello has no output of a worker 7: there is some of hello-1"),
        (("cluster", "start"), "runs already"),
    ],
)
def test_wrong_use_is_said_in_one_line(cluster: LiveCluster, words: tuple[str, ...], said: str) -> None:
    assert said in cluster(*words, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "start", "--nodes", "elsewhere.example:2"), "is not this machine"),
        (("cluster", "start", "--nodes", "localhost"), "must be HOST:SLOTS"),
        (("cluster", "start", "--policy", "best"), "policy best: is none of"),
        (("cluster", "start", "--quota", "ann"), "--quota ann: must be USER:DEVICES"),
        (("cluster", "start", "--engine", "best"), "must be one of local, slurm, ray"),
        (("queue",), "there is no cluster in"),
    ],
)
def test_wrong_use_without_a_cluster(tmp_path: Path, warm: WarmPython, words: tuple[str, ...], said: str) -> None:
    assert said in LiveCluster(tmp_path / "home", warm)(*words, code=2)


def test_a_job_that_is_unknown_is_said_to_be(cluster: LiveCluster) -> None:
    assert "the cluster has no job nobody" in cluster("describe", "nobody", code=2)


@pytest.fixture
def on_etcd(tmp_path: Path, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path / "home", warm)
    own = ("--local-coordinator", "etcd", "--session-timeout", "3")
    cluster("cluster", "start", "--nodes", "localhost:2", "--policy", "dp", *own)
    try:
        yield cluster
    finally:
        cluster("cluster", "stop", "--now")
        assert cluster.places.living() == {}


@pytest.mark.soak  # batches: tests/unit/cluster/queue/test_live_speeds.py; an etcd: tests/contract/test_store.py
def test_a_policy_chooses_a_jobs_batch_and_the_queue_is_in_an_etcd_that_is_killed(on_etcd: LiveCluster) -> None:
    """`dp` wants most samples in a second: a step of many takes as long here as one of few."""
    audit = on_etcd.submit("wide", "--batch-range", "32:128", epochs=6, step_s=0.1)
    on_etcd.until("wide", "running", batch=128)
    said = [event["words"] for event in on_etcd.job("wide")["events"] if event["kind"] == "batch"]
    assert said[-1].startswith("128 samples a step: ")
    assert "etcd:///" in on_etcd("cluster", "status")
    on_etcd.kill("keeper")  # and with it etcd
    on_etcd("wait", "wide", "--timeout", "120")
    on_etcd.expect_exactly_once(audit, epochs=6)
    assert on_etcd.job("wide")["step"] < 6 * SAMPLES / 32 - 20  # the job itself has changed, and makes fewer steps
    assert "lies in its etcd" in on_etcd("cluster", "start", "--local-coordinator", "zookeeper", code=2)


@pytest.fixture
def of_two_nodes(tmp_path: Path, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path / "home", warm)
    nodes = ("--nodes", "localhost:2,localhost:2")
    cluster("cluster", "start", *nodes, "--policy", "fifo", "--session-timeout", "3")
    try:
        yield cluster
    finally:
        cluster("cluster", "stop", "--now")
        assert cluster.places.living() == {}


# soak: tests/simulation/test_cluster_queue.py moves jobs whatever dies; a real one moves in test_migrate.py
@pytest.mark.soak
def test_a_job_moves_from_a_node_that_fails_its_workers_while_it_trains(of_two_nodes: LiveCluster) -> None:
    audit = of_two_nodes.submit("mover", "-np", "1", "--min-np", "1", "--max-np", "2", epochs=10, step_s=0.1)
    job = of_two_nodes.until("mover", "running", step=1)
    [old] = job["workers"]
    of_two_nodes("submit", "--name", "dying", "sh", "-c", "kill -9 $$")  # packed: onto the same node

    def left_out() -> list[str]:
        nodes = json.loads(of_two_nodes("cluster", "status", "--json"))["nodes"]
        return [node["name"] for node in nodes if node["left_out_until"]]

    wait(lambda: left_out() == [old["node"]], "the node is left out")
    of_two_nodes("cancel", "dying")
    table = of_two_nodes("cluster", "status")
    assert "left out until" in table
    job = of_two_nodes.until("mover", "finished")
    story = {event["kind"]: event["words"] for event in job["events"]}
    assert story["migrating"].endswith(f"{old['node']} is left out")
    assert "migrated" in story
    assert {one["node"] for one in job["held"]} == {"localhost", "localhost-2"}
    assert (job["lives"], job["preemptions"]) == (1, 0)
    of_two_nodes.expect_exactly_once(audit, epochs=10)


@pytest.fixture
def of_four_devices(tmp_path: Path, warm: WarmPython) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path / "home", warm)
    cluster("cluster", "start", "--nodes", "localhost:4", "--policy", "fifo", "--session-timeout", "3")
    try:
        yield cluster
    finally:
        cluster("cluster", "stop", "--now")
        assert cluster.places.living() == {}


@pytest.mark.soak  # rules: tests/simulation/test_cluster_queue.py; such workers: test_larger_models.py
def test_workers_of_two_processes_come_and_go_whole(of_four_devices: LiveCluster, tmp_path: Path) -> None:
    cluster, audit = of_four_devices, tmp_path / "audit"
    (tmp_path / "pace").write_text("0.05")
    line = [*cluster.warm.command(SHARDED), "--out", str(tmp_path), "--pace", str(tmp_path / "pace")]
    sizes = ("-np", "2", "--min-np", "1", "--processes", "2")
    cluster("submit", "--name", "pairs", *sizes, *line, "--stop", str(tmp_path / "stop"), EDL_AUDIT=str(audit))

    def devices(name: str) -> dict[str, list[int]]:
        return {one["id"]: [one["device"], *one["further"]] for one in cluster.job(name)["workers"]}

    def settled(workers: int) -> bool:
        job = cluster.job("pairs")
        return job["state"] == "running" and len(job["workers"]) == workers

    cluster.until("pairs", "running", step=5)
    assert devices("pairs") == {"pairs-1": [0, 1], "pairs-2": [2, 3]}
    cluster("submit", "--name", "urgent", "--priority", "5", "sleep", "600")
    wait(lambda: devices("urgent"), "the urgent job has a device", 120)
    assert (devices("pairs"), devices("urgent")) == ({"pairs-1": [0, 1]}, {"urgent-1": [2]})
    wait(lambda: settled(1), "the other is settled", 120)
    cluster("cancel", "urgent")
    wait(lambda: settled(2), "it has grown", 180)
    assert devices("pairs") == {"pairs-1": [0, 1], "pairs-3": [2, 3]}
    limb = max(pid for pid in cluster.processes("pairs-3") if b"EDL_LIMB=1" in environment(pid))
    os.kill(limb, signal.SIGKILL)
    wait(lambda: devices("pairs") == {"pairs-1": [0, 1], "pairs-4": [2, 3]}, "another worker comes", 120)
    wait(lambda: settled(2), "it trains", 180)
    (tmp_path / "stop").touch()
    cluster("wait", "pairs", "--timeout", "180")
    assert (cluster.job("pairs")["lives"], cluster.job("pairs")["state"]) == (1, "finished")
    cluster("data", "verify", str(audit))


def environment(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.mark.soak  # what is handed on is tested without processes
def test_a_cluster_in_a_coordinator_of_others_is_opened_by_their_user(tmp_path: Path, warm: WarmPython) -> None:
    place = Path(warm.coordinator())
    wait(place.exists, "a coordinator of others")
    hosts = f"{place.read_text()}/theirs"
    cluster = LiveCluster(tmp_path / "home", warm)
    own = ("--nodes", "localhost:1", "--policy", "fifo", "--coordinator", hosts)
    cluster("cluster", "start", *own, EDL_COORDINATOR_AUTH="ann:word")
    try:
        audit = cluster.submit("theirs", epochs=1)
        cluster("wait", "theirs", "--timeout", "120")
        cluster.expect_exactly_once(audit, epochs=1)
    finally:
        cluster("cluster", "stop", "--now")

    async def read(user: str) -> bool:
        store = await connect(Coordinator(hosts, Digest(user, "word")), 10.0)
        try:
            return await store.read("/edl-cluster/jobs/theirs") is not None
        finally:
            await store.close()

    assert asyncio.run(read("ann"))
    with pytest.raises(AccessDenied):
        asyncio.run(read("eve"))
