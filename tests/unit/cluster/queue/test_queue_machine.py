"""One rule of the scheduler's machine at a time."""

from __future__ import annotations

import msgspec
import pytest
from queue_play import RULES, QueuePlay

from edl.cluster.policies.registry import POLICIES, build, known
from edl.cluster.queue import job_lifecycle
from edl.cluster.queue.device_assignment import BATCH_AGAIN_S, Shares, outlook
from edl.cluster.queue.job_view import left_out_by
from edl.cluster.queue.measured_speeds import UnknownSpeeds
from edl.cluster.queue.queue_entries import (
    TERMINAL,
    TRANSITIONS,
    JobPhase,
    NodeReport,
    PhaseChange,
    QueueEvent,
    Submission,
    WorkerSeen,
    WorkerWish,
    after,
    orders_of,
)
from edl.cluster.queue.scheduler_inputs import (
    CancelAsked,
    ChangeBatch,
    ClusterRules,
    DrainAsked,
    JobLook,
    JobLooked,
    LifeRefused,
    LookOnce,
    NodeLeftOut,
    NodeReported,
    NodeWent,
    SendAway,
    SizeWanted,
    Submitted,
)
from edl.cluster.queue.scheduler_machine import SchedulerMachine
from edl.errors import InvalidTransition
from edl.protocol.record import FailedBy

BUG = "Traceback (most recent call last):\n  File t.py\nValueError: no\n"
FOLLOWS = "Traceback (most recent call last):\n  File t.py\nedl.errors.JobFailed: no worker has the model\n"
FLAKY = "Traceback (most recent call last):\n  File t.py\nConnectionResetError: no\n"


def test_nothing_leads_out_of_a_terminal_phase() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(JobPhase) - TERMINAL
    with pytest.raises(InvalidTransition):
        after(JobPhase.FINISHED, PhaseChange.AGAIN)


def test_the_file_of_a_jobs_variables_is_kept_with_it() -> None:
    play = QueuePlay(n=1)
    asked = play.submit("a").asked
    play(Submitted(msgspec.structs.replace(asked, name="b"), "file of b"))
    assert play.job("b").environ == "file of b"


def test_a_job_has_all_of_its_fewest_workers_or_none() -> None:
    play = QueuePlay(n=3)
    play.submit("a", np=2)
    play.submit("b", np=2)
    assert (play.job("a").phase, play.workers("a")) == (JobPhase.STARTING, ["a-1", "a-2"])
    assert (play.job("b").phase, play.workers("b")) == (JobPhase.QUEUED, [])


def test_workers_are_ordered_only_once_it_is_known_where_the_life_begins() -> None:
    play = QueuePlay(n=1)
    machine = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, [])
    play.machine, play.acts = machine, []
    machine.handle([NodeReported(NodeReport("n", (0,)))], 1.0)
    job = play.submit("a")
    assert [order.id for order in orders_of("n", {"a": job})] == ["a-1"]
    assert orders_of("n", {"a": msgspec.structs.replace(job, ready=False)}) == ()


def test_a_device_is_free_once_its_process_is_gone_and_not_before() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2)
    play(CancelAsked("a"))
    play.submit("b", np=2)
    assert (play.job("a").phase, play.job("b").phase) == (JobPhase.CANCELLED, JobPhase.QUEUED)
    assert all(worker.wish is WorkerWish.LEAVE for worker in play.job("a").workers)
    play.gone("a-1", told=True)
    assert play.job("b").phase is JobPhase.QUEUED
    play.gone("a-2", told=True)
    assert play.job("b").phase is JobPhase.STARTING


def test_who_is_cancelled_and_stays_is_killed() -> None:
    play = QueuePlay()
    play.submit("a")
    play(CancelAsked("a"))
    play(after=RULES.cancel_s)
    assert [worker.wish for worker in play.job("a").workers] == [WorkerWish.DIE]


