"""Workers of several processes in a queue: as many devices of one node each, and what counts devices counts them."""

from __future__ import annotations

import msgspec
import pytest
from queue_play import RULES, QueuePlay

from edl.cluster.policies.registry import POLICIES
from edl.cluster.queue.agent_machine import AgentMachine, OrdersCame, StartOne, WorkerGone
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.job_view import shown
from edl.cluster.queue.queue_entries import JobPhase, WorkerEntry, WorkerOrder, WorkerWish, orders_of
from edl.cluster.queue.queue_state import placed
from edl.cluster.queue.scheduler_inputs import CancelAsked, ClusterRules, SizeWanted
from edl.cluster.queue.submission import JobWish, check_fits, submission
from edl.cluster.views import Allotment, ClusterDecision, ClusterView
from edl.errors import ConfigError

LONG = RULES.settled_s + 1


def devices(play: QueuePlay, name: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.node, one.devices) for one in play.job(name).workers]


def leaving(play: QueuePlay, name: str) -> list[str]:
    return [one.id for one in play.job(name).workers if one.wish is WorkerWish.LEAVE]


def test_a_worker_has_a_device_for_each_process_and_a_rest_that_is_too_small_holds_none() -> None:
    play = QueuePlay(n=5)
    play.submit("a", np=3, least=1, processes=2)
    assert devices(play, "a") == [("n", (0, 1)), ("n", (2, 3))]
    play.submit("b")
    assert devices(play, "b") == [("n", (4,))]


def test_a_workers_processes_are_on_one_node() -> None:
    play = QueuePlay(n=3, m=1, o=2)
    play.submit("a", np=3, least=2, processes=2)
    assert sorted(devices(play, "a")) == [("n", (0, 1)), ("o", (0, 1))]
    play.submit("b", processes=2)
    assert play.job("b").phase is JobPhase.QUEUED  # two devices are free, on two nodes
    play.submit("c", processes=4)
    assert play.job("c").phase is JobPhase.QUEUED  # no node has so many: it holds up nobody
    play(CancelAsked("b"))
    play.submit("d")
    assert play.job("d").phase is JobPhase.STARTING


def test_spread_workers_are_whole_too() -> None:
    play = QueuePlay(n=3, m=3)
    play.submit("a", np=2, processes=2, spread=True)
    assert sorted(devices(play, "a")) == [("m", (0, 1)), ("n", (0, 1))]


def test_a_job_shrinks_and_grows_by_whole_workers() -> None:
    play = QueuePlay(n=4)
    play.submit("a", np=2, least=1, processes=2)
    play.look("a", step=5)
    play.submit("b", priority=1)
    assert leaving(play, "a") == ["a-2"]
    play.gone("a-2", told=True)
    play.look("a", step=6)
    assert (devices(play, "a"), devices(play, "b")) == ([("n", (0, 1))], [("n", (2,))])
    assert "from 2 to 1 workers" in " ".join(event.words for event in play.job("a").story)
    play(after=30)
    assert devices(play, "a") == [("n", (0, 1))]  # the one device that is left is no worker's
    play(CancelAsked("b"))
    play.gone("b-1", told=True)
    play(after=30)
    assert devices(play, "a") == [("n", (0, 1)), ("n", (2, 3))]


def test_its_owner_counts_workers() -> None:
    play = QueuePlay(n=6)
    play.submit("a", np=1, least=1, most=3, processes=2)
    play.look("a", step=5)
    play(SizeWanted("a", 3))
    assert len(play.job("a").workers) == 3
    play.look("a", step=6)
    play(SizeWanted("a", 2))
    assert leaving(play, "a") == ["a-3"]


def test_quotas_are_devices() -> None:
    play = QueuePlay(rules=ClusterRules(decide_s=0.0, retries=RULES.retries, quotas={"u": 5}), n=8)
    play.submit("a", np=3, least=1, processes=2)
    assert len(play.job("a").workers) == 2
    play.submit("b", processes=2)
    assert play.job("b").phase is JobPhase.QUEUED
    play.submit("c")
    assert play.job("c").phase is JobPhase.STARTING


