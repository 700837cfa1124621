"""What Slurm's commands say, understood; and what they are told. Its programs are played by scripts."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

import pytest

from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import Submission, WorkerOrder, WorkerWish
from edl.errors import ConfigError, EdlError
from edl.scheduler import engine_registry, slurm_engine
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, NodeGiven
from edl.scheduler.cluster_start import stop, strays
from edl.scheduler.engine_registry import wanted
from edl.scheduler.slurm import Slurm, SlurmError, SlurmJob, SlurmNode, flags_of, jobs_of, nodes_of, script_of
from edl.scheduler.slurm_engine import SlurmEngine, job_name
from edl.scheduler.worker_engine import Start
from edl.scheduler.worker_folders import WorkerFolders

NODES = """
n1|idle|4|(null)|here
n1|idle|4|(null)|here
n2|down*|4|gpu:a100:2,gpu:2(S:0-1)|here
n3|mixed-|8|gpu:8|far
""".strip()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that are found before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    return tmp_path


def play(programs: Path, name: str, text: str, *, code: int = 0) -> None:
    """Its flags are kept; it says this."""
    told, where = programs / f"{name}.told", ">&2" if code else ""
    script = f"printf '%s\\n' \"$*\" >> {told}\ncat {where} <<'END'\n{text}\nEND\nexit {code}\n"
    new = programs / f"{name}.new"
    new.write_text(f"#!/bin/sh\n{script}")
    new.chmod(0o755)
    new.rename(programs / name)  # at once: it may be asked just now


def test_nodes_are_told_once_with_their_gpus_and_whether_they_take_jobs() -> None:
    found = {node.name: (node.gives, node.cpus, node.gpus, node.devices) for node in nodes_of(NODES)}
    assert found == {"n1": (True, 4, 0, 4), "n2": (False, 4, 4, 4), "n3": (True, 8, 8, 8)}


@pytest.mark.parametrize(
    ("state", "gives"),
    [("idle", True), ("allocated", True), ("completing", True), ("idle~", True), ("idle*", False), ("drained", False),
     ("draining", False), ("fail", False), ("maint", False), ("unknown", False), ("reserved", False)],
)  # fmt: skip
def test_what_a_nodes_state_means(state: str, gives: bool) -> None:
    assert SlurmNode("n", state, 4, 0).gives is gives


def test_jobs_are_under_way_until_their_last_process_is_gone() -> None:
    found = jobs_of("7|edl-a-1|COMPLETING\n8|edl-a-2|NODE_FAIL\n9|edl-a-3|PENDING\n")
    assert [(job.number, job.name, job.under_way) for job in found] == [
        (7, "edl-a-1", True),
        (8, "edl-a-2", False),
        (9, "edl-a-3", True),
    ]
    assert not SlurmJob(1, "x", "PREEMPTED").under_way
    assert SlurmJob(1, "x", "A_STATE_OF_A_NEWER_SLURM").under_way


def test_a_worker_has_its_share_of_the_node() -> None:
    flags = flags_of("edl-x", SlurmNode("n2", "idle", 8, 2), 2, Path("/a%b/out"))
    assert {"--nodelist=n2", "--gres=gpu:1", "--cpus-per-task=4", "--no-requeue", "--output=/a%%b/out"} <= set(flags)
    assert not any(flag.startswith("--gres") for flag in flags_of("x", SlurmNode("n1", "idle", 2, 0), 4, Path("/o")))
    assert "--cpus-per-task=1" in flags_of("x", SlurmNode("n1", "idle", 2, 0), 4, Path("/o"))


def test_a_worker_of_two_processes_has_two_shares_and_two_gpus_in_one_task() -> None:
    flags = flags_of("edl-x", SlurmNode("n2", "idle", 8, 4), 4, Path("/out"), 2)
    assert {"--nodes=1", "--ntasks=1", "--gres=gpu:2", "--cpus-per-task=4"} <= set(flags)
    assert "--cpus-per-task=6" in flags_of("x", SlurmNode("n1", "idle", 8, 0), 4, Path("/o"), 3)


def test_a_script_is_one_step_whatever_its_words_hold() -> None:
    lines = script_of(["py", "a b", "$(x)"], {"PATH": "/p'q", "M": "1 2"}).splitlines()
    assert shlex.split(lines[1]) == ["export", "PATH=/p'q"]
    assert lines[2] == 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    assert shlex.split(lines[3])[-6:] == ["env", "PATH=/p'q", "M=1 2", "py", "a b", "$(x)"]


def test_a_refusal_of_slurms_is_told_in_its_words(programs: Path) -> None:
    play(programs, "sbatch", "sbatch: error: Invalid account", code=1)
    with pytest.raises(SlurmError, match="Invalid account"):
        Slurm().submit([], "")


def test_only_where_all_processes_hear_a_signal_is_it_not_handed_on(programs: Path) -> None:
    for plugin, all_hear in (("linuxproc", True), ("cgroup", False)):
        play(programs, "scontrol", f"A = 1\nProctrackType           = proctrack/{plugin}\n")
        assert Slurm().signals_all() is all_hear


def test_all_nodes_that_take_jobs_are_the_clusters(programs: Path) -> None:
    play(programs, "sinfo", NODES)
    assert engine_registry.nodes_of("slurm", None, own_coordinator=False).nodes == (
        NodeGiven("n1", (0, 1, 2, 3)),
        NodeGiven("n3", tuple(range(8))),
    )
    assert engine_registry.nodes_of("slurm", "n2:2", own_coordinator=True).nodes == (NodeGiven("n2", (0, 1)),)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("n9:1", "Slurm has no node n9"),
        ("n1:5", "node n1 has 4 devices, says Slurm"),
        ("n3:1", "n3 is not this machine, and cannot reach the ZooKeeper"),
        ("n1", "must be NODE:SLOTS of Slurm"),
        ("n1:1,n1:1", "each once"),
    ],
)
def test_nodes_that_cannot_be_had(programs: Path, nodes: str, said: str) -> None:
    play(programs, "sinfo", NODES)
    with pytest.raises(ConfigError, match=said):
        engine_registry.nodes_of("slurm", nodes, own_coordinator=True)


def test_no_slurm_and_no_node(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(programs, "sinfo", "n1|down|4|(null)|here")
    with pytest.raises(ConfigError, match="no node of Slurm's takes jobs"):
        engine_registry.nodes_of("slurm", None, own_coordinator=True)
    play(programs, "sinfo", "slurm_load_node: Unable to contact slurm controller", code=1)
    with pytest.raises(ConfigError, match="--engine slurm: slurm_load_node: Unable to contact"):
        engine_registry.nodes_of("slurm", None, own_coordinator=True)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="sinfo is not there: --engine slurm needs"):
        engine_registry.nodes_of("slurm", None, own_coordinator=True)


def test_the_partition_that_sbatch_is_told_of_counts(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    play(programs, "sinfo", NODES)
    Slurm().nodes()
    assert "--partition gpu" in (programs / "sinfo.told").read_text()


def test_what_is_wanted_is_kept_in_order() -> None:
    assert list(wanted("b:1, a:2", "X").items()) == [("b", 1), ("a", 2)]


ORDER = Start(
    WorkerOrder("j-1", "j", 0, WorkerWish.RUN),
    Submission("j", ("true",), "/", "ann", 0.0, np=1, min_np=1, max_np=1),
    {},
)


class Heard:
    """One engine of n1, with what it has told."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.ends: list[tuple[str, EndEvidence]] = []
        self.folders = WorkerFolders(programs / "node", programs / "jobs")
        self.engine = SlurmEngine("n1", 1, self.folders, lambda *end: self.ends.append(end))

    def stands(self, state: str) -> None:
        play(self.programs, "squeue", f"7|{job_name(self.folders['j-1'])}|{state}")