def test_a_job_ends_as_its_leaders_last_word_says_and_that_is_read_after_the_last_worker() -> None:
    play = QueuePlay()
    play.submit("a")
    play.look("a", step=5)
    play.gone("a-1", code=0)
    assert play.job("a").phase is JobPhase.RUNNING
    assert LookOnce("a", 1) in play.acts
    play(JobLooked("a", 1, JobLook("finished", step=9), final=True))
    job = play.job("a")
    assert (job.phase, job.step, job.ended) == (JobPhase.FINISHED, 9, play.now)


def test_a_command_that_is_no_job_of_edl_ends_by_its_exit_codes() -> None:
    play = QueuePlay()
    play.submit("good")
    play.submit("bad")
    play.submit("saved")
    assert play.end("good").phase is JobPhase.FINISHED
    assert play.end("bad", code=1, tail=BUG).phase is JobPhase.FAILED
    assert play.job("bad").cause.code == "script-error"
    assert play.end("saved", code=75).preemptions == 0
    assert play.job("saved").life == 2  # there is room for it at once


def test_a_failure_that_another_try_may_mend_is_tried_again_and_the_same_at_the_same_step_is_not() -> None:
    play = QueuePlay()
    play.submit("a")
    assert play.end("a", code=-11).life == 2
    job = play.end("a", code=-11)
    assert (job.phase, "for the same cause at step 0 again" in job.reason) == (JobPhase.FAILED, True)


def test_two_faults_are_the_same_but_for_numbers_and_addresses_and_not_for_exit_codes() -> None:
    play = QueuePlay()
    play.submit("a")
    assert play.end("a", code=3, tail="no answer of 0x7f80aa12 in 5.5 s").life == 2
    assert play.end("a", code=4, tail="no answer of 0x7f80aa12 in 5.5 s").life == 3
    job = play.end("a", code=3, tail="no answer of 0x6e71bb03 in 10.25 s")
    assert (job.phase, "for the same cause at step 0 again" in job.reason) == (JobPhase.FAILED, True)


def test_the_machines_are_forgiven_more_often() -> None:
    play = QueuePlay()
    play.submit("a")
    for life in range(1, 11):
        assert (play.job("a").phase, play.job("a").life) == (
            JobPhase.STARTING if life == 1 else JobPhase.RESUMING,
            life,
        )
        play.end("a", code=-9)
    job = play.end("a", code=-9)
    assert (job.phase, "11 failures without progress" in job.reason) == (JobPhase.FAILED, True)


def test_progress_refills_the_budget() -> None:
    play = QueuePlay()
    play.submit("a")
    for step in range(0, 60, RULES.retries.progress):
        play.look("a", step=step)
        play.end("a", state="failed", code=1, tail="odd", step=step)
        assert play.job("a").tries_left == RULES.retries.tries - 1
    assert play.job("a").phase is JobPhase.RESUMING


def test_two_workers_that_die_together_are_one_failure() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play.look("a", step=3)
    play.report("n", *(WorkerSeen(one, gone=True, evidence=crashed()) for one in ("a-1", "a-2")))
    play(JobLooked("a", 1, JobLook("failed", step=3), final=True))
    assert (play.job("a").phase, len(play.job("a").strikes)) == (JobPhase.RESUMING, 1)


def crashed():
    from edl.cluster.queue.end_causes import EndEvidence

    return EndEvidence(code=-11)


def test_others_go_on_where_one_worker_crashes_and_another_comes_in_its_place() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play.look("a", step=30)
    play.gone("a-2", code=-11)
    assert play.workers("a") == ["a-1", "a-3"]
    play.look("a", step=30, size=1)
    assert play.job("a").phase is JobPhase.SCALING
    play.look("a", step=31, size=2)
    assert play.job("a").phase is JobPhase.RUNNING


def test_a_fault_of_the_script_before_it_trains_ends_all_of_the_job() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2)
    play.gone("a-2", code=1, tail=BUG)
    assert play.job("a").phase is JobPhase.FAILED
    assert [worker.wish for worker in play.job("a").workers] == [WorkerWish.DIE]


