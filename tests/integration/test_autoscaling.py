"""Jobs that choose their size by themselves, and workers that hold up the others: real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pace import patient

from edl.protocol.audit_lines import BatchGiven
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "autoscaling_worker.py"
KNEE = {"1": 0.2, "2": 0.2, "3": 0.5}  # two workers do twice as much as one, three do less than two


def decisions(edl) -> list[dict]:
    return [event for event in edl.events("g") if event["kind"] == "decision"]


@pytest.mark.soak  # where it settles: tests/property/test_policies.py
def test_it_finds_the_knee_and_a_profile_shows_it(edl, tmp_path):
    policy = ("--autoscale", "efficiency=0.1,batches=10,cooldown=1", "--autoscale-every", "3")
    command = [*edl.warm.command(SCRIPT), "--step-s", json.dumps(KNEE)]
    launcher = edl.start("run", "-np", "1", "--max-np", "3", "--job", "g", *policy, *command)
    edl.wait(lambda: any(not told["act"] for told in decisions(edl)), "it has settled", timeout_s=180)
    told = decisions(edl)
    assert [one["size"] for one in told] == [2, 3, 2, 2]
    assert [one["act"] for one in told] == [True, True, True, False]
    assert told[-1]["efficiency"] <= 0.1
    assert "adds" in told[-1]["reason"]

    status = edl.status("g")
    assert (status["size"], status["target"]) == (2, 2)
    assert [rate["size"] for rate in status["rates"]] == [1, 2, 3]
    assert told[-1]["reason"] in edl("status", "g").stdout
    measured = {rate["size"]: rate["samples"] / rate["seconds"] for rate in status["rates"]}
    assert measured[2] > measured[1] and measured[2] > measured[3]
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))


@pytest.mark.slow
def test_a_profile_measures_each_size(edl, tmp_path):
    launcher = edl.start("run", "-np", "2", "--job", "g", *edl.warm.command(SCRIPT), "--step-s", json.dumps(KNEE))
    edl.wait(
        lambda: [one["state"] for one in edl.status("g")["workers"]] == ["training"] * 2, "two train", timeout_s=90
    )
    done = edl("profile", "g", "--min", "1", "--max", "2", "--batches", "15", "--json", timeout_s=180)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["size"] for row in rows] == [1, 2]
    assert rows[1]["samples_s"] > rows[0]["samples_s"]
    assert rows[1]["marginal"] > 0.1
    assert edl.status("g")["target"] == 2  # as before
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))


@pytest.mark.soak  # the exchange itself: tests/unit/core/resize/test_straggler_replacement.py
def test_a_straggler_is_replaced(edl, tmp_path):
    slow = ("--slow-slot", "1", "--slow-s", "0.1")
    policy = ("--stragglers", "replace", "--autoscale-every", "2")
    command = [*edl.warm.command(SCRIPT), *slow]
    launcher = edl.start("run", "-np", "2", "--job", "g", *policy, *command)
    edl.wait(lambda: decisions(edl), "a worker is found slow", timeout_s=120)
    (told,) = decisions(edl)
    (slow_one,) = told["replace"]
    assert told["act"] and "(compute)" in told["reason"] and told["pace"] < 0.8

    def replaced() -> bool:
        status = edl.status("g")
        there = {worker["id"] for worker in status["workers"] if worker["rank"] is not None}
        return status["size"] == status["target"] == 2 and slow_one not in there

    edl.wait(replaced, "another one is there in its place", timeout_s=120)

    def sizes() -> list[tuple[int, int]]:
        return [(event["from"], event["to"]) for event in edl.events("g") if event["kind"] == "scaled"]

    edl.wait(lambda: len(sizes()) == 2, "both switches are told of")
    assert sizes() == [(2, 3), (3, 2)]  # it came first
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))


# soak: how one is found: tests/property/test_policies.py; what a graph waits: tests/unit/tensorflow/test_wait_meter.py
@pytest.mark.soak
@pytest.mark.parametrize("way", ["function", pytest.param("session", marks=pytest.mark.soak)])
def test_a_straggler_is_found_inside_a_graph(edl, tmp_path, way):
    """There the others wait inside TensorFlow."""
    job = Path(__file__).with_name("jobs") / "slow_graph.py"
    launcher = edl.start(
        "run",
        "-np",
        "2",
        "--job",
        "g",
        "--stragglers",
        "tell",
        "--autoscale-every",
        "2",
        *edl.warm.command(job),
        way,
        "--slow-slot",
        "1",
    )
    edl.wait(lambda: decisions(edl), "a worker is found slow", timeout_s=120)
    told = decisions(edl)[0]
    assert not told["act"] and "(compute)" in told["reason"] and 0.2 < told["pace"] < 0.8
    status = edl.status("g")
    (slow,) = (worker for worker in status["workers"] if worker["id"] in told["reason"])
    assert b"EDL_SLOT=1" in Path(f"/proc/{slow['pid']}/environ").read_bytes().split(b"\0")
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))


@pytest.mark.slow
def test_a_straggler_takes_fewer_samples(edl, tmp_path):
    policy = ("--stragglers", "share", "--batch-policy", "fixed-global", "--autoscale-every", "2", "--audit", "audit")
    command = [*edl.warm.command(SCRIPT), "--batch", "24", "--sample-s", "0.004", "--slow-slot", "1"]
    launcher = edl.start("run", "-np", "2", "--job", "g", *policy, *command)

    def cut_anew() -> dict | None:
        return next((event for event in edl.events("g") if event["kind"] == "recut"), None)

    cut = edl.wait(cut_anew, "it takes fewer", timeout_s=120)
    (told,) = decisions(edl)
    assert told["act"] and sorted(told["shares"].values())[1] == 1.0 and 0.4 < min(told["shares"].values()) < 0.7
    enough = cut["after_step"] + 20
    edl.wait(lambda: edl.status("g")["step"] > enough, "some steps", timeout_s=60)
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))
    taken = {
        audit.worker: sum(map(len, line.ranges))
        for audit in read(edl.cwd / "audit")
        for line in audit.lines
        if isinstance(line, BatchGiven) and line.step == enough - 5
    }
    assert sum(taken.values()) == 24
    assert 6 <= taken[min(told["shares"], key=told["shares"].__getitem__)] <= 10


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("efficency=0.1", "--autoscale efficency=0.1: must be efficiency=S, utility=FILE or policy=NAME"),
        ("utility=/no/such.toml", "--autoscale utility=/no/such.toml: cannot be read"),
        ("policy=unknown", "--autoscale policy=unknown: is neither FILE.py:CLASS nor an entry point of edl.policies"),
    ],
)
def test_a_wrong_policy_is_one_line(edl, value, said):
    done = edl("run", "--autoscale", value, "true")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.soak  # one in its process: tests/unit/daemon/test_policy_loader.py
def test_a_policy_of_ones_own(edl, tmp_path):
    """The page's own example: it sees what the script reports; one that raises is told of, and harms no worker."""
    policy = tmp_path / "mine.py"
    policy.write_text(
        "from edl.policy.policy_job_view import Decision\n"
        "class Mine:\n"
        "    def decide(self, view):\n"
        "        loss = view.reported('loss')\n"
        "        if loss is None: return None\n"
        "        if view.size == 2: raise RuntimeError('two are too many for me')\n"
        "        return Decision(2, f'the loss is {loss:.2f}', numbers={'loss': loss})\n"
    )
    flags = ("--autoscale", f"policy={policy}:Mine,cooldown=1", "--autoscale-every", "1")
    command = [*edl.warm.command(SCRIPT), "--step-s", "{}"]
    launcher = edl.start("run", "-np", "1", "--max-np", "3", "--job", "g", *flags, *command)
    edl.wait(lambda: len(decisions(edl)) == 2, "it has raised", timeout_s=120)
    first, second = decisions(edl)
    assert (first["size"], first["act"]) == (2, True) and "the loss is" in first["reason"] and first["loss"] > 0
    assert not second["act"] and "two are too many for me" in second["reason"]
    edl("stop", "g", timeout_s=60)
    launcher.communicate(timeout=patient(60))