def test_seconds_are_those_of_all_devices() -> None:
    play = QueuePlay(n=2)
    play.submit("a", processes=2)
    play.look("a", step=5)
    play(after=10)
    play(CancelAsked("a"), after=0)
    play.gone("a-1", told=True)
    job = play.job("a")
    assert job.used["training"] == pytest.approx(20, abs=4)
    assert [(one.worker, one.device) for one in job.held] == [("a-1", 0), ("a-1", 1)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_for_workers_of_two_devices(policy: str) -> None:
    play = QueuePlay(policy, ClusterRules(decide_s=0.0, sees_left=True), n=5)
    play.submit("a", np=2, least=1, most=2, processes=2)
    play.submit("b", least=1, most=4)
    for step in range(5):
        for name in "ab":
            if play.job(name).workers:
                play.look(name, step=10 * step + 5, batch=64, step_s=0.1)
        play(after=30)
    assert "policy_failed" not in play.told
    assert play.job("a").workers
    assert all(len(one.devices) == 2 for one in play.job("a").workers)


class GivesThree:
    """A policy that knows nothing of processes."""

    def decide(self, cluster: ClusterView, now: float) -> ClusterDecision:
        return ClusterDecision({job.name: Allotment(min(3, job.largest)) for job in cluster.jobs})


def test_what_a_policy_gives_is_taken_in_whole_workers() -> None:
    play = QueuePlay(n=4)
    play.submit("a", np=2, least=1, processes=2)
    play.look("a", step=5)
    play.policy = GivesThree()
    play.submit("b")
    assert leaving(play, "a") == ["a-2"]
    play.gone("a-2", told=True)
    assert (devices(play, "a"), devices(play, "b")) == ([("n", (0, 1))], [("n", (2,))])


# ------------------------------------------------------------------------------------------------------- migration


def test_whole_workers_leave_a_node_that_takes_none() -> None:
    play = QueuePlay(n=4, m=5)
    play.submit("a", np=2, least=1, most=2, processes=2)
    play.look("a", step=5)
    play.submit("b", np=2)
    play.look("b", step=5)
    assert (placed(play.job("a")), placed(play.job("b"))) == ({"n": 2}, {"m": 2})
    play.nodes["n"] = 0
    play.report("n")
    play(after=LONG)
    play(after=30)
    assert play.job("a").moving == {"n": 1, "m": 1}  # three devices are room for one
    assert leaving(play, "a") == ["a-2"]


def on_two_nodes() -> QueuePlay:
    """Job a has one of two devices on each of two nodes, and x and y have the others."""
    play = QueuePlay(n=2, m=2)
    for name in "xy":
        play.submit(name, user="v", spread=True)
    play.submit("a", np=2, least=1)
    play.look("a", step=5)
    assert placed(play.job("a")) == {"n": 1, "m": 1}
    return play


def test_a_job_that_waits_for_devices_of_one_node_has_others_packed() -> None:
    play = on_two_nodes()
    for name in "xy":
        play(CancelAsked(name))
        play.gone(f"{name}-1", told=True)
    play.submit("b", processes=2)
    assert play.job("b").phase is JobPhase.QUEUED
    play(after=LONG)
    play(after=30)
    assert len(play.job("a").moving) == 1
    play.gone(leaving(play, "a")[0], told=True)
    play.look("a", step=6)
    play(after=1)
    play.look("a", step=7)
    play(after=1)
    assert (
        placed(play.job("a")).keys() == {one.node for one in play.job("a").workers} and len(placed(play.job("a"))) == 1
    )
    assert play.job("b").phase is JobPhase.STARTING


def test_a_job_that_waits_for_more_devices_than_are_free_has_none_packed() -> None:
    play = on_two_nodes()
    play(CancelAsked("x"))
    play.gone("x-1", told=True)
    play.submit("b", processes=2)
    play(after=LONG)
    play(after=30)
    assert play.job("b").phase is JobPhase.QUEUED
    assert not play.job("a").moving


# ------------------------------------------------------------------------------------------- orders, agents and views


def test_an_order_has_all_devices_and_is_carried_out_when_all_are_free() -> None:
    play = QueuePlay(n=4)
    play.submit("a", np=2, processes=2)
    assert [one.devices for one in orders_of("n", {"a": play.job("a")})] == [(0, 1), (2, 3)]
    agent = AgentMachine()
    one = WorkerOrder("x-1", "x", 1, WorkerWish.RUN)
    two = WorkerOrder("a-1", "a", 0, WorkerWish.RUN, further=(1,))
    assert agent.handle(OrdersCame((one,)), 0) == [StartOne(one)]
    assert agent.handle(OrdersCame((one, two)), 1) == []
    assert agent.handle(WorkerGone("x-1", EndEvidence(code=0)), 2) == [StartOne(two)]
    agent.validate()


def test_what_was_stored_by_a_version_without_processes_is_read() -> None:
    text = b'{"id":"a-1","number":1,"node":"n","device":3,"life":1,"since":0.0,"began":0.0}'
    assert msgspec.json.decode(text, type=WorkerEntry).devices == (3,)


def test_the_devices_are_shown() -> None:
    play = QueuePlay(n=3)
    play.submit("a", processes=2)
    play.submit("b")
    found = shown(play.job("a"), play.now)
    assert (found.processes, [one.on for one in found.workers]) == (2, ["devices 0, 1"])
    assert [one.on for one in shown(play.job("b"), play.now).workers] == ["device 2"]
    assert play.job("a").story[0].words == "1 workers, 1 to 1, of 2 processes each"


# --------------------------------------------------------------------------------------------------------- wrong use


def wish(**more: object) -> JobWish:
    return msgspec.convert({"name": "a", "command": ("x",), "folder": "/", **more}, JobWish)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"processes": 9}, "processes 9: a worker has 8 at most"),
        ({"max_np": 1001, "processes": 2}, "max_np 1001: a job has 1,000 workers of 2 processes at most"),
        ({"max_np": 2001}, "max_np 2001: a job has 2,000 workers at most"),
    ],
)
def test_a_request_that_no_cluster_has_room_for_is_refused(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}$"):
        submission(wish(**asked), "u", 1.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"processes": 5}, "--processes 5: .* no node of the cluster has more than 4: ask for 4 at most, or start .*"),
        (
            {"processes": 3, "min_np": 2},
            "--min-np 2: the cluster has 7 devices, and room for 2 workers of 3 processes: .*",
        ),
        ({"min_np": 8}, "--min-np 8: the cluster has 7 devices: it would never begin"),
    ],
)
def test_a_request_that_would_never_begin_is_refused(asked: dict[str, int], said: str) -> None:
    nodes = [4, 3] if "min_np" not in asked or asked["min_np"] > 2 else [4, 2, 1]
    said = said.replace("room for 2", "room for 1")
    with pytest.raises(ConfigError, match=f"^{said}$"):
        check_fits(submission(wish(**asked), "u", 1.0), nodes, flags=True)
    with pytest.raises(ConfigError, match=r"^(processes|min_np) "):
        check_fits(submission(wish(**asked), "u", 1.0), nodes, flags=False)
    check_fits(submission(wish(processes=2, min_np=3), "u", 1.0), [4, 3], flags=True)