def test_a_job_that_ends_takes_no_more_workers() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play.look("a", step=30)
    play.gone("a-2", code=0)
    assert play.workers("a") == ["a-1"]


def test_a_life_that_its_leader_says_has_failed_takes_no_more_workers() -> None:
    """Each that comes ends at once, as no other has the model: one after the other would come for ever."""
    play = QueuePlay(n=3)
    play.submit("a", np=2, least=1)
    play.look("a", step=30)
    play(JobLooked("a", 1, JobLook("failed", reason="no worker is left that has the model's state", step=30)))
    play.gone("a-2", code=1, tail=FOLLOWS)
    assert play.workers("a") == ["a-1"]
    play.now += 1
    play()
    assert play.workers("a") == ["a-1"]


def test_who_stops_a_job_by_hand_has_cancelled_it() -> None:
    play = QueuePlay()
    play.submit("a")
    play.look("a")
    assert play.end("a", state="failed", code=1, failed_by=FailedBy.STOP).phase is JobPhase.CANCELLED


def test_workers_that_differ_are_no_reason_to_try_again() -> None:
    play = QueuePlay()
    play.submit("a")
    play.look("a")
    assert play.end("a", state="failed", code=1, failed_by=FailedBy.DIVERGENCE, reason="x").phase is JobPhase.FAILED


def test_higher_priority_shrinks_others_before_any_is_sent_away() -> None:
    play = QueuePlay(n=4)
    play.submit("a", np=4, least=1)
    play.look("a")
    play.submit("b", np=2, priority=5)
    leaving = [worker.id for worker in play.job("a").workers if worker.wish is WorkerWish.LEAVE]
    assert leaving == ["a-3", "a-4"]  # the newest; who has the model stays
    assert (play.job("a").phase, play.workers("b")) == (JobPhase.SCALING, [])
    for one in leaving:
        play.gone(one, code=0, told=True)
    assert play.workers("b") == ["b-1", "b-2"]
    play()
    play.look("a", size=2)
    assert (play.job("a").phase, len(play.job("a").staying)) == (JobPhase.RUNNING, 2)  # and it stays so
    assert not any(isinstance(act, SendAway) for act in play.acts)


def test_while_one_is_being_saved_no_other_is_sent_away_for_the_same_need() -> None:
    """Each decision until its devices are free finds the urgent job waiting."""
    play = QueuePlay(n=4)
    for name in ("a", "b"):
        play.submit(name, np=2)
        play.look(name, step=8)
    play.submit("urgent", np=2, priority=1)
    assert play.job("b").phase is JobPhase.PREEMPTING
    play.submit("later")  # a reason to decide again
    assert play.job("a").phase is JobPhase.RUNNING
    assert [worker.id for worker in play.job("b").workers] == ["b-1", "b-2"]
    play.end("b", state="preempted", code=75, step=9)
    assert play.workers("urgent") == ["urgent-1", "urgent-2"]
    assert [act.job for act in play.acts if isinstance(act, SendAway)] == ["b"]


def test_who_cannot_shrink_is_saved_sent_away_and_resumed_later() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2)
    play.look("a", step=8)
    play.submit("b", np=2, priority=1)
    assert play.job("a").phase is JobPhase.PREEMPTING
    assert [act for act in play.acts if isinstance(act, SendAway)] == [
        SendAway("a", 1, RULES.save_s, "its devices are for job b of priority 1")
    ]
    assert all(worker.wish is WorkerWish.RUN for worker in play.job("a").workers)
    assert play.end("a", state="preempted", code=75, step=9).phase is JobPhase.PREEMPTED
    play.look("b")
    assert play.end("b", state="finished").phase is JobPhase.FINISHED
    job = play.job("a")
    assert (job.phase, job.life, job.step) == (JobPhase.RESUMING, 2, 0)  # step: as the checkpoint says


