"""Jobs that move to other nodes: which, when, and by which steps."""

from __future__ import annotations

import pytest
from queue_play import RULES, QueuePlay

from edl.cluster.queue.measured_speeds import UnknownSpeeds
from edl.cluster.queue.queue_entries import JobPhase, NodeReport, WorkerWish
from edl.cluster.queue.queue_migration import packed
from edl.cluster.queue.queue_state import placed
from edl.cluster.queue.scheduler_inputs import CancelAsked, ClusterRules, DrainAsked, NodeReported, SendAway, SizeWanted
from edl.cluster.queue.scheduler_machine import SchedulerMachine

LONG = RULES.settled_s + 1


@pytest.mark.parametrize(
    ("before", "room", "after"),
    [
        ({"n": 1, "m": 1}, {"m": 1, "o": 4}, {"m": 2}),  # whom it can spare the move stays
        ({"n": 1, "m": 1}, {"o": 2}, {"o": 2}),
        ({"n": 1, "m": 1}, {"o": 1}, None),
        ({"n": 3}, {"o": 4}, None),  # it is on as few as can be
        ({"n": 2, "m": 2, "o": 2}, {"n": 2, "p": 1}, {"n": 4, "m": 2}),
        ({"n": 2, "m": 2, "o": 2}, {"n": 1, "p": 4}, {"n": 3, "p": 3}),
        ({"n": 2, "m": 2}, {"n": -1, "m": 1}, None),
    ],
)
def test_a_job_is_packed_onto_fewer_nodes_with_as_few_moves_as_can_be(before, room, after) -> None:
    assert packed(before, room) == after


def straddling(least: int = 1, most: int = 2, rules: ClusterRules = RULES, **more: object) -> QueuePlay:
    """Job `a` has one worker on each of two nodes, and then all else is free."""
    play = QueuePlay(rules=rules, n=2, m=2)
    play.submit("x", user="v")
    play.submit("y", user="v", spread=True)
    play.submit("a", np=2, least=least, most=most, **more)
    play.look("a", step=5)
    assert placed(play.job("a")) == {"n": 1, "m": 1}
    for name in "xy":
        play(CancelAsked(name))
        play.gone(f"{name}-1", told=True)
    return play


def leaving(play: QueuePlay, name: str = "a") -> list[str]:
    return [worker.id for worker in play.job(name).workers if worker.wish is WorkerWish.LEAVE]


def migrations(play: QueuePlay, name: str = "a") -> list[str]:
    return [event.words for event in play.job(name).story if event.kind == "migrating"]


def test_a_job_that_may_have_more_workers_grows_on_its_new_node_before_it_leaves_the_old_one() -> None:
    play = straddling(least=2, most=3)
    play(after=LONG)
    job = play.job("a")
    assert (len(job.staying), leaving(play), sorted(job.moving.values())) == (3, [], [2])
    [target] = job.moving
    play(after=20.0)
    assert leaving(play) == []  # the newcomer does not train yet
    play.look("a", step=9, size=3)
    [old] = leaving(play)
    play.gone(old, code=0, told=True)
    play.look("a", step=12, size=2)
    job = play.job("a")
    assert (placed(job), job.phase, job.life, job.moving) == ({target: 2}, JobPhase.RUNNING, 1, {})
    assert "migrated" in play.told
    [words] = migrations(play)
    assert words == f"it moves while it trains, from m: 1, n: 1 to {target}: 2: it fits on fewer nodes"
    assert not any(isinstance(act, SendAway) for act in play.acts)


def test_a_job_with_as_many_workers_as_it_may_have_leaves_first_and_is_never_beyond_them() -> None:
    play = straddling(least=1, most=2)
    play(after=LONG)
    [old] = leaving(play)
    [target] = play.job("a").moving
    play(after=1.0)
    assert len(play.workers("a")) == 2  # a newcomer would be refused as long as the other is there
    play.gone(old, code=0, told=True)
    assert len(play.workers("a")) == 1  # the other trains by itself first
    play.look("a", step=9, size=1)
    assert placed(play.job("a")) == {target: 2}
    play.look("a", step=12, size=2)
    play()
    assert (play.job("a").phase, play.job("a").moving, play.job("a").life) == (JobPhase.RUNNING, {}, 1)


