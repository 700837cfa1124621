"""Whole clusters in simulated time: whatever dies, no job is lost or stuck or run twice, and no device is leaked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edl.cluster.queue import (
    agent_machine,
    device_assignment,
    job_lifecycle,
    queue_migration,
    queue_state,
    scheduler_machine,
)
from edl.cluster.queue.agent_machine import AgentMachine
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import TERMINAL, JobEntry, JobPhase, PhaseChange, WorkerWish, after
from edl.cluster.queue.queue_ownership import SeenTime
from edl.cluster.queue.queue_state import QueueState
from edl.cluster.queue.scheduler_inputs import ClusterRules, SendAway
from tests.model import cluster_simulation
from tests.model.cluster_simulation import ClusterPlay, SimHost

# nodes are left out after one failure, and jobs are soon settled
MOVING = ClusterRules(
    leave_s=20, save_s=8, save_slack_s=5, look_s=5, settled_s=2, move_s=40, sick_failures=1, sick_s=60
)


@pytest.mark.slow
def test_every_job_comes_to_its_end_whatever_dies() -> None:
    ends: set[JobPhase] = set()
    kinds: set[str] = set()
    for seed in range(45):
        play = ClusterPlay(seed).run()
        ends |= {entry.phase for entry in play.entries.values()}
        kinds |= {event.kind for event in play.events}
    assert ends == {JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED}
    wanted = {"job_preempted", "job_resuming", "job_scaling", "node_away", "node_left_out", "worker_gone", "decision"}
    assert wanted <= kinds  # else these seeds show less than they seem to


def test_jobs_move_to_other_nodes_and_come_to_their_end_whatever_dies() -> None:
    words: list[str] = []
    kinds: set[str] = set()
    for seed in range(25):
        play = ClusterPlay(seed, MOVING, roomy=True).run()
        assert {entry.phase for entry in play.entries.values()} <= TERMINAL
        words += [event.words for event in play.events if event.kind == "migrating"]
        kinds |= {event.kind for event in play.events}
    assert "migrated" in kinds
    for how in ("it moves while it trains", "it is saved and begins again", "is left out", "fits on fewer nodes"):
        assert any(how in one for one in words), how


def test_jobs_whose_workers_have_several_devices_come_to_their_end_whatever_dies() -> None:
    each: set[int] = set()
    for seed in range(12):
        for play in (ClusterPlay(seed, limbs=True).run(), ClusterPlay(seed, MOVING, roomy=True, limbs=True).run()):
            each |= {entry.asked.processes for entry in play.entries.values() if entry.used}
    assert {1, 2, 3} <= each


def test_a_worker_that_holds_only_its_first_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_assignment, "free_devices", _held_by_first_processes)
    for seed in range(20):
        try:
            ClusterPlay(seed, limbs=True).run()
        except AssertionError:
            return
    pytest.fail("no cluster of 20 has noticed it")


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_thousands_of_clusters() -> None:
    for seed in range(60, 3000):
        for limbs in (False, True):
            ClusterPlay(seed, limbs=limbs).run()
            ClusterPlay(seed, MOVING, roomy=True, limbs=limbs).run()


def test_a_cluster_that_is_to_stop_has_no_process_left_and_loses_no_job() -> None:
    for seed in range(20):
        play = ClusterPlay(seed, drain_at=60).run()
        assert all(entry.over or entry.waits for entry in play.entries.values())


def test_who_leads_no_more_sends_no_later_life_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster in which a request to go came late, and a life that nobody waits for to go stood still for it."""
    ClusterPlay(704878).run()
    monkeypatch.setattr(job_lifecycle, "SendAway", lambda job, _, *rest: SendAway(job, 0, *rest))
    with pytest.raises(AssertionError, match="not at rest"):
        ClusterPlay(704878).run()


def test_the_same_seed_is_the_same_cluster() -> None:
    first, again = ClusterPlay(7).run(), ClusterPlay(7).run()
    assert (first.events, first.entries, first.now) == (again.events, again.entries, again.now)


# ------------------------------------------------------------------------------------------------------ wrong rules


def _free_as_soon_as_told(devices: Any, node: str, jobs: Any) -> list[int]:
    workers = (one for job in jobs for one in job.workers if one.node == node and one.wish is WorkerWish.RUN)
    held = {device for one in workers for device in one.devices}
    return [device for device in devices if device not in held]


def _held_by_first_processes(devices: Any, node: str, jobs: Any) -> list[int]:
    held = {one.device for job in jobs for one in job.workers if one.node == node}
    return [device for device in devices if device not in held]


def _forgives(job: JobEntry, *rest: Any) -> job_lifecycle.JobVerdict:
    return job_lifecycle.JobVerdict(again=True, words="", job=job)