def test_who_is_sent_away_by_the_policy_is_told_for_whom() -> None:
    from edl.cluster.views import Allotment, ClusterDecision

    class Turns:
        def decide(self, cluster, now):
            return ClusterDecision({job.name: Allotment(1) for job in cluster.jobs[1:]})

    play = QueuePlay(n=1)
    play.submit("a")
    play.look("a")
    play.policy = Turns()
    play.submit("b")
    assert play.job("a").reason == "its devices are for job b"
    assert "from 1 to 0 workers: its devices are for job b" in [event.words for event in play.job("a").story]


def test_who_is_not_saved_in_time_is_killed() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2)
    play.look("a")
    play.submit("b", np=2, priority=1)
    play(after=RULES.save_s + RULES.save_slack_s)
    assert {worker.wish for worker in play.job("a").workers} == {WorkerWish.DIE}


def test_a_new_scheduler_goes_on_from_what_was_durable() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play.look("a")
    again = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, list(play.machine.jobs.values()))
    resolved = again.handle([NodeReported(NodeReport("n", (0, 1))), NodeWent("n")], play.now + 1)
    assert again.jobs["a"].workers == play.job("a").workers
    assert "a" not in resolved.changed or resolved.changed["a"].workers == play.job("a").workers


def test_an_agent_that_is_away_frees_nothing_and_is_given_nothing() -> None:
    play = QueuePlay(n=1, m=1)
    play.submit("a")
    held = play.job("a").workers[0].node
    other = "m" if held == "n" else "n"
    play(NodeWent("n"), NodeWent("m"))
    play.submit("b")
    assert play.workers("b") == []
    assert len(play.job("a").workers) == 1
    play.report(other)
    assert [worker.node for worker in play.job("b").workers] == [other]


def test_a_node_that_fails_its_workers_is_left_out_for_a_while() -> None:
    play = QueuePlay(n=2, m=2)
    play.submit("x", np=2)
    [other] = {worker.node for worker in play.job("x").workers}
    bad = "m" if other == "n" else "n"
    for number in range(RULES.sick_failures):  # one after the other, on the node where there is room
        name = f"a{number}"
        play.submit(name)
        assert [worker.node for worker in play.job(name).workers] == [bad]
        play.gone(f"{name}-1", code=-9)
        play(CancelAsked(name))
    left_out = {name: node.left_out_until for name, node in play.machine.nodes.items() if node.left_out_until}
    assert left_out.keys() == {bad}
    assert play.now - 5 < left_out[bad] - RULES.sick_s <= play.now
    play.submit("b")
    play(after=RULES.sick_s / 2)
    assert play.workers("b") == []
    play(after=RULES.sick_s / 2)
    assert [worker.node for worker in play.job("b").workers] == [bad]


def test_a_node_that_is_left_out_is_so_under_the_next_scheduler_too() -> None:
    play = QueuePlay(n=1)
    play(NodeLeftOut("n", play.now + 50), NodeLeftOut("unknown", play.now + 50))
    play.submit("a")
    assert play.workers("a") == []
    assert play.machine.nodes.keys() == {"n"}
    play(after=50.0)
    assert play.workers("a") == ["a-1"]
    story = (
        QueueEvent(1.0, "node_left_out", "", "x", {"node": "n", "until": 301.5}),
        QueueEvent(2.0, "node_left_out", "", "of a scheduler before"),
        QueueEvent(3.0, "node_away", "", "x"),
        QueueEvent(4.0, "node_left_out", "", "x", {"node": "m", "until": 302.5, "user": "ann"}),
    )
    assert left_out_by(story) == {"n": (301.5, ""), "m": (302.5, "ann")}
    assert left_out_by((*story, QueueEvent(5.0, "node_let_in", "", "x", {"node": "m"}))) == {"n": (301.5, "")}


