"""What `edl run` decides about its workers, without a process, a signal or a clock."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl.cluster.queue.end_causes import DIVERGED, REFUSED, STOPPED, describe_exit
from edl.errors import InvalidTransition
from edl.launch.life_outcome import CRASHED, KILLED, LOST, SPENT, LaunchVerdict
from edl.launch.supervisor import (
    END_GRACE_S,
    KILL_GRACE_S,
    TELL_GRACE_S,
    AskedToGo,
    AskForLastWord,
    DeadlineReached,
    EndTimeouts,
    EndWorkers,
    Happening,
    Interrupted,
    JobSeen,
    JobSilent,
    JobTold,
    KillWorkers,
    LookAtJob,
    Looked,
    OwnChoice,
    PreemptJob,
    Stage,
    StartWorkers,
    StopJob,
    Supervisor,
    WorkerExited,
    WorkerStarted,
)
from edl.protocol.record import FailedBy

LIMITS = EndTimeouts(doubt_s=10, settle_s=60)
RUNNING = JobSeen("running", ranks={100: 0, 101: 1}, size=2, pids=frozenset({100, 101}))
FINISHED = JobSeen("finished", ranks={100: 0, 101: 1}, size=2)


def two_workers() -> Supervisor:
    return Supervisor({0: 100, 1: 101}, LIMITS)


def with_own_coordinator() -> Supervisor:
    return Supervisor({0: 100, 1: 101}, LIMITS, hosts=True)


def play(supervisor: Supervisor, *happenings: Happening, now: float = 0.0) -> list[object]:
    return [command for happening in happenings for command in supervisor.handle(happening, now)]


def test_a_job_that_finishes():
    supervisor = two_workers()
    assert play(supervisor, RUNNING, WorkerExited(0, 0), FINISHED) == []
    assert play(supervisor, WorkerExited(1, 0)) == [AskForLastWord()]
    play(supervisor, FINISHED)
    assert supervisor.verdict == LaunchVerdict(0, "finished")


def test_a_job_that_finishes_and_whose_last_checkpoint_came_to_nothing_says_so():
    supervisor = two_workers()
    play(supervisor, RUNNING, WorkerExited(0, 0), WorkerExited(1, 0))
    play(supervisor, msgspec.structs.replace(FINISHED, unsaved="no space is left"))
    note = "it has finished, and its last checkpoint came to nothing: no space is left"
    assert supervisor.verdict == LaunchVerdict(0, "finished", note=note)


def test_guests_end_with_a_launch_that_takes_their_coordinator_with_it():
    """A worker that was started by hand would wait for that coordinator for ever."""
    joined = msgspec.structs.replace(RUNNING, pids=frozenset({100, 101, 555}))
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True)
    assert play(supervisor, joined, Interrupted()) == [StopJob("interrupted", frozenset({555}))]
    assert play(supervisor, JobTold()) == [EndWorkers()]
    elsewhere = two_workers()
    assert play(elsewhere, joined, Interrupted()) == [EndWorkers()], "the job goes on at its coordinator"


def test_who_is_asked_for_before_the_job_runs_is_started():
    """Else it would wait for ever: it begins with all that are asked for."""
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True)
    asked = JobSeen("starting", target=3, members=1, pids=frozenset({100}))
    assert play(supervisor, JobSeen("starting", target=2), asked) == [StartWorkers(1, 0)]
    assert play(supervisor, WorkerStarted(2, 102), asked) == []
    elsewhere = two_workers()  # another launch may have begun with three
    assert play(elsewhere, asked) == []


def test_a_worker_that_leaves_with_0_does_not_end_the_others():
    supervisor = two_workers()
    assert play(supervisor, RUNNING, WorkerExited(0, 0)) == []
    assert supervisor.phase is Stage.WATCHING
    assert supervisor.deadline is None


def test_a_crash_before_the_job_runs_ends_the_others():
    supervisor = two_workers()
    assert play(supervisor, WorkerExited(1, 1)) == [LookAtJob()]
    assert play(supervisor, JobSeen("starting"), Looked()) == [EndWorkers()]
    play(supervisor, WorkerExited(0, -15))
    assert supervisor.verdict == LaunchVerdict(
        1, "failed", "worker 1 exited with code 1", cause=CRASHED, exits="exited with code 1"
    )


def test_a_crash_when_the_job_runs_already_and_was_not_looked_at_since():
    supervisor = two_workers()
    assert play(supervisor, JobSeen("starting"), WorkerExited(1, -9)) == [LookAtJob()]
    assert play(supervisor, RUNNING, Looked()) == []
    play(supervisor, JobSeen("running", ranks={100: 0}, size=1))
    assert (supervisor.phase, supervisor.deadline) == (Stage.WATCHING, None)


def test_a_crash_while_the_job_does_not_answer_ends_the_others():
    supervisor = two_workers()
    assert play(supervisor, WorkerExited(1, 1)) == [LookAtJob()]
    assert play(supervisor, DeadlineReached(), now=10) == [EndWorkers()]
    assert play(supervisor, Looked()) == []


def test_a_newcomer_that_the_job_never_knew_costs_no_doubt():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True, restarts=1)
    running = JobSeen("running", ranks={100: 0, 101: 1}, size=2, target=3, members=2, pids=frozenset({100, 101}))
    assert supervisor.handle(running, 1.0) == [StartWorkers(1)]
    supervisor.handle(WorkerStarted(2, 102), 1.0)
    assert supervisor.handle(WorkerExited(2, 1), 2.0) == []  # the coordinator was away when it came, say
    assert (supervisor.phase, supervisor.deadline) == (Stage.WATCHING, None)
    assert supervisor.handle(running, 60.0) == [StartWorkers(1, replacing=1)]


def test_the_job_has_time_for_another_leader_when_the_one_it_had_crashed():
    """The next one comes a session time-out later; until then the job looks as before."""
    session_s, step_s = 10.0, 60.0
    supervisor = Supervisor({0: 100, 1: 101}, EndTimeouts.of(session_s, step_s))
    play(supervisor, RUNNING, WorkerExited(0, -9))
    assert supervisor.deadline is not None
    leader_s = session_s + 2.0
    assert play(supervisor, RUNNING, DeadlineReached(), now=leader_s) == []
    assert play(supervisor, DeadlineReached(), now=leader_s + 2 * step_s - 1) == []  # a ring forms
    play(supervisor, JobSeen("running", ranks={101: 0}, size=1, pids=frozenset({101})), now=leader_s + 2 * step_s)
    assert supervisor.phase is Stage.WATCHING


def test_a_crash_of_the_only_worker_is_the_reason_where_the_job_knows_no_better():
    supervisor = Supervisor({0: 100}, LIMITS)
    assert play(supervisor, WorkerExited(0, -9)) == [AskForLastWord()]
    play(supervisor, JobSilent())
    assert supervisor.verdict == LaunchVerdict(
        1, "failed", "worker 0 was killed by SIGKILL", cause=KILLED, exits="was killed by SIGKILL"
    )


class TestCrashWhileTheJobRuns:
    def crashed(self) -> Supervisor:
        supervisor = two_workers()
        assert play(supervisor, RUNNING, WorkerExited(1, -9)) == []
        assert (supervisor.phase, supervisor.deadline) == (Stage.DOUBTING, 10)
        return supervisor

    def test_is_no_failure_when_the_leader_goes_on_without_it(self):
        supervisor = self.crashed()
        play(supervisor, RUNNING)  # not noticed yet
        assert supervisor.phase is Stage.DOUBTING
        play(supervisor, JobSeen("running", ranks={100: 0}, size=1))
        assert (supervisor.phase, supervisor.deadline) == (Stage.WATCHING, None)
        play(supervisor, WorkerExited(0, 0), JobSeen("finished"))
        assert supervisor.verdict == LaunchVerdict(0, "finished")

    def test_is_one_when_the_leader_does_not_in_time(self):
        supervisor = self.crashed()
        assert play(supervisor, DeadlineReached(), now=9.9) == []
        assert play(supervisor, DeadlineReached(), now=10) == [EndWorkers()]
        assert supervisor.verdict == LaunchVerdict(
            1, "failed", "worker 1 was killed by SIGKILL", cause=KILLED, exits="was killed by SIGKILL"
        )

    def test_is_one_when_the_others_crash_with_it_and_the_first_is_the_reason(self):
        supervisor = self.crashed()
        assert play(supervisor, WorkerExited(0, 1)) == [AskForLastWord()]
        play(supervisor, JobSilent())
        assert supervisor.phase is Stage.ENDED
        assert supervisor.verdict == LaunchVerdict(
            1, "failed", "worker 1 was killed by SIGKILL", cause=KILLED, exits="was killed by SIGKILL"
        )

    def test_has_the_reason_of_the_job_where_all_crash_at_once(self):
        """The job has failed, and says why a moment after the workers that it has ended are gone."""
        supervisor = self.crashed()
        play(supervisor, WorkerExited(0, 1), JobSeen("failed", "stopped by `edl stop`", failed_by=FailedBy.STOP))
        assert supervisor.verdict == LaunchVerdict(
            1, "failed", "stopped by `edl stop`", cause=STOPPED, exits="was killed by SIGKILL"
        )

    def test_is_none_when_the_others_finish_the_job_meanwhile(self):
        supervisor = self.crashed()
        assert play(supervisor, WorkerExited(0, 0)) == [AskForLastWord()]
        play(supervisor, JobSeen("finished"))
        assert supervisor.verdict == LaunchVerdict(0, "finished")

    def test_is_the_reason_when_the_job_never_says_it_finished(self):
        supervisor = self.crashed()
        play(supervisor, WorkerExited(0, 0), JobSilent())
        assert supervisor.verdict == LaunchVerdict(
            1, "failed", "worker 1 was killed by SIGKILL", cause=KILLED, exits="was killed by SIGKILL"
        )


def test_a_job_that_failed_ends_its_workers_with_the_leaders_reason():
    supervisor = two_workers()
    assert play(supervisor, RUNNING, JobSeen("failed", "fewer than 2 workers")) == [EndWorkers()]
    play(supervisor, WorkerExited(0, 1), WorkerExited(1, 1))
    assert supervisor.verdict == LaunchVerdict(
        1, "failed", "fewer than 2 workers", cause=CRASHED, exits="exited with code 1"
    )


def test_workers_that_run_on_after_the_job_are_ended():
    supervisor = two_workers()
    play(supervisor, RUNNING, FINISHED, WorkerExited(0, 0), now=5)
    play(supervisor, FINISHED, now=50)
    assert supervisor.deadline == 65, "told again is no reason to wait longer"
    assert play(supervisor, DeadlineReached(), now=65) == [EndWorkers()]
    assert supervisor.verdict == LaunchVerdict(
        1, "failed", "worker 1 ran on for 60 s after the job had finished", cause=SPENT
    )


class TestLastWord:
    def settling(self, seen: JobSeen) -> Supervisor:
        supervisor = two_workers()
        play(supervisor, seen, WorkerExited(0, 0), WorkerExited(1, 0))
        assert supervisor.phase is Stage.SETTLING
        return supervisor

    @pytest.mark.parametrize("seen", [JobSeen("starting"), JobSeen("running", size=3)])
    def test_of_a_command_that_never_joined_is_a_failure(self, seen):
        """Two trainings side by side are no job, nor is one beside a job that others train."""
        supervisor = two_workers()
        play(supervisor, seen, WorkerExited(0, 0), WorkerExited(1, 0), JobSilent())
        assert supervisor.verdict is not None and "without calling edl.init()" in supervisor.verdict.reason
        assert (supervisor.verdict.code, supervisor.verdict.cause) == (1, REFUSED)

    def test_of_a_job_that_goes_on_elsewhere_is_a_note(self):
        supervisor = self.settling(RUNNING)
        play(supervisor, JobSeen("running", size=3), JobSilent())
        assert supervisor.verdict == LaunchVerdict(
            0, "finished", note="its workers here have left; the job goes on elsewhere"
        )

    @pytest.mark.parametrize("end", [JobSilent(), DeadlineReached()])
    def test_that_does_not_come_is_a_failure(self, end):
        supervisor = self.settling(RUNNING)
        play(supervisor, end, now=60)
        assert supervisor.verdict == LaunchVerdict(
            1, "failed", "all workers exited, but the job was still running", cause=LOST
        )


class TestInterrupt:
    def test_ends_then_kills_then_gives_up(self):
        supervisor = two_workers()
        assert play(supervisor, RUNNING, Interrupted()) == [EndWorkers()]
        assert supervisor.deadline == END_GRACE_S
        assert play(supervisor, DeadlineReached(), now=END_GRACE_S) == [KillWorkers()]
        assert play(supervisor, DeadlineReached(), now=END_GRACE_S + KILL_GRACE_S) == []
        assert supervisor.phase is Stage.ENDED
        assert supervisor.verdict == LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)

    def test_twice_kills_at_once(self):
        assert play(two_workers(), Interrupted(), Interrupted()) == [EndWorkers(), KillWorkers()]
        assert play(with_own_coordinator(), RUNNING, Interrupted(), Interrupted(), JobTold()) == [
            StopJob("interrupted", frozenset()),
            KillWorkers(),
        ]

    def test_the_leader_is_told_before_any_worker_else_it_would_say_that_all_were_told_to_leave(self):
        supervisor = with_own_coordinator()
        assert play(supervisor, RUNNING, Interrupted()) == [StopJob("interrupted", frozenset())]
        assert play(supervisor, JobTold(), now=0.1) == [EndWorkers()]
        assert supervisor.deadline == 0.1 + END_GRACE_S
        play(supervisor, WorkerExited(0, 0), WorkerExited(1, 0))
        assert supervisor.verdict == LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)

    def test_a_leader_that_does_not_answer_is_not_waited_for(self):
        supervisor = with_own_coordinator()
        play(supervisor, RUNNING, Interrupted())
        assert supervisor.deadline == TELL_GRACE_S
        assert play(supervisor, DeadlineReached(), now=TELL_GRACE_S) == [EndWorkers()]
        assert play(supervisor, JobTold(), now=TELL_GRACE_S + 0.1) == [], "it comes late"

    def test_a_job_that_has_not_begun_has_no_leader_to_be_told(self):
        assert play(with_own_coordinator(), Interrupted()) == [EndWorkers()]

    def test_is_the_reason_whatever_the_workers_and_the_leader_make_of_it(self):
        supervisor = two_workers()
        play(
            supervisor, RUNNING, Interrupted(), JobSeen("failed", "no workers"), WorkerExited(0, 0), WorkerExited(1, 1)
        )
        assert supervisor.verdict == LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)


def test_a_worker_that_ends_twice_is_our_bug():
    supervisor = two_workers()
    play(supervisor, WorkerExited(0, 0))
    with pytest.raises(InvalidTransition, match="WorkerExited"):
        play(supervisor, WorkerExited(0, 0))


@pytest.mark.parametrize(
    ("code", "words"), [(3, "exited with code 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")]
)
def test_exits_in_words(code, words):
    assert describe_exit(code) == words


SEEN = st.builds(
    JobSeen,
    st.sampled_from(["starting", "running", "scaling", "finished", "failed"]),
    ranks=st.dictionaries(st.sampled_from([100, 101, 102]), st.integers(0, 2)),
    size=st.integers(0, 3),
)
ALIKE = (Interrupted(), DeadlineReached(), JobSilent(), Looked(), JobTold())
ANYTHING = st.one_of(SEEN, *map(st.just, ALIKE))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(
    st.lists(st.one_of(ANYTHING, st.integers(0, 2)), max_size=30),
    st.lists(st.integers(-15, 2), min_size=3),
    st.booleans(),
)
def test_whatever_happens_it_ends_with_a_verdict_in_bounded_time(story, codes, hosts):
    supervisor = Supervisor({slot: 100 + slot for slot in range(3)}, LIMITS, hosts=hosts)
    left, now = {0, 1, 2}, 0.0
    for entry in story:
        now += 1
        if not isinstance(entry, int):
            supervisor.handle(entry, now)
        elif entry in left:
            left.remove(entry)
            supervisor.handle(WorkerExited(entry, codes[entry]), now)
    supervisor.handle(Interrupted(), now)
    for _ in range(4):
        now += 100
        supervisor.handle(DeadlineReached(), now)
    assert supervisor.phase is Stage.ENDED
    assert supervisor.verdict is not None
    assert (supervisor.verdict.code == 0) == (supervisor.verdict.state == "finished")
    assert supervisor.verdict.code == 0 or supervisor.verdict.reason


def seen(target: int, members: int, *pids: int) -> JobSeen:
    return JobSeen("running", size=2, target=target, members=members, pids=frozenset(pids))


def test_a_job_that_was_asked_to_grow_gets_the_workers_that_are_missing():
    supervisor = two_workers()
    assert play(supervisor, seen(2, 2, 100, 101)) == []
    assert play(supervisor, seen(4, 2, 100, 101)) == [StartWorkers(2)]
    play(supervisor, WorkerStarted(2, 102), WorkerStarted(3, 103))
    assert play(supervisor, seen(4, 2, 100, 101)) == [], "they are on their way"
    assert play(supervisor, seen(4, 4, 100, 101, 102, 103)) == []


def test_workers_that_came_from_elsewhere_count():
    supervisor = two_workers()
    assert play(supervisor, seen(3, 3, 100, 101)) == []


def test_growing_again_after_shrinking_starts_a_worker_again():
    supervisor = two_workers()
    assert play(supervisor, seen(1, 1, 100, 101), WorkerExited(1, 0)) == []
    assert play(supervisor, seen(2, 1, 100)) == [StartWorkers(1)]


def test_a_request_that_is_taken_back_and_asked_again_between_two_looks_starts_a_worker():
    supervisor = Supervisor({0: 100, 1: 101, 2: 102}, LIMITS)
    assert play(supervisor, seen(3, 3, 100, 101, 102)) == []
    again = msgspec.structs.replace(seen(3, 2, 100, 101, 102), asked_more=1)
    assert play(supervisor, again) == [StartWorkers(1)]
    play(supervisor, WorkerStarted(3, 103))
    assert play(supervisor, again) == [], "it is on its way"


def test_a_crashed_worker_is_replaced_as_often_as_allowed():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=2)
    play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, -9))
    assert play(supervisor, seen(2, 2, 100, 101)) == [], "its leader has not noticed yet"
    assert play(supervisor, seen(2, 1, 100)) == [StartWorkers(1, replacing=1)]
    play(supervisor, WorkerStarted(2, 102))
    assert play(supervisor, seen(2, 1, 100)) == [], "it is on its way"
    assert play(supervisor, WorkerExited(2, 1), seen(2, 1, 100)) == [StartWorkers(1, replacing=1)], "that one, too"
    play(supervisor, WorkerStarted(3, 103))
    assert play(supervisor, seen(2, 2, 100, 103), WorkerExited(3, 1), seen(2, 1, 100)) == []
    assert supervisor.phase is Stage.WATCHING


def test_a_newcomer_that_crashed_before_it_was_first_seen_is_replaced_once_the_job_knows():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=1)
    assert play(supervisor, seen(2, 2, 100, 101), seen(3, 2, 100, 101)) == [StartWorkers(1)]
    play(supervisor, WorkerStarted(2, 102), WorkerExited(2, -9))
    assert play(supervisor, seen(3, 3, 100, 101, 102)) == [], "written while it lived"
    assert play(supervisor, seen(3, 2, 100, 101)) == [StartWorkers(1, replacing=1)]


def test_a_crashed_worker_that_is_not_missed_is_not_replaced():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=2)
    assert play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, -9), seen(1, 1, 100)) == []
    assert play(supervisor, seen(2, 1, 100)) == [StartWorkers(1)], "asked for later: that is no restart"


def test_who_comes_when_the_job_has_finished_is_no_failure():
    supervisor = Supervisor({0: 100}, LIMITS, restarts=2)
    play(supervisor, seen(2, 1, 100), WorkerStarted(1, 101))
    finished = JobSeen("finished", ranks={100: 0}, pids=frozenset({100}))
    assert play(supervisor, finished, WorkerExited(1, 1)) == []
    assert play(supervisor, WorkerExited(0, 0)) == [AskForLastWord()]
    play(supervisor, finished)
    assert supervisor.verdict == LaunchVerdict(0, "finished")


def test_who_still_comes_when_the_job_has_finished_and_all_of_it_are_gone_is_ended():
    supervisor = Supervisor({0: 100}, LIMITS, restarts=2)
    play(supervisor, seen(2, 1, 100), WorkerStarted(1, 101), WorkerStarted(2, 102))
    assert play(supervisor, JobSeen("finished", ranks={100: 0}, pids=frozenset({100, 101}))) == []
    assert play(supervisor, WorkerExited(0, 0)) == [EndWorkers()]
    assert play(supervisor, WorkerExited(1, -15), WorkerExited(2, -15)) == []
    assert supervisor.verdict == LaunchVerdict(0, "finished")


def test_who_still_comes_is_ended_at_once_also_where_the_others_exit_before_the_job_is_seen_to_be_finished():
    supervisor = Supervisor({0: 100}, LIMITS, restarts=2)
    play(supervisor, seen(2, 1, 100), WorkerStarted(1, 101))
    assert play(supervisor, WorkerExited(0, 0)) == []
    assert play(supervisor, JobSeen("finished", ranks={100: 0}, pids=frozenset({100, 101}))) == [EndWorkers()]
    assert play(supervisor, WorkerExited(1, -15)) == []
    assert supervisor.verdict == LaunchVerdict(0, "finished")


def test_who_still_comes_when_all_others_were_elsewhere_is_ended_in_time():
    supervisor = Supervisor({0: 100}, LIMITS)
    play(supervisor, seen(2, 1), JobSeen("finished", ranks={7: 0}, pids=frozenset({7})))
    assert play(supervisor, DeadlineReached(), now=60) == [EndWorkers()]
    play(supervisor, WorkerExited(0, 1))
    assert supervisor.verdict == LaunchVerdict(0, "finished")


TOLD = ", after it had told the job of a good end"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("seen", [RUNNING, FINISHED])
def test_a_worker_that_ends_badly_after_a_good_end_in_the_job_is_a_failure_whichever_ends_first(first, seen):
    """A status that the script gave by no exception and not by `sys.exit()`, a crash of Python as it ends."""
    done = frozenset({100, 101})
    supervisor = two_workers()
    play(supervisor, RUNNING, seen)
    play(supervisor, WorkerExited(first, 3 * first), msgspec.structs.replace(seen, done=done))
    assert supervisor.phase is Stage.WATCHING, "the other saves"
    assert supervisor.deadline == (None if seen is RUNNING else 60)
    play(supervisor, WorkerExited(1 - first, 3 * (1 - first)), msgspec.structs.replace(FINISHED, done=done))
    assert supervisor.verdict == LaunchVerdict(1, "failed", "worker 1 exited with code 3" + TOLD, cause=SPENT)


def test_who_was_given_up_and_ends_after_the_job_has_finished_without_it_is_no_failure():
    supervisor = two_workers()
    finished = JobSeen("finished", ranks={100: 0}, size=1, pids=frozenset({100}), done=frozenset({100}))
    play(supervisor, RUNNING, finished, WorkerExited(0, 0), WorkerExited(1, 1), finished)
    assert supervisor.verdict == LaunchVerdict(0, "finished")


def test_a_worker_that_crashes_when_all_is_trained_is_not_replaced():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=2)
    play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, 1))
    assert play(supervisor, msgspec.structs.replace(seen(2, 1, 100), spent=True)) == []
    assert supervisor.phase is Stage.WATCHING
    play(supervisor, WorkerExited(0, 0), JobSeen("failed", "no space left"))
    assert supervisor.verdict == LaunchVerdict(1, "failed", "no space left", cause=LOST)


def test_a_worker_that_crashes_at_the_end_of_an_epoch_is_replaced_once_the_next_one_has_begun():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=2)
    play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, 1))
    assert play(supervisor, msgspec.structs.replace(seen(2, 1, 100), spent=True)) == []
    assert play(supervisor, seen(2, 1, 100)) == [StartWorkers(1, replacing=1)]
    assert play(supervisor, seen(2, 1, 100)) == []


def test_a_crash_and_growth_at_once():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=2)
    play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, -9))
    assert play(supervisor, seen(3, 1, 100)) == [StartWorkers(2, replacing=1)]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_job_of_too_few_ends_only_where_no_worker_will_come(restarts):
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True, restarts=restarts)
    play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, -9))
    reason = "1 worker is left and the job needs 2"
    short = JobSeen("running", "", {}, 2, 2, 1, frozenset({100}), short=reason, minimum=2)
    told = play(supervisor, short)
    if restarts:
        assert told == [StartWorkers(1, replacing=1)]
        play(supervisor, WorkerStarted(2, 102))
        assert play(supervisor, short) == []
        assert play(supervisor, msgspec.structs.replace(short, members=2, pids=frozenset({100, 102}))) == [], "it boots"
    else:
        assert told == [EndWorkers()]
        assert supervisor.verdict == LaunchVerdict(1, "failed", reason, cause=LOST)


SHORT = JobSeen("running", "", {}, 2, 2, 1, frozenset({100}), short="1 worker is left", minimum=2)


def test_the_leader_may_know_of_a_crash_that_leaves_too_few_before_the_launcher_does():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True, restarts=1)
    assert play(supervisor, seen(2, 2, 100, 101), SHORT) == []
    assert play(supervisor, WorkerExited(1, -9), SHORT) == [StartWorkers(1, replacing=1)]


@pytest.mark.parametrize(("restarts", "waited_s"), [(0, 0.0), (1, LIMITS.doubt_s)])
def test_a_worker_that_a_job_of_too_few_has_lost_and_that_does_not_exit_is_not_awaited_for_ever(restarts, waited_s):
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, hosts=True, restarts=restarts)
    play(supervisor, seen(2, 2, 100, 101))
    if restarts:
        assert supervisor.handle(SHORT, 0.0) == []
        assert supervisor.handle(SHORT, waited_s - 1) == []
        assert supervisor.handle(seen(2, 2, 100, 101), waited_s) == []  # it is back
        assert supervisor.handle(SHORT, waited_s) == []
    assert supervisor.handle(SHORT, 2 * waited_s) == [EndWorkers()]
    assert supervisor.verdict == LaunchVerdict(1, "failed", "1 worker is left", cause=LOST)


def test_without_restarts_a_crashed_worker_is_not_started_again_by_growth():
    supervisor = two_workers()
    assert play(supervisor, seen(2, 2, 100, 101), WorkerExited(1, -9), seen(2, 1, 100)) == []


def test_who_has_left_the_job_and_not_exited_yet_is_not_on_its_way_into_it():
    supervisor = two_workers()
    assert play(supervisor, seen(2, 2, 100, 101), seen(1, 1, 100)) == []
    assert play(supervisor, seen(2, 1, 100)) == [StartWorkers(1)]


def test_what_came_from_elsewhere_and_crashed_is_not_ours_to_replace():
    supervisor = two_workers()
    assert play(supervisor, seen(3, 3, 100, 101), seen(3, 2, 100, 101)) == []


class TestWorkersOfOthers:
    """They came by themselves, and train on when all that were started here have left."""

    def left_alone(self, *, hosts: bool) -> tuple[Supervisor, list[object]]:
        supervisor = Supervisor({0: 100}, LIMITS, hosts=hosts)
        play(supervisor, JobSeen("running", ranks={100: 0, 200: 1}, size=2, pids=frozenset({100, 200})))
        return supervisor, play(supervisor, WorkerExited(0, 0))

    def test_need_the_coordinator_that_was_started_here(self):
        supervisor, told = self.left_alone(hosts=True)
        assert told == []
        assert play(supervisor, JobSeen("running", ranks={200: 0}, size=1, pids=frozenset({200}))) == []
        assert play(supervisor, FINISHED) == [AskForLastWord()]
        play(supervisor, FINISHED)
        assert supervisor.verdict == LaunchVerdict(0, "finished")

    def test_go_on_elsewhere_with_a_coordinator_of_their_own(self):
        assert self.left_alone(hosts=False)[1] == [AskForLastWord()]

    def test_go_on_when_the_last_one_from_here_crashes(self):
        supervisor = Supervisor({0: 100}, LIMITS, hosts=True)
        play(supervisor, JobSeen("running", ranks={100: 0, 200: 1}, size=2, pids=frozenset({100, 200})))
        assert play(supervisor, WorkerExited(0, -9)) == []
        assert supervisor.phase is Stage.DOUBTING
        play(supervisor, JobSeen("running", ranks={200: 0}, size=1, pids=frozenset({200})))
        assert (supervisor.phase, supervisor.verdict) == (Stage.WATCHING, None)


def test_a_job_that_is_to_go_is_saved_first_and_exits_with_a_code_of_its_own():
    supervisor = two_workers()
    assert play(supervisor, RUNNING, AskedToGo()) == [PreemptJob()]
    gone = JobSeen("preempted", "asked to; step 9 is saved")
    assert play(supervisor, WorkerExited(0, 75), gone) == []
    play(supervisor, WorkerExited(1, 75))
    assert supervisor.verdict == LaunchVerdict(75, "preempted", "asked to; step 9 is saved")


def test_workers_of_a_job_that_is_gone_are_asked_to_end_and_killed_where_they_do_not():
    supervisor = two_workers()
    gone = JobSeen("preempted", "asked to; step 9 is saved")
    assert play(supervisor, RUNNING, AskedToGo(), gone) == [PreemptJob()]
    found = []
    for _ in range(2):
        assert supervisor.deadline is not None
        found += supervisor.handle(DeadlineReached(), supervisor.deadline)
    assert found == [EndWorkers(), KillWorkers()]
    play(supervisor, WorkerExited(0, -9), WorkerExited(1, -9))
    assert supervisor.verdict == LaunchVerdict(75, "preempted", "asked to; step 9 is saved")


def test_no_worker_is_started_for_a_job_that_is_to_go():
    supervisor = Supervisor({0: 100, 1: 200}, LIMITS, hosts=True, restarts=3)
    going = JobSeen("preempting", ranks={200: 1}, size=1, target=2, members=1, pids=frozenset({200}))
    assert play(supervisor, RUNNING, WorkerExited(0, -9), going) == []
    assert supervisor.phase is Stage.WATCHING


def test_a_second_time_it_is_interrupted():
    supervisor = two_workers()
    assert play(supervisor, RUNNING, AskedToGo(), AskedToGo()) == [PreemptJob(), EndWorkers()]
    play(supervisor, WorkerExited(0, 1), WorkerExited(1, 1))
    assert supervisor.verdict == LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)


def test_a_job_that_has_not_begun_has_nothing_to_save():
    supervisor = two_workers()
    assert play(supervisor, AskedToGo(), Looked()) == [LookAtJob(), EndWorkers()]
    play(supervisor, WorkerExited(0, 1), WorkerExited(1, 1))
    assert supervisor.verdict == LaunchVerdict(75, "preempted", "it had not begun to train")


def test_a_job_that_was_not_seen_to_begin_is_looked_at_first():
    supervisor = two_workers()
    assert play(supervisor, AskedToGo(), RUNNING, Looked()) == [LookAtJob(), PreemptJob()]


def test_all_its_workers_may_be_gone_before_the_job_says_so():
    supervisor = two_workers()
    play(supervisor, RUNNING, AskedToGo(), WorkerExited(0, 1), WorkerExited(1, 1), JobSeen("preempted", "saved"))
    assert supervisor.verdict == LaunchVerdict(75, "preempted", "saved")


# ------------------------------------------------------------------------------------------------ the job is moved here

ELSEWHERE = JobSeen("running", size=2, target=2, members=2)
COMING = msgspec.structs.replace(ELSEWHERE, migration=1, awaited=2)


def waiting(restarts: int = 0) -> Supervisor:
    return Supervisor({}, LIMITS, waits=True, restarts=restarts)


def test_a_launch_that_waits_starts_as_many_as_are_to_come_once():
    supervisor = waiting()
    assert play(supervisor, JobSeen("starting"), ELSEWHERE, COMING) == [StartWorkers(2, 0)]
    started = (WorkerStarted(0, 100), WorkerStarted(1, 101))
    assert play(supervisor, *started, COMING) == [], "they are on their way"
    one_is_in = msgspec.structs.replace(COMING, awaited=1, pids=frozenset({100}))
    assert play(supervisor, one_is_in) == []
    assert play(supervisor, msgspec.structs.replace(RUNNING, target=2, members=2), WorkerExited(0, 0)) == []
    assert supervisor.phase is Stage.WATCHING


def test_it_waits_on_when_the_job_has_left_again_and_ends_with_the_job():
    supervisor = waiting()
    play(supervisor, COMING, WorkerStarted(0, 100), WorkerStarted(1, 101), RUNNING)
    assert play(supervisor, WorkerExited(0, 0), WorkerExited(1, 0), ELSEWHERE) == []
    assert play(supervisor, msgspec.structs.replace(COMING, migration=3)) == [StartWorkers(2, 0)], "it comes back"
    over = waiting()
    play(over, ELSEWHERE, JobSeen("finished"), JobSilent())
    assert over.verdict == LaunchVerdict(0, "finished")


def test_it_starts_none_of_a_size_that_others_are_asked_for():
    larger = msgspec.structs.replace(ELSEWHERE, target=3)
    assert play(waiting(), ELSEWHERE, larger) == []
    assert play(two_workers(), msgspec.structs.replace(RUNNING, target=2, members=2), larger) == [StartWorkers(1, 0)]


def test_newcomers_that_crash_are_replaced_as_often_as_other_workers():
    supervisor = waiting(restarts=1)
    play(supervisor, COMING, WorkerStarted(0, 100), WorkerStarted(1, 101))
    assert play(supervisor, WorkerExited(0, 1), COMING) == [StartWorkers(1, 1)]
    assert play(supervisor, WorkerStarted(2, 102), WorkerExited(2, 1), COMING) == []


def test_a_host_that_is_left_starts_none_until_that_is_over():
    supervisor = Supervisor({0: 100, 1: 101}, LIMITS, restarts=3)
    leaving = msgspec.structs.replace(RUNNING, target=3, members=2, migration=1)
    assert play(supervisor, msgspec.structs.replace(RUNNING, target=2, members=2), leaving, leaving) == []
    stays = msgspec.structs.replace(leaving, migration=0)
    assert play(supervisor, stays) == [StartWorkers(1, 0)], "what was asked for meanwhile is due now"


def test_its_end_does_not_end_a_job_that_trains_elsewhere():
    supervisor = waiting()
    assert play(supervisor, ELSEWHERE, AskedToGo()) == []
    assert supervisor.verdict == LaunchVerdict(1, "failed", "interrupted", cause=STOPPED)


class TestCause:
    """Of a failure: another life may mend it, or not."""

    def test_is_found_in_the_exit_that_comes_after_the_word_of_the_job(self):
        for code, cause, exits in (
            (1, CRASHED, "exited with code 1"),
            (-9, KILLED, "was killed by SIGKILL"),
            (137, KILLED, "exited with code 137"),
            (-15, LOST, ""),
            (0, LOST, ""),
        ):
            supervisor = two_workers()
            assert play(supervisor, RUNNING, JobSeen("failed", "too few")) == [EndWorkers()]
            play(supervisor, WorkerExited(1, code), WorkerExited(0, -15))
            assert supervisor.verdict == LaunchVerdict(1, "failed", "too few", cause=cause, exits=exits)

    def test_is_not_found_in_those_that_were_killed_here(self):
        supervisor = two_workers()
        play(supervisor, RUNNING, JobSeen("failed", "too few"))
        play(supervisor, DeadlineReached(), now=END_GRACE_S)
        assert supervisor.phase is Stage.KILLING
        play(supervisor, WorkerExited(0, -9), WorkerExited(1, -9))
        assert supervisor.verdict == LaunchVerdict(1, "failed", "too few", cause=LOST)

    @pytest.mark.parametrize(
        ("by", "cause"),
        [
            (FailedBy.STOP, STOPPED),
            (FailedBy.DIVERGENCE, DIVERGED),
            (FailedBy.REFUSAL, REFUSED),
        ],
    )
    def test_is_what_the_leader_says_whatever_the_workers_ended_by(self, by, cause):
        supervisor = two_workers()
        play(supervisor, RUNNING, JobSeen("failed", "why", failed_by=by), WorkerExited(0, -9), WorkerExited(1, 1))
        assert supervisor.verdict == LaunchVerdict(1, "failed", "why", cause=cause)

    def test_a_signal_counts_more_than_what_it_makes_others_raise(self):
        supervisor = two_workers()
        play(supervisor, RUNNING, WorkerExited(1, 1), WorkerExited(0, -9), JobSilent())
        assert supervisor.verdict is not None
        assert supervisor.verdict.cause == KILLED

    def test_a_crash_that_the_job_went_on_from_counts_no_more(self):
        supervisor = two_workers()
        play(
            supervisor, RUNNING, WorkerExited(1, -9), JobSeen("running", ranks={100: 0}, size=1, pids=frozenset({100}))
        )
        play(supervisor, WorkerExited(0, 1), JobSilent())
        assert supervisor.verdict is not None
        assert (supervisor.verdict.cause, supervisor.verdict.exits) == (CRASHED, "exited with code 1")


class TestAnotherLinesChoice:
    """Several lines of one job begin it at once."""

    @staticmethod
    def watching(base: int, resumed: str, members: int = 1) -> Supervisor:
        supervisor = Supervisor({0: 100, 1: 101}, LIMITS, chosen=OwnChoice("/c/x/0001-000002-000000000063", 63))
        play(supervisor, JobSeen("starting"))
        play(supervisor, JobSeen("starting", members=members, base=base, resumed=resumed))
        return supervisor

    @pytest.mark.parametrize(("base", "resumed"), [(63, "/c/x/0001-000002-000000000063"), (80, "/c/x/newer")])
    def test_of_a_checkpoint_as_new_is_gone_along_with(self, base, resumed):
        assert self.watching(base, resumed).phase is Stage.WATCHING

    @pytest.mark.parametrize(
        ("base", "resumed", "began"), [(0, "", "at its start"), (31, "/c/x/older", "from step 31, /c/x/older")]
    )
    def test_of_an_older_one_is_not(self, base, resumed, began):
        supervisor = self.watching(base, resumed)
        assert supervisor.phase is Stage.ENDING
        assert supervisor.verdict is not None
        assert (supervisor.verdict.code, supervisor.verdict.cause) == (1, REFUSED)
        assert supervisor.verdict.reason == (
            f"another line has begun it {began}, and here /c/x/0001-000002-000000000063 of step 63 is saved: end it by "
            "`edl stop`, and type one line everywhere; all machines have to see one folder"
        )

    def test_is_not_known_before_a_worker_is_there(self):
        assert self.watching(0, "", members=0).phase is Stage.WATCHING
