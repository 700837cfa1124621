"""The machine that leads a job: it takes what happens, one input after another, and says what follows.

Owns: the members, from their registration to their end, that of the job, and the order in which all else is looked at:
its size (`edl.core.resize.target_size`), its generations (`edl.core.switch.generation_switch`), its data
(`edl.core.data.lease_grants`), its checkpoints (`edl.core.checkpoint.checkpoints`).
Does not own: how the record changes (`edl.core.job.leader_state`), which worker has been waited for long
enough (`edl.core.job.deadlines`), nor when decisions become durable (`edl.core.job.commit`), before which no worker is
told of them (I9).

`handle(input, now)` is the one mutator. It changes `record`, which is kept, and what was observed, which is not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import UNSET

from edl import facts
from edl.core.checkpoint.checkpoints import Checkpoints
from edl.core.checkpoint.due_times import Interval
from edl.core.checkpoint.preemption import Preempting
from edl.core.checkpoint.remnants import Remnants
from edl.core.data.lease_grants import LeaseGrants
from edl.core.data.sample_ledger import Ledger
from edl.core.driver import horovod_counts
from edl.core.driver.horovod_driver import HorovodrunDriver
from edl.core.job.deadlines import END_OF_TIME, Deadlines, Waits, silent
from edl.core.job.job_end import JobEnd, disagreement
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import (
    Asked,
    Command,
    Input,
    Measured,
    NotListening,
    PublishingFailed,
    Refuse,
    Reported,
    Ruled,
    SavingPublished,
    TimePassed,
    TookOver,
    Vanished,
)
from edl.core.job.leader_state import LONG_AGO, WorkingState, did_not_end
from edl.core.job.local_ranks import free_local_rank
from edl.core.job.member_states import Cause, may
from edl.core.job.observations import only_stepped, overtaken
from edl.core.resize import host_migration, scale_requests
from edl.core.resize.host_migration import MigrationAnswers
from edl.core.resize.policy_decisions import PolicyRulings
from edl.core.resize.target_size import TargetSize
from edl.core.switch.faulty_members import FaultyMembers
from edl.core.switch.generation_switch import GenerationSwitch
from edl.core.switch.ring_forming import EnteredMembers
from edl.core.worker.divergence_finder import Consequence, outcome, told
from edl.core.worker.observed_trainer import DIED, DIED_WHOLE
from edl.errors import InvalidTransition
from edl.protocol.divergence_report import Divergence
from edl.protocol.leader_messages import (
    AskBatch,
    AskCheckpoint,
    AskMigrate,
    AskPreempt,
    AskScale,
    AskScaleIn,
    AskScaleOut,
    AskStop,
    Observation,
    Phase,
    Register,
)
from edl.protocol.record import OVER, FailedBy, Gone, Identity, JobState, Limits, Member, Record, WorkerState
from edl.protocol.tally import LossCause

NOT_LISTENING: Final = "its ring broke, it was not heard of, and no process listens any more where its daemon did"


def new_record(job: str, started: float) -> Record:
    return Record(
        job=job,
        version=1,
        state=JobState.STARTING,
        reason="",
        limits=Limits(1, 0),
        target=0,
        generation=0,
        began_step=0,
        roster=(),
        members=(),
        arrivals=0,
        ledger=None,
        plan=None,
        planned=0,
        superseded=(),
        started=started,
    )


class JobMachine:
    """Decide for the job during one leader's term."""

    def __init__(self, record: Record, lead_times: LeadTimes, deadlines: Deadlines | None = None) -> None:
        deadlines = deadlines or Deadlines()
        self._working = WorkingState(record)
        self.lead_times = lead_times
        self.seen = self._working.seen
        self._waits = Waits(deadlines)
        self._sizing = TargetSize(self._working)
        self._rulings = PolicyRulings(self._working, self._sizing, deadlines.boot_s)
        self._driver = HorovodrunDriver(self._working, self._sizing)
        self._leasing = LeaseGrants(self._working, lead_times)
        self._fitness = FaultyMembers(self._working, lead_times, deadlines)
        self._switching = GenerationSwitch(
            self._working, self._sizing, self._leasing, self._fitness, lead_times, deadlines
        )
        self._checkpoints = Checkpoints(self._working, self._leasing, lead_times, deadlines)
        self._remnants = Remnants(self._working, self._checkpoints, deadlines.moments_s)
        self._preempting = Preempting(self._working, self._checkpoints, lead_times)
        self._migrating = MigrationAnswers(self._working, self._sizing, deadlines.boot_s)
        self._ending = JobEnd(self._working, deadlines.boot_s)
        self._arrivals = EnteredMembers(self._working)
        self._history: deque[Input] = deque(maxlen=50)
        self._took_over_at = -math.inf
        self._unseen = False  # inputs were taken, and it was not looked at yet what follows from them

    # ------------------------------------------------------------------------------------------------- the mutator

    def handle(self, happened: Input, now: float, *, more: bool = False) -> list[Command]:
        """Take one input at time `now`; return what is to be done once `record` is durable.

        `more`: others are handled right after it. What follows from all of them together is seen with the last, as to
        look at all members costs as much for one report as for those of a whole ring.
        """
        self._history.append(happened)
        try:
            return self._handle(happened, now, more)
        except InvalidTransition as error:
            error.add_note("the job's newest inputs:" + "".join(f"\n  {one!r}" for one in self._history))
            raise

    def _handle(self, happened: Input, now: float, more: bool) -> list[Command]:
        self._working.begin(now)
        self._waits.pass_time(now)
        news = True
        match happened:
            case TookOver():
                self._working.left_at = now  # perhaps just before
                self._took_over_at = now
                self._working.to_wall_s = happened.wall - now if happened.wall else 0.0
                self._on_took_over(happened)
            case Register():
                self._on_registered(happened)
            case Reported():
                news = self._on_reported(happened)
            case Vanished() | NotListening():
                self._on_gone(happened)
            case SavingPublished() | PublishingFailed():
                self._checkpoints.hear(happened)
            case Measured(rates):
                self._working.change(rates=rates, pressing=False)
                news = False
            case Ruled():
                self._rulings.rule(happened)
            case TimePassed():
                pass
            case _:
                self._on_asked(happened)
        timed = now >= self._waits.until or self._switching.is_due() or self._ending.is_due()
        timed = timed or self._checkpoints.is_due() or self._preempting.is_due() or self._migrating.is_due()
        timed = timed or self._remnants.is_due()
        self._unseen = self._unseen or news or timed
        if self._unseen and not more:
            self._unseen = False
            self._advance()
        return self._working.commands

    # ------------------------------------------------------------------------------------------------------ inputs

    def _on_asked(self, happened: Asked) -> None:
        match happened:
            case AskStop():
                self._working.end(JobState.FAILED, happened.reason, FailedBy.STOP)
            case AskBatch():
                self._leasing.ask_batch(happened.samples)
            case AskCheckpoint():
                self._checkpoints.ask(happened)
            case AskPreempt():
                self._preempting.ask(happened)
            case AskMigrate():
                self._migrating.ask(happened)
            case AskScale() | AskScaleOut() | AskScaleIn():
                self._sizing.ask(happened)

    def _on_took_over(self, happened: TookOver) -> None:
        for member in self.record.members:
            if member.identity.id not in happened.alive and member.state is not WorkerState.DONE:
                self._miss(member.identity.id, "its daemon had no session when a new leader took over")
        for remnant in self.record.held:
            if remnant.worker not in happened.alive:
                self._remnants.lose(remnant.worker)
        self._fitness.take_over()

    def _on_registered(self, happened: Register) -> None:
        identity = happened.identity
        member, gone = self._working.members.get(identity.id), self._working.gone(identity.id)
        if gone is None and member is None and happened.again:
            gone = Gone(identity.id, LONG_AGO)
        if self.record.state in OVER:
            self._working.commands.append(Refuse(f"{self._working.over()}; start another one, under a name of its own"))
        elif member is None and gone is not None:  # said twice, and this is the later one; or it came back
            self._working.commands.append(
                Refuse(f"worker {gone.worker} is gone ({gone.reason or 'it left'}); ids are used once")
            )
        elif member is None:
            self._admit(happened)
        elif member.identity != identity:  # its daemon was started anew: another process speaks for the same trainer
            self._working.identify(identity)
            self._fitness.excuse()  # members of a ring that forms found the others through the daemon that died

    def _admit(self, happened: Register) -> None:
        working, first = self._working, not self.record.arrivals
        if first and happened.not_resumed:
            working.commands.append(Refuse(happened.not_resumed))
            return
        if first:
            maximum = max(happened.maximum, 0)
            limits, job_policy = Limits(happened.minimum, maximum), happened.job_policy
            driver = horovod_counts.found(happened.identity)
            working.change(
                target=happened.np,
                limits=limits,
                driver=driver,
                job_policy=job_policy,
                keep_s=happened.keep_s,
                ring=happened.ring,
                processes=happened.processes,
                resumed=happened.resumed,
            )
            working.ledgers.resumed = happened.resumed
            working.ledgers.batching = happened.job_policy.batching
        if refusal := self._refusal(happened):
            working.commands.append(Refuse(refusal))
            return
        number = self.record.arrivals + 1
        local_rank = free_local_rank(self.record.members, happened.identity)
        member = Member(happened.identity, WorkerState.JOINING, number, local_rank)
        driver = horovod_counts.joined(self.record, self.seen, happened.identity)
        working.change(members=(*self.record.members, member), arrivals=number, driver=driver)
        working.durations.enter(happened.identity.id, member.state, working.now)
        if first:
            most, ring = self.record.limits.maximum, happened.ring or UNSET
            working.tell(facts.JobStarted(np=happened.np, min=happened.minimum, max=most, ring=ring))
        working.tell(facts.WorkerJoining(worker=happened.identity.id, host=happened.identity.host))
        if not self._migrating.welcome(happened.identity):
            # A size was asked for while the workers of the first one were still coming: it holds for them, too.
            answering = happened.answering or number <= happened.np
            self._sizing.welcome(happened.identity.id, answering=answering)

    def _refusal(self, newcomer: Register) -> str:
        """Return why a newcomer is refused; empty when it may register."""
        record = self.record
        if newcomer.ring is not record.ring:
            return (
                f"the job trains with --ring {record.ring}, not {newcomer.ring}: say the same on all workers, as "
                "--ring auto takes Horovod where it is installed and else torch"
            )
        if newcomer.processes != record.processes:
            return (
                f"the job's workers have {record.processes} processes each, not {newcomer.processes}: say the same "
                "--processes on all workers"
            )
        maximum, present = record.limits.maximum, len(scale_requests.staying(record))
        if maximum and present >= maximum and not host_migration.has_room_for(record, newcomer.identity):
            full = f"the job has {present} workers and may have at most {maximum}"
            return f"{full}: wait until one leaves, or give it a larger --max-np at its next start"
        return self._fitness.refusal(newcomer.identity)

    def _on_gone(self, happened: Vanished | NotListening) -> None:
        match happened:
            case Vanished():
                self._miss(happened.worker, happened.reason)
                self._remnants.lose(happened.worker)
            case NotListening():
                for identity in [one for one in self.silent if one in happened.daemons]:
                    self._miss(identity.id, NOT_LISTENING)

    def _on_reported(self, happened: Reported) -> bool:
        """Return False when nothing can follow from the report."""
        worker, observation = happened.worker, happened.observation
        member, last = self._working.members.get(worker), self.seen.observation(worker)
        if self.record.state in OVER:
            return False
        if member is None:
            return self._remnants.hear(worker, observation) or self._on_stranger(worker)
        if last is not None and overtaken(observation, last):
            self._working.commands.append(Refuse("older than the last report", stale="generation"))
            return False
        self.seen.take(worker, observation, self._working.now)
        if last is not None and only_stepped(observation, last) and not self._leasing.matters(worker, observation.step):
            return False
        self._tell_voided(worker, observation)
        if observation.bits:
            self._keep_bits()
        before = self.record
        self._checkpoints.heed(observation.save_wanted)
        self._follow(member, observation)
        self._leasing.learn(observation.stream)
        self._miss_dead(observation.dead)
        if last is None or self.record is not before or self._arrivals.matters(worker, observation, last):
            return True
        return observation.stream != last.stream or self._leasing.matters(worker, observation.step)

    def _on_stranger(self, worker: str) -> bool:
        """A worker that has left may say so twice; all others must hear that they are not counted on any more."""
        gone = self._working.gone(worker)
        if gone is None:
            self._working.commands.append(Refuse("this worker is unknown: register again", retry=True))
        elif gone.reason:
            self._working.commands.append(Refuse(gone.reason, retry=True))
        return False

    def _tell_voided(self, worker: str, now: Observation) -> None:
        """A worker's mini-batch is void, unless a peer turns out to have applied it (I5, I8).

        That it was told of is on record: the worker says so again to the next leader.
        """
        if now.phase is Phase.BROKEN and now.generation == self.record.generation != self.record.voided.get(worker):
            reason = (now.reason.splitlines() or [""])[0]
            self._working.tell(facts.BatchVoided(worker=worker, voided_step=now.step + 1, reason=reason))
            self._working.change(voided={**self.record.voided, worker: now.generation}, pressing=False)

    def _follow(self, member: Member, observation: Observation) -> None:
        working, worker = self._working, member.identity.id
        if observation.diverged is not None:
            self._heed_divergence(observation.diverged)
            if self.record.state in OVER:
                return
        if observation.driver is not None and observation.driver.gone:
            self._driver.lose(member.identity)
        if observation.data is not None:
            self._leasing.open(worker, observation.data)
        # One that sits in the newest ring leaves by a leader's word. If its wish is first heard of as its script ends,
        # it had none: the script came to its own end, with the newest state.
        ended = observation.phase is Phase.DONE and self._sat(worker)
        if observation.leaving and not ended and may(member, Cause.TOLD_TO_LEAVE):
            self._sizing.release(worker)
            member = working.members[worker]
        if not working.record.begun and working.seen.has_booted(worker):
            working.change(begun=True)
        match observation.phase:
            case Phase.REHEARSING if may(member, Cause.REHEARSAL_BEGAN):
                working.move(worker, Cause.REHEARSAL_BEGAN)
                working.tell(
                    facts.WorkerWarming(worker=worker, joining_ms=working.spent_ms(worker, WorkerState.JOINING))
                )
            case Phase.READY if may(member, Cause.REHEARSED):
                working.move(worker, Cause.REHEARSED)
                joining, warming = (working.spent_ms(worker, s) for s in (WorkerState.JOINING, WorkerState.WARMING))
                working.tell(facts.WorkerReady(worker=worker, joining_ms=joining, warming_ms=warming))
            case Phase.BROKEN | Phase.TRAINING if working.seen.has_booted(worker) and may(member, Cause.REHEARSED):
                working.move(worker, Cause.REHEARSED)  # its first ring came to nothing, but it has booted
            case Phase.DONE if member.state is not WorkerState.DONE:
                self._end_of(member)
            case Phase.FAILED:
                self._fail(worker, observation)
            case _:  # the other phases change no state by themselves: `_advance` looks at all members together
                pass

    def _keep_bits(self) -> None:
        """Put on record what the ring's workers say of the bits, for later leaders, and for people once the job is
        over. Bits that newcomers have lost are told by the longest words.
        """
        seen = (self.seen.observation(worker) for worker in self.record.roster)
        bits = max((one.bits for one in seen if one is not None), key=len, default="")
        if bits not in {"", self.record.bits}:
            self._working.change(bits=bits, pressing=False)

    def _fail(self, worker: str, observation: Observation) -> None:
        """A script that does not fit the checkpoint ends the job before the first step: other workers started alike
        would fail alike.
        """
        if self._ends_at_first():
            return
        if observation.foreign and not self.newest_step:
            self._working.end(JobState.FAILED, f"worker {worker}: {observation.reason}", FailedBy.REFUSAL)
        else:
            self._lose(worker, observation.reason, LossCause.DIED if observation.reason == DIED else LossCause.SCRIPT)
            self._remnants.note(worker, observation)

    def _heed_divergence(self, found: Divergence) -> None:
        """Act once on a divergence (I15): each member of the ring reports it, and later leaders hear of it too."""
        working, number = self._working, (found.generation, found.step, found.persists)
        if number <= self.record.ending.diverged:
            return
        follows = outcome(found, self.record.job_policy.checking.on_divergence)
        if follows is Consequence.PART and self._are_missed(found.workers):
            follows = Consequence.FAIL
        reason = told(found)
        working.change(diverged=number, pressing=follows not in {Consequence.HEAL, Consequence.TELL})
        working.tell_diverged(found, follows)
        if follows is Consequence.PART:
            self._part_with(found, reason)

    def _are_missed(self, workers: Sequence[str]) -> bool:
        """Tell whether the job has fewer workers than it needs without these `workers`."""
        left = [member for member in scale_requests.staying(self.record) if member.identity.id not in workers]
        return len(left) < max(self.record.limits.minimum, 1)

    def _part_with(self, found: Divergence, reason: str) -> None:
        """Lose newcomers whose scripts do something else than the others', or workers whose hardware erred; the others
        train on without them.
        """
        if not found.corrupt:
            self._fitness.count_parting()
        for worker in found.workers:
            self._lose(worker, reason, LossCause.CORRUPTED if found.corrupt else LossCause.DIFFERED)

    # ----------------------------------------------------------------------------------------- what follows from it

    def _advance(self) -> None:
        """Follow conditions of all members together, after any input that may change them; harmless twice."""
        if self.record.state in OVER:
            return
        if self._remnants.follow(short=bool(self._switching.shortage)):
            self._checkpoints.follow()
            if self.record.checkpoints.saving is not None:
                self._switching.wake_at = END_OF_TIME  # it follows nothing until that is saved
                return
        self._expel()
        if self.record.state in OVER:
            return
        self._driver.go_on()
        self._switching.complete()
        self._rulings.go_on()
        self._migrating.follow()
        self._leasing.commit_stable()
        self._switching.follow()
        self._leasing.go_on_cutting()
        self._leasing.foresee()
        self._leasing.grant()
        self._checkpoints.follow()
        self._preempting.follow()
        if not self._checkpoints.holds_end:
            self._ending.follow()
        self._arrivals.look()

    def _expel(self) -> None:
        """Lose overdue workers: no worker's hang holds up the others (I12)."""
        working, ledger = self._working, self.ledger
        if self._ends_at_first():
            return
        last_step, saving = None if ledger is None else ledger.wanted_step, self._ending.is_clear
        self._waits.look(
            self.record,
            working.members,
            self.seen,
            working.now,
            last_step=last_step,
            saving=saving,
            reading=working.ledgers.reading(self.record.roster),
        )
        for wait in self._waits.overdue(self._working.now):
            self._lose(wait.worker, wait.told, LossCause.OVERDUE)

    def _ends_at_first(self) -> bool:
        """End the job if its scripts differ in the first mini-batch: they would in another life too."""
        reason = disagreement(self.record, self.seen)
        if reason:
            self._working.end(JobState.FAILED, reason, FailedBy.REFUSAL)
        return bool(reason)

    # ---------------------------------------------------------------------------------------------------- endings

    def _end_of(self, member: Member) -> None:
        """A script came to its end: it has left if it was asked to, else it is done. From the planned ring, which it
        is of, no leader has let it go yet: all that was to be trained is.
        """
        working, worker = self._working, member.identity.id
        self._checkpoints.keep_part_of(worker)
        leaving = member.state is WorkerState.LEAVING and not self._sits_in_planned_ring(worker)
        if leaving or not self._sat(worker):
            leaving_ms, why = working.spent_ms(worker, WorkerState.LEAVING), working.leaves_as.get(worker, "")
            working.tell(facts.WorkerLeft(worker=worker, leaving_ms=leaving_ms, why=why))
            working.remove(worker, "")
        else:
            working.move(worker, Cause.ENDED)
            self._ending.note(worker)

    def _sat(self, worker: str) -> bool:
        """Tell whether the worker has trained in the newest ring."""
        return worker in self.record.roster or self._sits_in_planned_ring(worker)

    def _sits_in_planned_ring(self, worker: str) -> bool:
        plan = self.record.plan
        return plan is not None and self.seen.sits(worker, plan.generation)

    def _miss_dead(self, workers: Iterable[str]) -> None:
        """Lose workers that another daemon of their host saw die, but those that are done."""
        for worker in workers:
            if (member := self._working.members.get(worker)) and member.state is not WorkerState.DONE:
                self._miss(worker, DIED_WHOLE, LossCause.DIED)

    def _miss(self, worker: str, reason: str, cause: LossCause = LossCause.SESSION) -> None:
        """Lose a worker with its daemon: perhaps its host is gone, which horovodrun then has to replace."""
        if (member := self._working.members.get(worker)) is not None:
            self._driver.lose(member.identity)
        self._lose(worker, reason, cause)

    def _lose(self, worker: str, reason: str, cause: LossCause) -> None:
        member = self._working.members.get(worker)
        if member is None or member.state is WorkerState.DONE or self.record.state in OVER:
            return
        if not self.record.ending.unended and self._sat(worker):
            self._working.change(unended=did_not_end(worker, reason))
        self._checkpoints.keep_part_of(worker)
        self._working.change(losses=self.record.losses + 1)
        made = seen.step if (seen := self.seen.observation(worker)) is not None else 0
        self._working.remove(worker, reason or "no reason was given")
        self._working.last_loss = f"; the last one lost was {worker}: {reason}"
        lost = facts.WorkerLost(worker=worker, was=member.state.value, reason=reason, made=made, cause=cause.value)
        self._working.tell(lost)

    # ------------------------------------------------------------------------------------------------------- views

    @property
    def record(self) -> Record:
        return self._working.record

    @property
    def pressing(self) -> int:
        """Return the newest version of the record that workers must hear of at once."""
        return self._working.pressing

    @property
    def shortage(self) -> str:
        return self._switching.shortage

    def wall_at(self, now: float) -> float:
        """Return seconds since 1970 that never go back as the wall clock may: what was served by them never shrinks."""
        return now + self._working.to_wall_s

    @property
    def reigns_for_s(self) -> float:
        """Return the seconds from the begin of this leader's term to its newest input."""
        return self._working.now - self._took_over_at

    @property
    def wake_at(self) -> float:
        """Return when the machine needs an input even if nothing else happens."""
        if self.record.state in OVER:  # what was waited for then is never looked at again, and stays due
            return END_OF_TIME
        return min(self._switching.wake_at, self._preempting.wake_at, self._waits.until)

    @property
    def ledger(self) -> Ledger | None:
        return self._working.ledgers.ledger

    @property
    def save_interval(self) -> Interval | None:
        return self._checkpoints.interval

    @property
    def silent(self) -> tuple[Identity, ...]:
        """Return members that may be gone, daemon and all: they are probed, and lost if no process listens there."""
        return silent(self.record, self.seen)

    @property
    def at_rest(self) -> bool:
        """Tell whether no ring is forming and the newest one trains: then no worker feels a change of leaders."""
        if self._checkpoints.holds_end:
            return False
        if self.record.state in OVER or not self.record.generation:
            return self.record.plan is None
        return self.record.plan is None and self.newest_step > self.record.began_step

    @property
    def newest_step(self) -> int:
        """Return the newest step that any worker is known to have committed."""
        return self._working.newest()[0]

    @property
    def is_seen(self) -> bool:
        """Tell whether a member of the ring was seen: then it is known when the newest step was reported."""
        return self._working.is_seen

    @property
    def progress(self) -> tuple[int, float, int]:
        """Return the newest step, when it was seen, and the samples that are trained with it."""
        newest, at = self._working.newest()
        return newest, at, 0 if self.ledger is None else self.ledger.trained_by(newest)