def test_who_lost_its_machine_has_not_failed_and_neither_has_its_node() -> None:
    play = QueuePlay(n=2, m=1)
    play.submit("a", np=2, least=1)
    play.look("a", step=5)
    for _ in range(RULES.sick_failures):
        taken = play.workers("a")[-1]
        play.gone(taken, code=0, taken="Slurm has preempted it")
        play()
        assert len(play.workers("a")) == 2
        assert taken not in play.workers("a")
    job = play.job("a")
    assert (job.phase, job.strikes, job.tries_left) == (JobPhase.RUNNING, (), RULES.retries.tries)
    assert "node_left_out" not in play.told


def test_a_command_that_was_taken_away_begins_anew_though_it_ended_with_0() -> None:
    play = QueuePlay()
    play.submit("a")
    play.gone("a-1", code=0, taken="Slurm has preempted it")
    play(JobLooked("a", 1, JobLook(), final=True))
    assert (play.job("a").phase, play.job("a").life) == (JobPhase.RESUMING, 2)


def test_a_node_with_nothing_to_give_is_given_nothing_until_it_has() -> None:
    play = QueuePlay(n=1)
    play(NodeReported(NodeReport("n", ())))
    play.submit("a")
    assert play.job("a").phase is JobPhase.QUEUED
    play.report("n")
    assert play.job("a").phase is JobPhase.STARTING


def test_quotas_hold_for_all_policies() -> None:
    for policy in ("fifo", "tiresias", "elastic-tiresias", "dp"):
        rules = ClusterRules(decide_s=0.0, quotas={"u": 2})
        play = QueuePlay(policy, rules, n=4)
        play.submit("a", np=2, least=1, most=4)
        play.submit("b", np=2)
        play.submit("c", user="other")
        assert len(play.workers("a")) + len(play.workers("b")) <= 2
        assert play.workers("c")


def test_a_policy_that_fails_is_told_of_and_ends_nothing() -> None:
    class Broken:
        def decide(self, cluster, now):
            raise ZeroDivisionError("oh")

    play = QueuePlay(n=2)
    play.submit("a")
    play.policy = Broken()
    play.submit("b")
    assert (play.job("a").phase, play.job("b").phase) == (JobPhase.STARTING, JobPhase.QUEUED)
    assert "policy_failed" in play.told


def test_a_job_that_is_larger_than_the_cluster_holds_up_nobody() -> None:
    play = QueuePlay(n=2)
    play.submit("big", np=3)
    play.submit("small")
    assert (play.job("big").phase, play.job("small").phase) == (JobPhase.QUEUED, JobPhase.STARTING)


def test_a_cluster_that_stops_saves_what_trains_and_begins_nothing() -> None:
    play = QueuePlay(n=2)
    play.submit("a")
    play.look("a")
    play.submit("b")
    play(DrainAsked())
    assert (play.job("a").phase, play.job("b").phase) == (JobPhase.PREEMPTING, JobPhase.PREEMPTING)
    play.submit("c")
    assert play.job("c").phase is JobPhase.QUEUED
    play(DrainAsked(kill=True))
    assert {worker.wish for name in "ab" for worker in play.job(name).workers} == {WorkerWish.DIE}


def test_a_life_that_cannot_begin_is_a_failure() -> None:
    play = QueuePlay(n=1)
    play.machine.handle([], play.now)
    job = play.submit("a")
    assert job.ready
    play.end("a", code=-9)
    waiting = play.job("a")
    play(LifeRefused("a", waiting.life + 7, "stale", again=False))
    assert play.job("a").phase is not JobPhase.FAILED


def test_what_devices_were_used_for_adds_up() -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2, least=1)
    play(after=10.0)
    play.look("a", step=10, step_s=0.5)
    play(after=20.0)
    job = play.end("a", state="failed", code=-9, step=10, step_s=0.5)
    held = sum(job.used.values())
    assert held == pytest.approx(2 * (play.now - 100.0), rel=0.2)
    assert job.used["lost"] == pytest.approx(10 * 0.5 * 2)  # the next life begins before these steps
    assert {"starting", "training"} <= job.used.keys()


