"""The machine that leads a job: who is in it, which generation trains, which samples each worker holds.

Owns: every decision of a leader. Does not own: when they become durable, nor how they are told; its shell
(`edl.runtime.leader`) writes the record to the coordinator before anybody hears of it (I9). Who should be in the next
generation is `edl.core.planning`'s to say, who has been waited for long enough `edl.core.patience`'s.

`handle(input, now)` is the one mutator. It changes `record`, which is kept, and what was observed, which is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from edl.core import recount, recut, replacing, scaling
from edl.core.horizon import Horizon
from edl.core.hosts import free_local_rank
from edl.core.inputs import (
    Acknowledge,
    CloseRing,
    Command,
    HostRing,
    Input,
    Measured,
    Refuse,
    Registered,
    Reported,
    Ruled,
    ScaleAsked,
    ScaleInAsked,
    ScaleOutAsked,
    Scaling,
    StopAsked,
    Tell,
    TimePassed,
    TookOver,
    Vanished,
)
from edl.core.ledger import Ledger
from edl.core.members import Cause, may, moved
from edl.core.orders import newcomers
from edl.core.patience import NEVER as NEVER_S
from edl.core.patience import Patience, Wait, Waits
from edl.core.planning import Follow, GiveUp, PutOff, Situation, TooFew, WaitAnew, decide, fails_unexplained, missing
from edl.core.seat import NEVER
from edl.core.sightings import Sightings, only_stepped, overtaken
from edl.core.spans import Spans
from edl.core.supply import Supply
from edl.errors import UsageError
from edl.events import Kind
from edl.protocol.data import DataSpec
from edl.protocol.governing import Recut
from edl.protocol.job import Gone, JobState, Limits, Member, Plan, Record, Taken, WorkerState
from edl.protocol.messages import Observation, Phase

OVER = (JobState.FINISHED, JobState.FAILED)
GONE_KEPT = 32
WORD_S = 0.2  # that orders take to reach every trainer, usually


def new_record(job: str, started: float) -> Record:
    """A job that nobody has joined yet."""
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
    """One leader's view during one term."""

    def __init__(self, record: Record, horizon: Horizon, patience: Patience | None = None) -> None:
        self.record = record
        self.horizon = horizon
        self.supply = Supply(record.ledger, record.governing.batching, record.shares)
        self.seen = Sightings()
        self._members = {member.identity.id: member for member in record.members}
        self._waits = Waits(patience or Patience())
        self._commands: list[Command] = []
        self._history: deque[Input] = deque(maxlen=50)
        self._last_loss = ""
        self._enough_until = 0  # while nobody has applied this step, no more need be leased
        self._slowest: set[str] = set()  # of the ring: who is not beyond the newest stable step
        self._now = 0.0
        self._spans = Spans()
        self._asked_at: float | None = None  # the request that is being met; None: by another leader, or there is none
        self._planned_at: float | None = None
        self._replacing_since: float | None = None
        self._recounts = recount.Recounts()
        self.shortage = ""  # why the next generation waits for workers to come
        self._short_at = 0.0  # since when
        self.pressing = record.version  # what came later may reach workers when they call again: nobody runs dry
        self.wake_at = NEVER_S  # something is to be decided then, though nothing else happens
        self._broken_at: float | None = None  # when the present ring was first seen to have failed
        self._missed_at: float | None = None  # when the first was seen to miss the planned switch

    # ------------------------------------------------------------------------------------------------- the mutator

    def handle(self, happened: Input, now: float) -> list[Command]:
        """Take one input at time `now`; return what is to be done once `record` is durable."""
        self._history.append(happened)
        self._commands, self._now = [], now
        self._waits.pass_time(now)
        news = True
        match happened:
            case TookOver():
                self._recounts.left(now)  # perhaps just before
                self._on_took_over(happened)
            case Registered():
                self._on_registered(happened)
            case Reported():
                news = self._on_reported(happened, now)
            case Vanished():
                self._miss(happened.worker, happened.reason)
            case StopAsked():
                self._end(JobState.FAILED, happened.reason)
            case ScaleAsked() | ScaleOutAsked() | ScaleInAsked():
                self._on_scale_asked(happened)
            case Measured(rates):
                self._change(rates=rates, pressing=False)
                news = False
            case Ruled():
                self._on_ruled(happened)
            case TimePassed():
                pass
        if news or now >= min(self._waits.until, self.wake_at) or self._missed_at is not None or self.shortage:
            self._advance(now)
        return self._commands

    # ------------------------------------------------------------------------------------------------------ inputs

    def _on_took_over(self, happened: TookOver) -> None:
        for member in self.record.members:
            if member.identity.id not in happened.alive and member.state is not WorkerState.DONE:
                self._miss(member.identity.id, "its daemon had no session when a new leader took over")
        if self.record.plan is not None:
            self._commands.append(HostRing(self.record.plan.generation, self.record.plan.roster))

    def _on_registered(self, happened: Registered) -> None:
        identity = happened.identity
        member, gone = self._members.get(identity.id), self._gone(identity.id)
        if self.record.state in OVER:
            self._commands.append(Refuse(f"{self._over()}; start another one, under a name of its own"))
        elif member is None and gone is not None:  # said twice, and this is the later one; or it came back
            self._commands.append(
                Refuse(f"worker {gone.worker} is gone ({gone.reason or 'it left'}); ids are used once")
            )
        elif member is None:
            self._admit(happened)
        elif member.identity != identity:  # its daemon was started anew: another process speaks for the same trainer
            self._update(identity.id, identity=identity)

    def _admit(self, happened: Registered) -> None:
        first = not self.record.arrivals
        if first:
            maximum = max(happened.maximum, 0)
            driven = bool(happened.identity.driver_slot)
            limits = Limits(happened.minimum, maximum)
            self._change(target=happened.np, limits=limits, driven=driven, governing=happened.governing)
            self.supply.batching = happened.governing.batching
        maximum, present = self.record.limits.maximum, len(scaling.staying(self.record))
        if maximum and present >= maximum:
            full = f"the job has {present} workers and may have at most {maximum}"
            self._commands.append(
                Refuse(f"{full}: wait until one leaves, or give it a larger --max-np at its next start")
            )
            return
        number = self.record.arrivals + 1
        asks_from = recount.asks_from(self.record, self.seen)
        local_rank = free_local_rank(self.record.members, happened.identity)
        member = Member(happened.identity, WorkerState.JOINING, number, asks_from, local_rank)
        known = recount.known_to_live(self.record, happened.identity.driver_slot)
        self._change(members=(*self.record.members, member), arrivals=number, **known)
        self._spans.enter(happened.identity.id, member.state, self._now)
        if first:
            self._tell(Kind.JOB_STARTED, np=happened.np, min=happened.minimum, max=maximum)
        self._tell(Kind.WORKER_JOINING, worker=happened.identity.id, host=happened.identity.host)
        if self.record.generation and not self.record.driven and present + 1 > self.record.target:
            if happened.answering:  # the request that it was started for was taken back meanwhile
                self._move(happened.identity.id, Cause.TOLD_TO_LEAVE)
            else:  # whoever comes unasked is welcome
                self._change(target=present + 1)

    def _on_reported(self, happened: Reported, now: float) -> bool:
        """False when nothing can follow from the report."""
        worker, observation = happened.worker, happened.observation
        member, last = self._members.get(worker), self.seen.observation(worker)
        if self.record.state in OVER:
            return False
        if member is None:
            return self._on_stranger(worker)
        if last is not None and overtaken(observation, last):
            self._commands.append(Refuse("older than the last report", stale="generation"))
            return False
        self.seen.take(worker, observation, now)
        if last is not None and only_stepped(observation, last) and not self._matters(worker, observation.step):
            return False
        self._tell_voided(worker, last, observation)
        self._follow(member, observation)
        return True

    def _on_stranger(self, worker: str) -> bool:
        """Whoever has left is right to say so twice; all others must hear that they are not counted on any more."""
        gone = self._gone(worker)
        if gone is None:
            self._commands.append(Refuse("this worker is unknown: register again", retry=True))
        elif gone.reason:
            self._commands.append(Refuse(gone.reason, retry=True))
        return False

    def _matters(self, worker: str, step: int) -> bool:
        """Does a worker's step decide anything? The last one's makes a step stable, the first one's needs leases."""
        if self.supply.ledger is None:
            return False
        frees = False
        if worker in self._slowest and step > self.supply.step:
            self._slowest.discard(worker)
            frees = not self._slowest
        return frees or step >= self._enough_until

    def _tell_voided(self, worker: str, before: Observation | None, now: Observation) -> None:
        """A worker's mini-batch is void, unless a peer turns out to have applied it (I5, I8)."""
        again = before is not None and before.phase is Phase.BROKEN and before.generation == now.generation
        if now.phase is Phase.BROKEN and now.generation == self.record.generation and not again:
            reason = (now.reason.splitlines() or [""])[0]
            self._tell(Kind.BATCH_VOIDED, worker=worker, voided_step=now.step + 1, reason=reason)

    def _on_scale_asked(self, asked: Scaling) -> None:
        """Growing is up to whoever starts workers, who sees the target; shrinking is up to us. The request is kept."""
        before = next((taken for taken in self.record.taken if asked.request and taken.request == asked.request), None)
        if before is not None:
            self._commands.append(Acknowledge(before.target))
        elif self.record.state in OVER:
            self._commands.append(Refuse(self._over()))
        else:
            change = scaling.answer(asked, self.record)
            if isinstance(change, scaling.Change):
                self._take(asked, change)
            else:
                self._commands.append(change)

    def _take(self, asked: Scaling, change: scaling.Change) -> None:
        if change.target != self.record.target or change.leavers:
            self._tell(Kind.SCALE_ASKED, size=change.target, before=self.record.target, leavers=change.leavers)
            self._asked_at = self._now
        wished, awaited = self.record.driven, scaling.awaited(self.record, change)
        self._change(target=change.target, awaited=awaited, wished=wished, replacing=None)
        if asked.request:
            taken = (*self.record.taken, Taken(asked.request, change.target))
            self._change(taken=taken[-scaling.KEPT :])
        self._commands.append(Acknowledge(change.target))
        self._dismiss(change.leavers)

    def _on_ruled(self, ruled: Ruled) -> None:
        """What the job's own policy has decided is told in any case; it may be too late to be done."""
        if self.record.state in OVER:
            return
        change = scaling.answer(ScaleAsked(ruled.size), self.record)
        begun = replacing.begin(self.record, ruled.replace[0]) if ruled.replace else None
        able = begun is not None if ruled.replace else isinstance(change, scaling.Change)
        able = able and (not ruled.shares or self.supply.ledger is not None)
        act = ruled.act and able and self.record.plan is None
        details = {"size": ruled.size, "replace": ruled.replace, **ruled.numbers, "reason": ruled.reason, "act": act}
        details |= {"shares": ruled.shares} if ruled.shares else {}
        self._tell(Kind.DECISION, **{name: value for name, value in details.items() if value != ()})
        self._change(ruling=ruled.reason)
        if act and begun is not None:
            self._replace(ruled.replace[0], begun)
        elif act and ruled.shares:
            self.supply.share_out(ruled.shares)
            self._change(shares=ruled.shares, ledger=self.supply.snapshot(), recut=None)
        elif act and not ruled.replace and isinstance(change, scaling.Change):
            self._take(ScaleAsked(ruled.size), change)

    def _replace(self, worker: str, begun: replacing.Begin) -> None:
        awaited = self.record.arrivals + 1
        self._change(replacing=replacing.replacing(worker, self.record), target=begun.target, awaited=awaited)
        self._asked_at = self._now
        if begun.leave:
            self._dismiss((worker,))

    def _go_on_replacing(self) -> None:
        """Whoever shall come has as long as a boot may take. Not kept: a new leader begins to wait anew."""
        under_way = self.record.replacing
        if under_way is None:
            self._replacing_since = None
            return
        self._replacing_since = self._now if self._replacing_since is None else self._replacing_since
        if self._now - self._replacing_since >= (bound_s := self._waits.patience.boot_s):
            self._change(target=under_way.size, replacing=None)
            reason = f"no other worker came in the place of {under_way.worker} within {bound_s:g} s: it stays"
            self._tell(Kind.DECISION, size=under_way.size, reason=reason, act=False)
            return
        match replacing.follows(self.record):
            case replacing.Swap():
                self._change(target=under_way.size)
                self._dismiss((under_way.worker,))
            case replacing.Over():
                self._change(target=under_way.size, replacing=None)
            case None:
                pass

    def _dismiss(self, leavers: tuple[str, ...]) -> None:
        for worker in leavers:
            self._move(worker, Cause.TOLD_TO_LEAVE)

    def _follow(self, member: Member, observation: Observation) -> None:
        """Bring the member's state to what its worker does."""
        worker = member.identity.id
        if observation.driver is not None and observation.driver.gone:
            self._lose_slot(member)
        if observation.data is not None:
            self._open_data(worker, observation.data)
        if observation.leaving and may(member, Cause.TOLD_TO_LEAVE):
            self._move(worker, Cause.TOLD_TO_LEAVE)
            if self.record.generation and not self.record.driven:  # else another one is waited for in its place
                self._change(target=max(1, self.record.target - 1))
            member = self._members[worker]
        match observation.phase:
            case Phase.REHEARSING if may(member, Cause.REHEARSAL_BEGAN):
                self._move(worker, Cause.REHEARSAL_BEGAN)
                self._tell(Kind.WORKER_WARMING, worker=worker, joining_ms=self._spent(worker, WorkerState.JOINING))
            case Phase.READY if may(member, Cause.REHEARSED):
                self._move(worker, Cause.REHEARSED)
                spent = {f"{s.value}_ms": self._spent(worker, s) for s in (WorkerState.JOINING, WorkerState.WARMING)}
                self._tell(Kind.WORKER_READY, worker=worker, **spent)
            case Phase.BROKEN if observation.data is not None and may(member, Cause.REHEARSED):
                self._move(worker, Cause.REHEARSED)  # the first ring does without it, but it has booted
            case Phase.DONE if member.state is not WorkerState.DONE:
                self._end_of(member)
            case Phase.FAILED:
                self._lose(worker, observation.reason)
            case _:  # the other phases change no state by themselves: `_advance` looks at all members together
                pass

    # ----------------------------------------------------------------------------------------- what follows from it

    def _advance(self, now: float) -> None:
        """All that holds of the members together: run after every input, and harmless when nothing changed."""
        if self.record.state in OVER:
            return
        self._expel(now)
        self._recount()
        self._complete_plan()
        self._go_on_replacing()
        self._commit_stable()
        self._plan_if_needed(now)
        self._go_on_cutting(now)
        self._grant()
        self._slowest = self.seen.up_to(self.supply.step, self.record.roster)
        self._finish()

    def _expel(self, now: float) -> None:
        """Nobody's hang holds up the others (I12)."""
        self._waits.look(self.record, self._members, self.seen, now)
        for wait in self._waits.overdue(now):
            self._lose(wait.worker, _hangs(wait))

    def _recount(self) -> None:
        """Under horovodrun: let its driver count anew when it wants to, and do what it has decided."""
        if not self.record.driven:
            return
        match self._recounts.follows(self.record, self.seen, self._now):
            case recount.Begin(heeded):
                self._change(recounts=self.record.recounts + 1, told_lost=self.record.lost_slots, heeded=heeded)
                self._tell(Kind.RECOUNT, number=self.record.recounts)
            case recount.Counted(size, freed, target, given_up, lost):
                number, wished = self.record.recounts, self.record.wished and size != target
                self._change(recounted=number, target=target, wished=wished, given_up=given_up, lost_slots=lost)
                self._tell(Kind.RECOUNTED, number=number, size=size, freed=freed, given_up=given_up)
                self._dismiss(tuple(worker for worker in freed if may(self._members[worker], Cause.TOLD_TO_LEAVE)))
            case recount.Dismiss(workers):
                self._dismiss(workers)
            case None:
                pass

    def _complete_plan(self) -> None:
        plan = self.record.plan
        if plan is None or not all(self.seen.sits(worker, plan.generation) for worker in plan.roster):
            return
        old, first = self.record.roster, self.record.generation == 0
        step = self._adopt_data(plan)
        self._change(
            generation=plan.generation,
            began_step=step,
            roster=plan.roster,
            plan=None,
            superseded=(),
            state=JobState.RUNNING,
        )
        self._move_all(self._switching(plan.roster), Cause.ENTERED)
        self._commands.append(CloseRing(plan.generation))
        if first:
            self._settle_first_size()
        else:
            self._tell_scaled(plan, old)

    def _settle_first_size(self) -> None:
        """Whoever came beyond what was asked for, while the first ring was forming, is welcome."""
        self._change(target=max(self.record.target, len(scaling.staying(self.record))))

    def _plan_if_needed(self, now: float) -> None:
        situation = Situation(self.record, self._members, self.seen, self._is_torn(now))
        if self._may_hear_why(situation, now):
            return
        decision = decide(situation)
        if not isinstance(decision, TooFew):
            self.shortage = ""
        match decision:
            case Follow(roster, forced):
                step = self._switch_step(now) if self.record.generation else 0
                if forced or step is not None:
                    self._plan(roster, None if forced else step, now)
            case WaitAnew():
                assert self.record.plan is not None
                self._drop_plan(self.record.plan, roster=())
                self._change(plan=None)
            case PutOff():
                self._put_off()
            case TooFew(reason):
                self._wait_for_more(reason, now)
            case GiveUp(reason):
                self._end(JobState.FAILED, f"{reason}{self._last_loss}")
            case None:
                pass

    def _may_hear_why(self, situation: Situation, now: float) -> bool:
        """Whoever is gone from the ring will be known in a moment: a plan with that one in it would fail, too."""
        if not fails_unexplained(situation):
            self._broken_at, self.wake_at = None, NEVER_S
            return False
        self._broken_at = now if self._broken_at is None else self._broken_at
        due = self._broken_at + self.horizon.loss_s
        self.wake_at = due if now < due else NEVER_S
        return now < due

    def _wait_for_more(self, reason: str, now: float) -> None:
        """As long as a boot may take. Not kept: a new leader begins to wait anew."""
        if self.record.plan is not None:
            self._drop_plan(self.record.plan, roster=())
            self._change(plan=None)
        if not self.shortage:
            self._short_at = now
            self._tell(Kind.TOO_FEW_WORKERS, reason=reason)
        self.shortage = f"{reason}{self._last_loss}"
        if now - self._short_at >= (bound_s := self._waits.patience.boot_s):
            self._end(JobState.FAILED, f"{reason}; no others came within {bound_s:g} s{self._last_loss}")

    def _is_torn(self, now: float) -> bool:
        if not missing(Situation(self.record, self._members, self.seen)):
            self._missed_at = None
            return False
        self._missed_at = now if self._missed_at is None else self._missed_at
        return now - self._missed_at >= self.horizon.torn_s

    def _put_off(self) -> None:
        """The old ring goes on, and is supplied again. Nobody can have trained by the plan's leases."""
        plan = self.record.plan
        assert plan is not None
        self._tell(Kind.SWITCH_PUT_OFF, next_generation=plan.generation, after_step=plan.after_step)
        self._close(plan, self.record.roster)
        self._move_all(self._switching(self.record.roster), Cause.PUT_OFF)
        self._change(plan=None, state=JobState.RUNNING)

    def _plan(self, roster: tuple[str, ...], after_step: int | None, now: float) -> None:
        generation = self.record.planned + 1
        if self.record.plan is not None:
            self._drop_plan(self.record.plan, roster)
        staying = [worker for worker in roster if self._state(worker) is not WorkerState.LEAVING]
        self._move_all(staying, Cause.PLANNED)
        ledger = self.supply.planned(roster, after_step, self._lease_steps())
        plan = Plan(generation, roster, after_step, ledger, now)
        state = JobState.STARTING if self.record.generation == 0 else JobState.SCALING
        self._change(plan=plan, planned=generation, state=state, recut=None)
        self._planned_at = now
        self._commands.append(HostRing(generation, roster))
        self._tell(
            Kind.SWITCH_SCHEDULED,
            next_generation=generation,
            after_step=after_step,
            size=len(roster),
            newcomers=newcomers(self.record, plan),
        )

    def _drop_plan(self, plan: Plan, roster: tuple[str, ...]) -> None:
        """`plan` comes to nothing, though some may have trained by its leases already. `roster` follows it."""
        self._close(plan, roster)
        if plan.ledger is not None:
            self._change(superseded=(*self.record.superseded, plan))

    def _close(self, plan: Plan, roster: tuple[str, ...]) -> None:
        self._commands.append(CloseRing(plan.generation))
        cause = Cause.UNPLANNED if self.record.generation else Cause.UNPLANNED_FIRST
        following = set(roster)
        self._move_all((worker for worker in self._switching(plan.roster) if worker not in following), cause)

    def _finish(self) -> None:
        """The job is finished when nobody trains any more, unless samples are left that nobody declined to train.

        Scripts that end with samples still in their hands broke off by their own will: a number of steps is reached, a
        loss is low enough. Those that ended for want of samples, while a lost worker's are left, did not (I6).
        """
        in_ring = (self._state(worker) for worker in self.record.roster)
        if self.record.generation == 0 or any(state not in (None, WorkerState.DONE) for state in in_ring):
            return
        ledger = self.ledger
        if ledger is None or ledger.exhausted:
            self._end(JobState.FINISHED, "")
            return
        reason = f"all scripts ended at step {ledger.step}, before their data did"
        willing = ledger.step < ledger.wanted_step and not ledger.stranded
        self._end(JobState.FINISHED if willing else JobState.FAILED, reason)

    # ---------------------------------------------------------------------------------------------------- the data

    def _open_data(self, worker: str, spec: DataSpec) -> None:
        try:
            if self.supply.open(worker, spec, self.record.roster, self.newest_step):
                self._keep_ledger()
        except UsageError as error:
            self._end(JobState.FAILED, str(error))

    def _adopt_data(self, plan: Plan) -> int:
        """Bring the data to the generation that takes over; return the step that it takes over after."""
        source = max(self.seen.leases_of(worker) for worker in plan.roster)
        planned = source == plan.generation and plan.after_step is not None
        step = plan.after_step if planned else min(self.seen.step(worker) for worker in plan.roster)
        assert step is not None
        self._tell_epochs(self.supply.enter(plan, step, source, self.record.superseded, self._lease_steps()))
        self._keep_ledger()
        return step

    def _commit_stable(self) -> None:
        """Only what all living members of the ring have applied moves samples to trained (I5).

        Not worth a write of its own: a new leader learns the step from the workers. From those who were done before its
        time it does not, as they are gone; but whoever is done has applied all steps.
        """
        left = [worker for worker in self.record.roster if worker in self._members]
        told = [worker for worker in left if self.seen.get(worker) or self._state(worker) is not WorkerState.DONE]
        plan, stable = self.record.plan, self.seen.stable_step(told)
        if stable is None:
            return
        if self.record.superseded or (plan is not None and plan.after_step is not None):
            # The leases of a plan are told before it is in force; so some may be in its ring and go by them already.
            if any(self._state(worker) is not WorkerState.DONE for worker in left):
                return
            plans = (*self.record.superseded, *([plan] if plan else []))
            self.supply.go_by(max(self.seen.leases_of(worker) for worker in told), plans)
        if ended := self.supply.commit(stable):
            self._tell_epochs(ended)
            self._keep_ledger()

    def _switch_step(self, now: float) -> int | None:
        """None: nothing is left to be trained by another generation."""
        newest, at = self._newest()
        step, ledger = self._mark(now), self.supply.ledger
        if ledger is None:
            return step
        if step > ledger.covered_step and self.supply.reach(step):
            self._keep_ledger()
        if step < (end := ledger.wanted_step):
            return step
        # The data that is wanted ends before that. Whoever has trained all of it waits for more, where no word reaches
        # it, or has ended; so the word must be there before. Else the switch waits, for more epochs or for the end.
        left_s = (end - newest) * self._step_time_s() - (now - at)
        return end if left_s > WORD_S else None

    def _go_on_cutting(self, now: float) -> None:
        """The batches that go with this roster, in what was leased before it."""
        match recut.follows(self.record, self.supply.ledger, self.seen, lambda: self._mark(now)):
            case recut.SetMark(step):
                number = self.record.recuts + 1
                self._change(recut=Recut(number, step), recuts=number)
            case recut.Lift():
                self._change(recut=None)
            case recut.Cut(step):
                ledger = self.supply.ledger
                assert ledger is not None
                ledger.recut(step)
                self.supply.reach(max(step, self._newest()[0] + self._lease_steps()))
                self._change(recut=None, ledger=ledger.snapshot())
                self._tell(Kind.RECUT, after_step=step, batch=ledger.batch, workers=len(self.record.roster))
            case None:
                pass

    def _mark(self, now: float) -> int:
        newest, at = self._newest()
        return self.horizon.switch_step(newest, now - at, self._step_time_s())

    def _grant(self) -> None:
        ledger, plan = self.supply.ledger, self.record.plan
        if ledger is None or not self.record.roster:
            return
        (newest, at), ahead, covered = self._newest(), self._lease_steps(), ledger.covered_step
        fewest = self.horizon.fewest_steps(self._step_time_s())
        until, least = newest + ahead, newest + fewest
        if plan is not None and plan.after_step is not None:
            until = least = plan.after_step  # what comes after was leased with the plan
        # A broken ring's survivors go on being supplied: who waits for samples would never find that it is broken.
        if covered <= least and self.supply.reach(until):
            left_s = (covered - newest) * self._step_time_s() - (self._now - at)
            self._keep_ledger(pressing=self.horizon.presses(left_s))
        # Where no more can be had now, another step asks in vain: what changes that is followed by this, too.
        self._enough_until = ledger.covered_step - fewest if ledger.covered_step > least else NEVER

    # ---------------------------------------------------------------------------------------------------- endings

    def _end_of(self, member: Member) -> None:
        """A script came to its end: it has left if it was asked to, else it is done."""
        worker, plan = member.identity.id, self.record.plan
        leaving = member.state is WorkerState.LEAVING
        sat = worker in self.record.roster or (plan is not None and self.seen.sits(worker, plan.generation))
        if leaving or not sat:
            self._tell(Kind.WORKER_LEFT, worker=worker, leaving_ms=self._spent(worker, WorkerState.LEAVING))
            self._remove(worker, "")
        else:
            self._move(worker, Cause.ENDED)

    def _miss(self, worker: str, reason: str) -> None:
        """Not its process alone is gone, but its daemon too: perhaps the host, which horovodrun then has to replace."""
        if (member := self._members.get(worker)) is not None:
            self._lose_slot(member)
        self._lose(worker, reason)

    def _lose_slot(self, member: Member) -> None:
        slot = member.identity.driver_slot
        if self.record.driven and slot and slot not in self.record.lost_slots:
            self._change(lost_slots=(*self.record.lost_slots, slot))

    def _lose(self, worker: str, reason: str) -> None:
        member = self._members.get(worker)
        if member is None or member.state is WorkerState.DONE or self.record.state in OVER:
            return
        self._remove(worker, reason or "no reason was given")
        self._last_loss = f"; the last one lost was {worker}: {reason}"
        self._tell(Kind.WORKER_LOST, worker=worker, was=member.state.value, reason=reason)

    def _end(self, state: JobState, reason: str) -> None:
        if self.record.state in OVER:
            return
        if self.record.plan is not None:
            self._commands.append(CloseRing(self.record.plan.generation))
        self._change(state=state, reason=reason, plan=None)
        kind = Kind.JOB_FINISHED if state is JobState.FINISHED else Kind.JOB_FAILED
        self._tell(kind, **({"reason": reason} if reason else {}))

    def _over(self) -> str:
        return f"the job is over: {self.record.reason or self.record.state.value}"

    # ------------------------------------------------------------------------------------------------------- views

    def _state(self, worker: str) -> WorkerState | None:
        member = self._members.get(worker)
        return member.state if member else None

    def _switching(self, roster: tuple[str, ...]) -> list[str]:
        return [worker for worker in roster if self._state(worker) is WorkerState.SWITCHING]

    def _gone(self, worker: str) -> Gone | None:
        return next((gone for gone in self.record.gone if gone.worker == worker), None)

    def _newest(self) -> tuple[int, float]:
        """The newest step that anybody of the ring is known to have committed, and when somebody was seen.

        A new leader may hear an old report first, of a step that the one before knew to be stable.
        """
        newest, at = self.seen.newest_step(self.record.roster)
        return max(newest, self.supply.step), at

    @property
    def ledger(self) -> Ledger | None:
        """The data of the present generation."""
        return self.supply.ledger

    @property
    def at_rest(self) -> bool:
        """No ring is forming, and the newest one trains: a change of leaders now is felt by nobody."""
        if self.record.state in OVER or not self.record.generation:
            return self.record.plan is None
        return self.record.plan is None and self.newest_step > self.record.began_step

    @property
    def newest_step(self) -> int:
        """The newest step that anybody is known to have committed."""
        return self._newest()[0]

    @property
    def progress(self) -> tuple[int, float, int]:
        """The newest step, when it was seen, and the samples that are trained with it."""
        newest, at = self._newest()
        return newest, at, 0 if self.ledger is None else self.ledger.trained_by(newest)

    def _step_time_s(self) -> float:
        return self.seen.step_time_s(self.record.roster)

    def _lease_steps(self) -> int:
        return self.horizon.lease_steps(self._step_time_s())

    # ----------------------------------------------------------------------------------------------------- changes

    def _change(self, *, pressing: bool = True, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, version=self.record.version + 1, **changes)
        if pressing:
            self.pressing = self.record.version
        if "members" in changes:
            self._members = {member.identity.id: member for member in self.record.members}

    def _keep_ledger(self, *, pressing: bool = True) -> None:
        self._change(ledger=self.supply.snapshot(), pressing=pressing)

    def _update(self, worker: str, **changes: Any) -> None:
        replaced = (
            msgspec.structs.replace(m, **changes) if m.identity.id == worker else m for m in self.record.members
        )
        self._change(members=tuple(replaced))

    def _move(self, worker: str, cause: Cause) -> None:
        self._move_all((worker,), cause)

    def _move_all(self, workers: Iterable[str], cause: Cause) -> None:
        """At once: one by one, the members of a large ring would be copied as often as there are of them."""
        after = {worker: moved(self._members[worker], cause) for worker in workers if worker in self._members}
        if after:
            self._change(members=tuple(after.get(member.identity.id, member) for member in self.record.members))
        for worker, member in after.items():
            self._spans.enter(worker, member.state, self._now)

    def _remove(self, worker: str, reason: str) -> None:
        members = tuple(m for m in self.record.members if m.identity.id != worker)
        self._change(members=members, gone=(*self.record.gone, Gone(worker, reason))[-GONE_KEPT:])
        self._recounts.left(self._now)
        self.seen.forget(worker)
        self._spans.forget(worker)

    def _spent(self, worker: str, state: WorkerState) -> int | None:
        return self._spans.spent_ms(worker, state, self._now)

    def _tell(self, kind: Kind, **details: Any) -> None:
        self._commands.append(Tell(kind, self.record.generation, self.newest_step, details))

    def _tell_epochs(self, ended: tuple[int, ...]) -> None:
        for epoch in ended:
            self._tell(Kind.EPOCH_ENDED, epoch=epoch)

    def _since(self, began: float | None) -> int | None:
        return None if began is None else round(1000 * (self._now - began))

    def _tell_scaled(self, plan: Plan, old: tuple[str, ...]) -> None:
        sighted = [self.seen.observation(worker) for worker in plan.roster if worker in old]
        pauses = [observation.pause for observation in sighted if observation and observation.pause]
        worst = max(pauses, key=lambda pause: pause.total, default=None)
        parts = (
            {}
            if worst is None
            else {f"{name}_ms": round(getattr(worst, name), 1) for name in ("leave", "enter", "state")}
        )
        self._tell(
            Kind.SCALED,
            **{"from": len(old), "to": len(plan.roster)},
            pause_ms=None if worst is None else round(worst.total, 1),
            forced=plan.after_step is None,
            **parts,
            switching_ms=self._since(self._planned_at),
            asked_ms=self._since(self._asked_at),
        )
        if len(plan.roster) == self.record.target:
            self._asked_at = None


def _hangs(wait: Wait) -> str:
    """For people: what a worker did not do in time."""
    if wait.what == "step":
        return "its step took longer than --step-timeout, and the others gave up waiting for it: it hangs"
    if wait.what == "seat":
        return f"it has not come to its ring within {wait.bound_s:g} s, two step time-outs: it hangs"
    return f"it was {wait.what} for {wait.bound_s:g} s: it hangs, or its boot needs a longer --step-timeout"