def _no_final_word(queue: QueueState, job: JobEntry, now: float) -> None:
    if job.ready:
        queue.turn(job, PhaseChange.ENDED, now)


def _all_are_lost(queue: QueueState, name: str, now: float) -> None:
    node = queue.nodes.get(name)
    for job in list(queue.jobs.values()):
        rest = tuple(one for one in job.workers if one.node != name)
        if node is not None and rest != job.workers:
            queue.put(job, now, workers=rest)


def _forgets_what_it_started(self: AgentMachine, happened: Any, now: float) -> list[Any]:
    if isinstance(happened, agent_machine.WorkerFound):
        return []
    return HANDLE(self, happened, now)


def _gone_at_once(self: AgentMachine, happened: Any, now: float) -> list[Any]:
    todo = HANDLE(self, happened, now)
    return [more for one in todo for more in _or_gone(self, one, now)]


def _or_gone(machine: AgentMachine, one: Any, now: float) -> list[Any]:
    return (
        HANDLE(machine, agent_machine.WorkerGone(one.id, EndEvidence()), now)
        if isinstance(one, agent_machine.BarOne)
        else [one]
    )


def _outlived_by_nothing(play: ClusterPlay, id_: str, evidence: EndEvidence) -> None:
    host = play.hosts[play.processes[id_].node]
    END(play, id_, evidence)
    host.claims[id_] = (host.claims[id_][0], evidence)


def _half_withdrawn(_: ClusterPlay, host: SimHost, id_: str) -> None:
    host.claims[id_] = (host.claims[id_][0], EndEvidence())


def _as_the_wall_clock_says(time: SeenTime, wall: float, *_: Any) -> float:
    time.now = wall
    return wall


def _from_now_on(queue: QueueState, now: float) -> None:
    queue.began = now


HANDLE, END = AgentMachine.handle, ClusterPlay.end
WRONG: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a device is free as soon as its worker is told to go": (device_assignment, "free_devices", _free_as_soon_as_told),
    "who does not go is waited for for ever": (job_lifecycle, "_hurry", lambda *_: None),
    "every failure is forgiven": (job_lifecycle, "judge", _forgives),
    "a life without workers has ended well": (job_lifecycle, "_ended", _no_final_word),
    "workers of an agent that is away are gone": (
        scheduler_machine.SchedulerMachine,
        "_went",
        lambda self, name, now: _all_are_lost(self._state, name, now),
    ),
    "an agent that comes back knows of no worker": (AgentMachine, "handle", _forgets_what_it_started),
    "an agent kills no strays and no worker": (AgentMachine, "_press", lambda *_: ()),
    "a worker is told to be gone though an agent that was paused may start it": (AgentMachine, "handle", _gone_at_once),
    "a claim that was found half made is not withdrawn": (ClusterPlay, "_withdraw", _half_withdrawn),
    "a worker is gone with its first process": (ClusterPlay, "end", _outlived_by_nothing),
    "every cluster acts on the queue": (cluster_simulation, "is_owner", lambda *_, **__: True),
    "the wall clock decides": (SeenTime, "advance", _as_the_wall_clock_says),
    "a scheduler believes what the clocks of others said": (QueueState, "begin", _from_now_on),
    "time counts that no scheduler has seen": (QueueState, "seen_since", lambda _, since: since),
    "terminal states are not final": (
        queue_state,
        "after",
        lambda phase, turn: JobPhase.QUEUED if phase is JobPhase.RUNNING else after(phase, turn),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = WRONG[rule]
    monkeypatch.setattr(where, name, wrong)
    assert queue_state.free_devices is not _free_as_soon_as_told
    for seed in range(100):
        try:
            ClusterPlay(seed).run()
        except Exception:  # noqa: BLE001 - a check, or the machine's own table
            return
    pytest.fail(f"no cluster of 100 has noticed that {rule}")


WRONG_MOVES: dict[str, tuple[Any, str, Any]] = {
    "a job takes newcomers beyond its most": (JobEntry, "vacancies", property(lambda job: job.asked.max_np)),
    "each job migrates whatever others do": (queue_migration, "_moving", lambda _: []),
    "a node that is left out is given workers": (queue_state.SeenNode, "takes", lambda node, _: node.there),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", WRONG_MOVES)
def test_a_wrong_rule_of_migration_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = WRONG_MOVES[rule]
    monkeypatch.setattr(where, name, wrong)
    for seed in range(100):
        try:
            ClusterPlay(seed, MOVING, roomy=True).run()
        except AssertionError:  # one of the checks
            return
    pytest.fail(f"no cluster of 100 has noticed that {rule}")