def test_a_batch_is_asked_for_within_the_jobs_range() -> None:
    from edl.cluster.views import Allotment, ClusterDecision

    class Batchy:
        def decide(self, cluster, now):
            return ClusterDecision({job.name: Allotment(1, 512, "it learns as fast") for job in cluster.jobs})

    play = QueuePlay(n=1)
    play.policy = Batchy()
    play.submit("a", batch_range=(32, 256))
    play.look("a", batch=64)
    play(CancelAsked("nobody"))
    play.submit("b")
    assert play.acts.count(ChangeBatch("a", 256)) == 1
    assert play.job("a").batch == 256
    words = [event.words for event in play.job("a").story if event.kind == "batch"]
    assert words == ["256 samples a step: it learns as fast"]
    play.look("a", batch=64)
    play(CancelAsked("b"), after=BATCH_AGAIN_S)  # the word was lost: the job does not show it
    assert play.acts.count(ChangeBatch("a", 256)) == 2
    play.look("a", batch=256)
    play(after=BATCH_AGAIN_S)
    assert play.acts.count(ChangeBatch("a", 256)) == 2


def test_of_a_job_that_is_over_nothing_is_remembered_but_its_entry() -> None:
    play = QueuePlay()
    play.submit("a")
    play.end("a")
    play(JobLooked("a", 1, JobLook("finished", step=9), final=True))
    assert play.job("a").over
    assert "a" not in play.machine._state.seen
    play.machine.forget("a")
    assert "a" not in play.machine.jobs
    play.submit("b")
    assert play.job("b").phase is JobPhase.STARTING


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_decides_for_live_jobs(policy: str) -> None:
    play = QueuePlay(policy, ClusterRules(decide_s=0.0, sees_left=known(policy).sees_left), n=4)
    for name in "abc":
        play.submit(name, np=2, least=1, most=4)
    for name in "abc":
        if play.workers(name):
            play.look(name, batch=64, step_s=0.1, left=500.0)
    play(after=20.0)
    assert "policy_failed" not in play.told
    assert sum(len(play.workers(name)) for name in "abc") >= 2


def test_a_life_that_two_schedulers_have_prepared_is_begun_once() -> None:
    play = QueuePlay()
    play.submit("a")
    play(LifeRefused("a", 1, "the second came to nothing", again=False))
    assert (play.job("a").phase, play.workers("a")) == (JobPhase.STARTING, ["a-1"])


def test_a_size_that_its_owner_asks_for_since_is_what_a_job_has_at_most() -> None:
    play = QueuePlay()
    play.submit("a", np=3, least=1, most=4)
    play.look("a", size=3)
    assert len(play.job("a").staying) == 3
    play(SizeWanted("a", 2))
    assert (play.job("a").wanted, len(play.job("a").staying)) == (2, 2)
    assert "size_asked" in play.told
    play.gone("a-3", code=0, told=True)
    play(SizeWanted("a", 9))  # within what it was submitted with
    assert (play.job("a").wanted, len(play.job("a").staying)) == (4, 4)
    play(SizeWanted("a", 0))
    assert play.job("a").wanted == 0
    told = len(play.told)
    play(SizeWanted("a", 0), SizeWanted("unknown", 2))
    assert "size_asked" not in play.told[told:]


def test_who_had_which_device_until_when_is_kept() -> None:
    play = QueuePlay()
    began = play.submit("a", np=2).workers[0].began
    play.look("a")
    play.gone("a-2", code=1, tail="x")
    assert [(one.worker, one.device, one.began) for one in play.job("a").held] == [("a-2", 1, began)]
    assert play.job("a").held[0].ended == play.now
    play.end("a")
    assert [one.worker for one in play.job("a").held][:2] == ["a-2", "a-1"]