def test_a_job_of_a_fixed_size_is_not_stopped_to_be_packed() -> None:
    play = straddling(least=2, most=2)
    play(after=LONG)
    play(after=LONG)
    assert (migrations(play), play.job("a").phase) == ([], JobPhase.RUNNING)


@pytest.mark.parametrize("why", ["settled", "spread", "waits", "drains"])
def test_a_job_stays_where_it_is_while(why: str) -> None:
    play = straddling(spread=why == "spread")
    if why == "waits":
        play.submit("b", np=4)
    if why == "drains":
        play(DrainAsked())
    play(after=LONG if why != "settled" else RULES.settled_s / 2)
    assert migrations(play) == []
    if why == "settled":
        play(after=RULES.settled_s)
        assert len(migrations(play)) == 1


def test_one_job_moves_at_a_time() -> None:
    play = QueuePlay(n=2, m=2, o=2)
    for name in ("x", "y"):
        play.submit(name)
        play.submit(f"{name}2", spread=True)
    for name in "ab":
        play.submit(name, np=1, least=1, most=2, spread=True)
    for name in ("x", "y", "x2", "y2"):
        play(CancelAsked(name))
        play.gone(f"{name}-1", told=True)
    left = [worker.node for name in "ab" for worker in play.job(name).workers]
    for name in "ab":
        play.look(name, step=5)
    for node in set(left):
        play.machine.nodes[node].left_out_until = play.now + 1000
    play(after=RULES.look_s)
    assert [bool(play.job(name).moving) for name in "ab"] == [True, False]
    moved(play, "a")
    play()
    assert [bool(play.job(name).moving) for name in "ab"] == [False, True]
    moved(play, "b")
    assert not {worker.node for name in "ab" for worker in play.job(name).workers} & set(left)


def moved(play: QueuePlay, name: str) -> None:
    """All that is asked of it comes about."""
    for _ in range(8):
        for worker in leaving(play, name):
            play.gone(worker, code=0, told=True)
        play.look(name, step=50)


def on_a_bad_node(least: int, most: int) -> tuple[QueuePlay, str]:
    """Job `a` trains with two workers on a node that is left out."""
    play = QueuePlay(n=2, m=2)
    play.submit("a", np=2, least=least, most=most)
    play.look("a", step=5)
    [bad] = placed(play.job("a"))
    play.machine.nodes[bad].left_out_until = play.now + RULES.sick_s
    return play, bad


@pytest.mark.parametrize(("least", "most"), [(1, 2), (2, 3), (2, 4)])
def test_a_job_leaves_a_node_that_is_left_out_while_it_trains(least: int, most: int) -> None:
    play, bad = on_a_bad_node(least, most)
    play(after=RULES.look_s)
    for _ in range(12):
        for worker in leaving(play):
            play.gone(worker, code=0, told=True)
        play.look("a", step=9)
        job = play.job("a")
        assert least <= len(job.staying) <= len(job.workers) <= most
    job = play.job("a")
    assert (bad in placed(job), len(job.staying), job.life, job.moving) == (False, 2, 1, {})
    assert migrations(play) == [
        f"it moves while it trains, from {bad}: 2 to {'m' if bad == 'n' else 'n'}: 2: {bad} is left out"
    ]


def test_a_job_of_a_fixed_size_is_saved_and_goes_on_elsewhere_only_where_its_node_is_left_out() -> None:
    play, bad = on_a_bad_node(2, 2)
    play(after=RULES.look_s)
    assert [act.reason for act in play.acts if isinstance(act, SendAway)] == [f"{bad} is left out"]
    play.end("a", state="preempted", code=75, step=9)
    job = play.job("a")
    assert (job.phase, job.life, bad in placed(job)) == (JobPhase.RESUMING, 2, False)


