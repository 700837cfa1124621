"""What a stand-in decides, without a process, a driver or a job."""

from __future__ import annotations

from dataclasses import replace

from edl.horovodrun.proxy_machine import (
    GRACE_S,
    TERMINATED,
    UNKNOWN_S,
    DriverGone,
    EndAsked,
    EndTrainer,
    Freed,
    Happening,
    JobAtEnd,
    JobUnknown,
    ProxyMachine,
    Say,
    StartTrainer,
    TrainerEnded,
)

RUNS = JobAtEnd(over=False, finished=False)
FINISHED = JobAtEnd(over=True, finished=True)
FAILED = JobAtEnd(over=True, finished=False, reason="no data")


def play(post: ProxyMachine, *happenings: Happening, now: float = 0.0) -> list[object]:
    return [command for happened in happenings for command in post.handle(happened, now)]


def test_it_ends_well_only_when_the_job_is_finished():
    post = ProxyMachine(restarts=3)
    assert play(post, TrainerEnded(0), RUNS, RUNS) == []
    assert post.status is None
    play(post, FINISHED)
    assert post.status == 0


def test_a_failed_job_is_a_failure_with_its_reason():
    post = ProxyMachine(restarts=3)
    assert play(post, TrainerEnded(0), FAILED) == [Say("the job failed: no data")]
    assert post.status == 1


def test_who_left_waits_until_its_slot_is_freed():
    post = ProxyMachine(restarts=3)
    play(post, TrainerEnded(0), RUNS)
    assert post.status is None
    play(post, Freed(), RUNS)
    assert post.status == 0


def test_a_slot_that_is_freed_while_its_trainer_leaves():
    post = ProxyMachine(restarts=3)
    play(post, Freed())
    assert post.status is None
    play(post, TrainerEnded(0))
    assert post.status == 0


def test_a_crashed_trainer_is_replaced_so_many_times():
    post = ProxyMachine(restarts=1)
    said, started = play(post, TrainerEnded(-9), RUNS)
    assert isinstance(said, Say) and "signal 9" in said.line
    assert started == StartTrainer()
    assert not post.looks
    (said,) = play(post, TrainerEnded(3), RUNS, RUNS)
    assert isinstance(said, Say) and "stays empty" in said.line
    assert post.status is None  # its end would be a failure in the driver's eyes, and end the job or its host
    play(post, FINISHED)
    assert post.status == 0


def test_a_crash_of_a_slot_that_is_freed_is_not_replaced():
    post = ProxyMachine(restarts=1)
    assert play(post, Freed(), TrainerEnded(1)) == []
    assert post.status == 0


def test_a_crash_when_the_job_is_over_is_not_replaced():
    post = ProxyMachine(restarts=1)
    assert play(post, TrainerEnded(-6), FINISHED) == []
    assert post.status == 0


def test_who_ends_badly_after_a_good_end_in_the_job_is_a_failure_and_not_replaced():
    post = ProxyMachine(restarts=1)
    assert play(post, TrainerEnded(3), replace(RUNS, done=True)) == []
    play(post, replace(FINISHED, done=True))
    assert post.status == 3


def test_a_worker_that_crashes_when_all_is_trained_is_not_replaced():
    post = ProxyMachine(restarts=1)
    assert play(post, TrainerEnded(1), replace(RUNS, spent=True)) == []
    assert post.status is None
    play(post, FAILED)
    assert post.status == 1


def test_told_to_end_it_lets_the_trainer_leave_and_is_no_success():
    post = ProxyMachine(restarts=1)
    assert play(post, EndAsked()) == [EndTrainer()]
    assert play(post, TrainerEnded(0), RUNS, JobUnknown(), EndAsked()) == []
    assert post.status is None
    play(post, RUNS, now=GRACE_S)
    assert post.status == TERMINATED


def test_told_to_end_it_takes_the_end_of_the_job_for_its_own():
    for end, status in ((FINISHED, 0), (FAILED, 1)):
        orders: list[list[Happening]] = [[EndAsked(), TrainerEnded(0)], [TrainerEnded(0), RUNS, EndAsked()]]
        for happenings in orders:
            post = ProxyMachine(restarts=1)
            play(post, *happenings)
            assert post.status is None  # the signal that reached it may have made the trainer leave, too
            play(post, RUNS, end)
            assert post.status == status


def test_told_to_end_of_a_trainer_that_ends_badly():
    orders: list[list[Happening]] = [[EndAsked(), TrainerEnded(3)], [TrainerEnded(3), EndAsked()]]
    for happenings in orders:
        post = ProxyMachine(restarts=1)
        play(post, *happenings)
        assert post.status == 3


def test_told_to_end_of_a_job_that_cannot_be_asked():
    post = ProxyMachine(restarts=1)
    play(post, EndAsked(), TrainerEnded(0), JobUnknown())
    play(post, JobUnknown(), now=GRACE_S)
    assert post.status == TERMINATED


def test_without_a_driver_no_slot_is_freed():
    post = ProxyMachine(restarts=1)
    play(post, DriverGone(), TrainerEnded(0), RUNS)
    assert post.status == 0


def test_a_job_whose_workers_do_not_answer_is_waited_for_a_while():
    post = ProxyMachine(restarts=1)
    play(post, TrainerEnded(-9), JobUnknown(), now=10.0)
    assert post.status is None
    assert post.looks
    play(post, JobUnknown(), now=10.0 + UNKNOWN_S)
    assert post.status == 137


def test_a_look_that_comes_too_late_means_nothing():
    post = ProxyMachine(restarts=1)
    play(post, TrainerEnded(-9), RUNS)
    assert play(post, RUNS, FINISHED, JobUnknown()) == []
    assert post.status is None


def test_a_job_that_is_preempted_has_an_exit_status_of_its_own_and_no_worker_is_started_for_it():
    post = ProxyMachine(restarts=3)
    going = replace(RUNS, going=True)
    gone = JobAtEnd(over=True, finished=False, reason="step 9 is saved", resumable=True)
    assert play(post, TrainerEnded(1), going, going) == []
    assert play(post, gone) == [Say("the job is preempted: step 9 is saved")]
    assert post.status == 75