def test_jobs_that_only_wait_cost_no_look_each_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    play = QueuePlay()
    looked: list[str] = []
    look_after = job_lifecycle.look_after
    monkeypatch.setattr(
        job_lifecycle, "look_after", lambda state, job, now: (looked.append(job.name), look_after(state, job, now))
    )
    read = Shares._holders
    reads: list[int] = []
    monkeypatch.setattr(Shares, "_holders", lambda self: (reads.append(1), read(self))[1])
    for number in range(40):
        play.submit(f"j{number}")
    looked.clear()
    reads.clear()
    play()
    assert set(looked) == {job.name for job in play.machine.jobs.values() if job.workers}
    assert len(set(looked)) == 4
    assert len(reads) <= 2  # of all that have devices, not once for each that waits


PRINTED = "Traceback (most recent call last):\n  File t.py\nRuntimeError: CUDA error: an illegal memory access\n"


def _fails_on_a_node(play: QueuePlay, name: str) -> str:
    """By what its workers print."""
    [node] = {worker.node for worker in play.job(name).workers}
    for _ in range(RULES.sick_failures):
        for worker in play.workers(name):
            play.gone(worker, code=1, tail=PRINTED)
        if play.job(name).phase is JobPhase.QUEUED or not play.job(name).over:
            play.end(name)
            play()
    return node


def test_what_one_users_jobs_print_shuts_no_node_to_others() -> None:
    play = QueuePlay(n=4, m=4)
    play.submit("anns", user="ann")
    node = _fails_on_a_node(play, "anns")
    assert play.machine.left_out(play.now) == (node,)  # only ann has a job
    successor = SchedulerMachine(build("fifo"), UnknownSpeeds(), RULES, play.machine.jobs.values())
    there = [NodeReported(NodeReport(one, (0, 1, 2, 3))) for one in play.nodes]
    successor.handle([*there, NodeLeftOut(node, play.now + 99, "ann")], play.now)
    assert successor.left_out(play.now) == (node,)
    bobs = Submitted(Submission("bobs", ("x",), "/", "bob", play.now, 8, 8, 8))
    for machine in (play.machine, successor):
        assert "node_let_in" in [event.kind for event in machine.handle([bobs], play.now + 1).told]
        assert machine.left_out(play.now + 1) == ()


def test_what_jobs_of_two_users_print_shuts_a_node_to_all() -> None:
    play = QueuePlay(n=2, m=2)
    play.submit("anns", user="ann")
    play.submit("bobs", user="bob")
    [node] = {worker.node for name in ("anns", "bobs") for worker in play.job(name).workers}
    for name in ("anns", "bobs", "anns"):
        play.gone(play.workers(name)[0], code=1, tail=PRINTED)
        play.end(name)
        play()
    assert play.machine.left_out(play.now) == (node,)


def test_devices_of_a_job_that_is_over_count_as_its_users_until_its_processes_are_gone() -> None:
    play = QueuePlay("fifo", ClusterRules(decide_s=0.0, quotas={"u": 2}), n=8)
    play.submit("a", np=2)
    play(CancelAsked("a"))
    play.submit("b", np=2)
    play.submit("others", np=6, user="other")
    assert (play.workers("b"), len(play.workers("others"))) == ([], 6)
    for worker in play.workers("a"):
        play.gone(worker, code=0, told=True)
    play()
    assert len(play.workers("b")) == 2


def test_a_worker_that_leaves_counts_until_its_process_is_gone() -> None:
    play = QueuePlay("fifo", ClusterRules(decide_s=0.0, quotas={"u": 2}), n=8)
    play.submit("a", np=2, least=1, most=2)
    play.look("a")
    play(SizeWanted("a", 1))
    play.submit("b")
    play()
    assert (len(play.workers("a")), play.workers("b")) == (2, [])
    play.gone(next(one.id for one in play.job("a").workers if one.wish is WorkerWish.LEAVE), code=0, told=True)
    play()
    assert len(play.workers("b")) == 1