@pytest.fixture
async def heard(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Heard:
    for name, value in (("LOOK_S", 0.01), ("ASK_S", 0.01)):
        monkeypatch.setattr(slurm_engine, name, value)
    for name, text in (("sinfo", NODES.splitlines()[0]), ("sbatch", "7"), ("scancel", ""), ("scontrol", "")):
        play(programs, name, text)
    found = Heard(programs)
    assert await found.engine.find() == []
    found.stands("PENDING")
    assert await found.engine.start(ORDER) == 7
    return found


async def told(heard: Heard) -> EndEvidence:
    async with asyncio.timeout(20):
        while not heard.ends:  # noqa: ASYNC110 - a list does not tell
            await asyncio.sleep(0.01)
    await heard.engine.close()
    [(worker, evidence)] = heard.ends
    assert worker == "j-1"
    return evidence


def test_jobs_are_this_users_whatever_the_shell_calls_him(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    play(programs, "squeue", "")
    assert Slurm().jobs(["x"]) == []
    assert f"--user {os.getuid()} " in (programs / "squeue.told").read_text()


@pytest.mark.parametrize(("name", "ask"), [("squeue", lambda: Slurm().jobs(["x"])), ("sinfo", lambda: Slurm().nodes())])
def test_an_answer_that_is_not_understood_is_no_answer(programs: Path, name: str, ask: object) -> None:
    play(programs, name, "slurm: what is this")
    with pytest.raises(SlurmError, match=f"what {name} says is not understood"):
        ask()  # type: ignore[operator]


async def test_an_end_is_told_though_a_folder_was_away_for_a_while(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [5]
    there = WorkerFolders.withdraw

    def withdraw(folders: WorkerFolders, worker: str) -> bool:
        if away[0]:
            away[0] -= 1
            raise OSError("stale file handle")
        return there(folders, worker)

    monkeypatch.setattr(WorkerFolders, "withdraw", withdraw)
    heard.stands("FAILED")
    assert (await told(heard)).unserved
    assert away == [0]


async def test_a_worker_that_slurm_takes_before_it_begins_never_begins(heard: Heard) -> None:
    heard.stands("NODE_FAIL")
    assert (await told(heard)).taken == "Slurm has lost its node"
    assert not (heard.folders["j-1"] / "start.json").exists()


async def test_who_is_to_leave_before_its_warden_begins_never_begins(heard: Heard) -> None:
    heard.stands("RUNNING")
    heard.engine.end("j-1", kill=False)
    async with asyncio.timeout(20):
        said = heard.programs / "scancel.told"
        while not said.exists() or "--full" not in said.read_text():  # noqa: ASYNC110 - a file does not tell
            await asyncio.sleep(0.01)
    assert not (heard.folders["j-1"] / "start.json").exists()
    heard.stands("CANCELLED")
    await told(heard)


async def test_what_waits_in_slurm_does_not_outlive_its_cluster(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ClusterHome(programs / "home")
    home.make()
    nodes = (NodeGiven("n1", (0,)),)
    home.write(ClusterConfig(nodes, "fifo", {}, {}, "127.0.0.1:1", False, 1, 10.0, 0.0, engine="slurm"))
    folder = WorkerFolders(home.node("n1"), programs / "jobs")["j-1"]
    folder.mkdir()
    play(programs, "squeue", f"7|{job_name(folder)}|PENDING")
    play(programs, "scancel", "")
    assert strays(home) == [folder]
    with pytest.raises(EdlError, match=r"1 of its workers do \(j-1\)"):
        await stop(home, kill=False, say=print)
    gone = f"#!/bin/sh\necho \"$*\" >> {programs}/scancel.told\nprintf '#!/bin/sh\\n' > {programs}/squeue\n"
    (programs / "scancel").write_text(gone)
    await stop(home, kill=True, say=print)
    assert "--state=PENDING 7" in (programs / "scancel.told").read_text()
