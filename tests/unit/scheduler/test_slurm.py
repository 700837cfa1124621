"""What Slurm's commands say, understood; and what they are told. Its programs are played by scripts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from edl.errors import ConfigError
from edl.scheduler.engines import slurm_nodes, wanted
from edl.scheduler.places import NodeGiven
from edl.scheduler.slurm import Slurm, SlurmError, SlurmJob, SlurmNode, flags_of, jobs_of, nodes_of, script_of

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
    (programs / name).write_text(f"#!/bin/sh\n{script}")
    (programs / name).chmod(0o755)


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


def test_a_worker_has_its_share_of_the_node() -> None:
    flags = flags_of("edl-x", SlurmNode("n2", "idle", 8, 2), 2, Path("/a%b/out"))
    assert {"--nodelist=n2", "--gres=gpu:1", "--cpus-per-task=4", "--no-requeue", "--output=/a%%b/out"} <= set(flags)
    assert not any(flag.startswith("--gres") for flag in flags_of("x", SlurmNode("n1", "idle", 2, 0), 4, Path("/o")))
    assert "--cpus-per-task=1" in flags_of("x", SlurmNode("n1", "idle", 2, 0), 4, Path("/o"))


def test_a_script_is_one_step_whatever_its_words_hold() -> None:
    lines = script_of(["py", "a b", "$(x)"], {"PATH": "/p'q", "M": "1 2"}).splitlines()
    assert shlex.split(lines[1]) == ["export", "PATH=/p'q"]
    assert shlex.split(lines[2])[-6:] == ["env", "PATH=/p'q", "M=1 2", "py", "a b", "$(x)"]


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
    assert slurm_nodes(None, own_coordinator=False) == (NodeGiven("n1", (0, 1, 2, 3)), NodeGiven("n3", tuple(range(8))))
    assert slurm_nodes("n2:2", own_coordinator=True) == (NodeGiven("n2", (0, 1)),)


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
        slurm_nodes(nodes, own_coordinator=True)


def test_no_slurm_and_no_node(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(programs, "sinfo", "n1|down|4|(null)|here")
    with pytest.raises(ConfigError, match="no node of Slurm's takes jobs"):
        slurm_nodes(None, own_coordinator=True)
    play(programs, "sinfo", "slurm_load_node: Unable to contact slurm controller", code=1)
    with pytest.raises(ConfigError, match="--engine slurm: slurm_load_node: Unable to contact"):
        slurm_nodes(None, own_coordinator=True)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="sinfo is not there: --engine slurm needs"):
        slurm_nodes(None, own_coordinator=True)


def test_the_partition_that_sbatch_is_told_of_counts(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    play(programs, "sinfo", NODES)
    Slurm().nodes()
    assert "--partition gpu" in (programs / "sinfo.told").read_text()


def test_what_is_wanted_is_kept_in_order() -> None:
    assert list(wanted("b:1, a:2", "X").items()) == [("b", 1), ("a", 2)]