def test_a_job_that_another_of_its_user_shrinks_for_is_seated_once_there_is_room_in_the_quota() -> None:
    play = QueuePlay("fifo", ClusterRules(decide_s=0.0, quotas={"u": 2}), n=8)
    play.submit("a", np=2, least=1, most=2)
    play.look("a")
    play.submit("b")
    assert [one.wish for one in play.job("a").workers] == [WorkerWish.RUN, WorkerWish.LEAVE]
    assert play.workers("b") == []
    play.gone("a-2", code=0, told=True)
    play()
    assert len(play.workers("b")) == 1


@pytest.mark.parametrize("said", ["finished", "failed"])
def test_a_worker_that_hangs_after_its_job_is_over_is_ended(said: str) -> None:
    play = QueuePlay(n=2)
    play.submit("a", np=2)
    play.look("a")
    play.look("a", said)
    patience = RULES.end_s if said == "finished" else RULES.fail_s
    play(after=patience - 2)
    assert {one.wish for one in play.job("a").workers} == {WorkerWish.RUN}  # it may write its results
    play(after=2.0)
    assert {one.wish for one in play.job("a").workers} == {WorkerWish.LEAVE}
    play(after=RULES.leave_s)
    assert {one.wish for one in play.job("a").workers} == {WorkerWish.DIE}
    for worker in play.workers("a"):
        play.gone(worker, code=-9, told=True)
    play.end("a", said)
    assert (play.job("a").over, play.job("a").life) == ((True, 1) if said == "finished" else (False, 2))


def _sent_away(play: QueuePlay) -> float:
    """For how long its leader may save it."""
    play.submit("urgent", priority=9)
    play()
    return next(act.deadline_s for act in reversed(play.acts) if isinstance(act, SendAway))


def test_a_job_that_takes_long_to_be_saved_is_given_the_time() -> None:
    play = QueuePlay(n=1)
    play.submit("low")
    play.look("low", save_s=40.0)
    assert _sent_away(play) == 120.0
    play(after=120 + RULES.save_slack_s - 3)
    assert {one.wish for one in play.job("low").workers} == {WorkerWish.RUN}
    play(after=3.0)
    assert {one.wish for one in play.job("low").workers} == {WorkerWish.DIE}


def test_a_job_that_was_not_saved_in_time_is_given_twice_as_long_the_next_time() -> None:
    play = QueuePlay(n=1)
    play.submit("low")
    play.look("low", step=50)
    assert _sent_away(play) == RULES.save_s
    play.end("low", "preempted", code=75)
    play(CancelAsked("urgent"))
    play.gone("urgent-1", code=0, told=True)
    play()
    assert play.job("low").life == 2  # it begins from nothing: see QueuePlay
    play.look("low", step=5)
    play.submit("second", priority=9)
    play()
    assert next(act.deadline_s for act in reversed(play.acts) if isinstance(act, SendAway)) == 2 * RULES.save_s


def test_a_policy_sees_how_long_a_jobs_newest_workers_took_to_train_and_when_it_ends() -> None:
    def seen() -> tuple[float, float | None]:
        [job] = outlook(play.machine._state, UnknownSpeeds(), play.now).jobs
        return round(job.boot_s, 6), job.left_s

    play = QueuePlay(n=2)
    play.submit("a", most=2)
    began = play.now
    play(after=6.0)
    assert seen() == (0.0, None)
    play.look("a", step=1, left=100.0)
    first = play.now - began
    assert seen() == (pytest.approx(first, abs=1.0), None), "how long a step takes is not known yet"
    play(after=5.0)
    play.look("a", step=2, left=99.0, step_s=0.5)
    assert seen() == (pytest.approx(first, abs=1.0), 49.5), "it has no newer worker"
    play(SizeWanted("a", 2))
    assert len(play.workers("a")) == 2
    asked = play.now
    play(after=2.0)
    play.look("a", step=3, size=1)
    assert seen()[0] == pytest.approx(first, abs=1.0)
    play(after=20.0)
    play.look("a", step=4, size=2)
    assert seen()[0] == pytest.approx(play.now - asked, abs=1.0)