def test_a_node_that_takes_no_workers_is_left_after_a_while_and_never_by_a_stop() -> None:
    for least, moves in ((1, 1), (2, 0)):
        play = QueuePlay(n=2, m=2)
        play.submit("a", np=2, least=least)
        play.look("a", step=5)
        [node] = placed(play.job("a"))
        play(NodeReported(NodeReport(node, ())))  # cordoned, or its agent has only just begun
        assert migrations(play) == []
        play(after=LONG)
        assert len(migrations(play)) == moves
        assert all(f"{node} takes no workers" in words for words in migrations(play))
        assert play.job("a").phase is not JobPhase.PREEMPTING


def test_a_quota_holds_while_a_job_moves() -> None:
    play = straddling(least=1, most=4, rules=ClusterRules(decide_s=0.0, quotas={"u": 2}))
    play(after=LONG)
    assert (len(play.workers("a")), len(leaving(play))) == (2, 1)  # it may have four, and its owner two


def test_another_scheduler_goes_on_with_a_migration() -> None:
    from edl.cluster.policies.registry import build

    play = straddling(least=2, most=3)
    play(after=LONG)
    target = play.job("a").moving
    play.machine = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, list(play.machine.jobs.values()))
    play(*(NodeReported(NodeReport(node, (0, 1))) for node in "nm"))
    assert play.job("a").moving == target
    moved(play, "a")
    assert (placed(play.job("a")), play.job("a").life) == (target, 1)


def test_a_migration_of_which_nothing_comes_ends_and_the_job_has_as_many_workers_as_before() -> None:
    play = straddling(least=2, most=3)
    play(after=LONG)
    newcomer = play.job("a").workers[-1].id
    play(after=RULES.move_s)  # it has never come up
    assert (play.job("a").moving, leaving(play)) == ({}, [newcomer])
    assert "migration_failed" in play.told
    play.gone(newcomer, code=0, told=True)
    play.look("a", step=9, size=2)
    assert (play.job("a").phase, len(play.job("a").staying), len(migrations(play))) == (JobPhase.RUNNING, 2, 1)


def test_a_job_that_is_to_have_another_size_moves_no_further() -> None:
    play = straddling(least=1, most=3)
    play(after=LONG)
    assert play.job("a").moving
    play(SizeWanted("a", 1))
    moved(play, "a")
    assert (len(play.job("a").workers), play.job("a").moving, play.job("a").life) == (1, {}, 1)


def test_nobody_comes_to_a_device_that_a_job_has_given_up_on_a_node_that_is_left_out() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play.look("a", step=5)
    play.machine.nodes["n"].left_out_until = play.now + 100
    play.submit("b", priority=5)
    assert leaving(play) == ["a-2"]  # to make room for the other
    play.gone("a-2", code=0, told=True)
    play(after=20.0)
    assert play.workers("b") == []
    play(after=100.0)
    assert [worker.node for worker in play.job("b").workers] == ["n"]


def test_a_node_that_is_left_out_after_a_decision_is_given_no_worker_by_it() -> None:
    play = QueuePlay(rules=ClusterRules(decide_s=10.0), n=2)
    play(after=20.0)
    play.submit("a", np=2, least=1)
    play(after=10.0)
    play.look("a", step=5)
    play.submit("b", priority=5)
    play(after=10.0)
    assert leaving(play) == ["a-2"]
    play.machine.nodes["n"].left_out_until = play.now + 1000
    play.gone("a-2", code=0, told=True)  # before it is decided again
    assert (play.workers("a"), play.workers("b")) == (["a-1"], [])


def test_a_migration_ends_where_its_new_node_is_left_out_too() -> None:
    play = straddling(least=1, most=2)
    play(after=LONG)
    [target] = play.job("a").moving
    play.machine.nodes[target].left_out_until = play.now + 1000
    [old] = leaving(play)
    play.gone(old, code=0, told=True)
    play.look("a", step=9, size=1)
    play(after=RULES.look_s)
    assert "migration_failed" in play.told
    assert "its new place is not free any more" in [event.words for event in play.job("a").story]
    moved(play, "a")
    play(after=RULES.look_s)
    moved(play, "a")
    assert placed(play.job("a")) == {"m" if target == "n" else "n": 2}  # the one that is not left out
