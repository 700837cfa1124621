"""The machine that leads a job: who is in it, which generation trains, which samples each worker holds.

Owns: every decision of a leader. Does not own: when they become durable, nor how they are told; its shell
(`edl.runtime.leader`) writes the record to the coordinator before anybody hears of it (I9).

`handle(input, now)` is the one mutator. It changes `record`, which is kept, and what was observed, which is not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

from edl.core import scaling
from edl.core.horizon import Horizon
from edl.core.inputs import (
    Acknowledge,
    CloseRing,
    Command,
    HostRing,
    Input,
    Refuse,
    Registered,
    Reported,
    ScaleAsked,
    ScaleInAsked,
    ScaleOutAsked,
    Scaling,
    StopAsked,
    Tell,
    TookOver,
    Vanished,
)
from edl.core.ledger import Ledger
from edl.core.members import Cause, may, moved
from edl.core.orders import newcomers
from edl.core.spans import Spans
from edl.errors import UsageError
from edl.events import Kind
from edl.protocol.data import DataSpec
from edl.protocol.job import JobState, Limits, Member, Plan, Record, Taken, WorkerState
from edl.protocol.messages import Observation, Phase

OVER = (JobState.FINISHED, JobState.FAILED)
SITTING = (Phase.TRAINING, Phase.DONE)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a worker was last seen doing, and when."""

    observation: Observation
    at: float


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

    def __init__(self, record: Record, horizon: Horizon) -> None:
        self.record = record
        self.horizon = horizon
        self.ledger = None if record.ledger is None else Ledger.restore(record.ledger)
        self.seen: dict[str, Sighting] = {}
        self._commands: list[Command] = []
        self._history: deque[Input] = deque(maxlen=50)
        self._last_loss = ""
        self._now = 0.0
        self._spans = Spans()
        self._asked_at: float | None = None  # the request that is being met; None: by another leader, or there is none
        self._planned_at: float | None = None

    # ------------------------------------------------------------------------------------------------- the mutator

    def handle(self, happened: Input, now: float) -> list[Command]:
        """Take one input at time `now`; return what is to be done once `record` is durable."""
        self._history.append(happened)
        self._commands, self._now = [], now
        match happened:
            case TookOver():
                self._on_took_over(happened)
            case Registered():
                self._on_registered(happened)
            case Reported():
                self._on_reported(happened, now)
            case Vanished():
                self._lose(happened.worker, happened.reason)
            case StopAsked():
                self._end(JobState.FAILED, happened.reason)
            case ScaleAsked() | ScaleOutAsked() | ScaleInAsked():
                self._on_scale_asked(happened)
        self._advance(now)
        return self._commands

    # ------------------------------------------------------------------------------------------------------ inputs

    def _on_took_over(self, happened: TookOver) -> None:
        for member in self.record.members:
            if member.identity.id not in happened.alive and member.state is not WorkerState.DONE:
                self._lose(member.identity.id, "its daemon had no session when a new leader took over")
        if self.record.plan is not None:
            self._commands.append(HostRing(self.record.plan.generation, self.record.plan.roster))

    def _on_registered(self, happened: Registered) -> None:
        if self.record.state in OVER:
            over = f"the job is over: {self.record.reason or self.record.state.value}"
            self._commands.append(Refuse(f"{over}; start another one, under a name of its own"))
        elif self._member(happened.identity.id) is None:
            self._admit(happened)
        else:  # its daemon was started anew: another process speaks for the same trainer
            self._update(happened.identity.id, identity=happened.identity)

    def _admit(self, happened: Registered) -> None:
        first = not self.record.arrivals
        if first:
            maximum = max(happened.maximum, 0)
            self._change(target=happened.np, limits=Limits(happened.minimum, maximum))
        maximum, present = self.record.limits.maximum, len(self._staying())
        if maximum and present >= maximum:
            full = f"the job has {present} workers and may have at most {maximum}"
            self._commands.append(
                Refuse(f"{full}: wait until one leaves, or give it a larger --max-np at its next start")
            )
            return
        number = self.record.arrivals + 1
        member = Member(happened.identity, WorkerState.JOINING, number)
        self._change(members=(*self.record.members, member), arrivals=number)
        self._spans.enter(happened.identity.id, member.state, self._now)
        if first:
            self._tell(Kind.JOB_STARTED, np=happened.np, min=happened.minimum, max=maximum)
        self._tell(Kind.WORKER_JOINING, worker=happened.identity.id, host=happened.identity.host)
        if self.record.generation and len(self._staying()) > self.record.target:
            if happened.answering:  # the request that it was started for was taken back meanwhile
                self._move(happened.identity.id, Cause.TOLD_TO_LEAVE)
            else:  # whoever comes unasked is welcome
                self._change(target=len(self._staying()))

    def _on_reported(self, happened: Reported, now: float) -> None:
        worker, observation = happened.worker, happened.observation
        member, last = self._member(worker), self.seen.get(worker)
        if self.record.state in OVER:
            return
        if member is None:
            self._commands.append(Refuse("this worker is unknown: register again", retry=True))
        elif last is not None and observation.generation < last.observation.generation:
            self._commands.append(Refuse("an older generation than the last report's", stale="generation"))
        else:
            self.seen[worker] = Sighting(observation, now)
            self._tell_voided(worker, last.observation if last else None, observation)
            self._follow(member, observation)

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
            self._commands.append(Refuse(f"the job is over: {self.record.reason or self.record.state.value}"))
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
        self._change(target=change.target, awaited=scaling.awaited(self.record, change))
        if asked.request:
            taken = (*self.record.taken, Taken(asked.request, change.target))
            self._change(taken=taken[-scaling.KEPT :])
        self._commands.append(Acknowledge(change.target))
        if self.record.generation or self.record.plan is None:  # else the first ring forms, and has to stand first
            self._dismiss(change.leavers)

    def _dismiss(self, leavers: tuple[str, ...]) -> None:
        for worker in leavers:
            self._move(worker, Cause.TOLD_TO_LEAVE)

    def _follow(self, member: Member, observation: Observation) -> None:
        """Bring the member's state to what its worker does."""
        worker = member.identity.id
        if observation.data is not None:
            self._open_data(worker, observation.data)
        if observation.leaving and may(member, Cause.TOLD_TO_LEAVE):
            self._move(worker, Cause.TOLD_TO_LEAVE)
            if self.record.generation:  # else another one is waited for in its place
                self._change(target=max(1, self.record.target - 1))
            member = self._member(worker) or member
        match observation.phase:
            case Phase.REHEARSING if may(member, Cause.REHEARSAL_BEGAN):
                self._move(worker, Cause.REHEARSAL_BEGAN)
                self._tell(Kind.WORKER_WARMING, worker=worker, joining_ms=self._spent(worker, WorkerState.JOINING))
            case Phase.READY if may(member, Cause.REHEARSED):
                self._move(worker, Cause.REHEARSED)
                spent = {f"{s.value}_ms": self._spent(worker, s) for s in (WorkerState.JOINING, WorkerState.WARMING)}
                self._tell(Kind.WORKER_READY, worker=worker, **spent)
            case Phase.DONE if member.state is not WorkerState.DONE:
                self._end_of(member)
            case Phase.FAILED:
                self._lose(worker, observation.reason)
            case _:  # the other phases change no state by themselves: `_advance` looks at all members together
                pass

    def _open_data(self, worker: str, spec: DataSpec) -> None:
        if self.ledger is None:
            try:
                self.ledger = Ledger(spec, self.record.roster, self.newest_step)
            except UsageError as error:
                self._end(JobState.FAILED, str(error))
                return
            self._keep_ledger()
        elif differences := spec.differences(self.ledger.spec):
            named = ", ".join(f"{name}={getattr(spec, name)}" for name in differences)
            self._end(JobState.FAILED, f"worker {worker} trains on other data than the rest: {named}")
        elif spec.epochs > self.ledger.spec.epochs:
            self.ledger.extend(spec.epochs)
            self._keep_ledger()

    # ----------------------------------------------------------------------------------------- what follows from it

    def _advance(self, now: float) -> None:
        """All that holds of the members together: run after every input, and harmless when nothing changed."""
        if self.record.state in OVER:
            return
        self._complete_plan()
        self._commit_stable()
        self._plan_if_needed(now)
        self._grant()
        self._finish()

    def _complete_plan(self) -> None:
        plan = self.record.plan
        if plan is None or not all(self._sits(worker, plan.generation) for worker in plan.roster):
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
        for worker in plan.roster:
            if self._state(worker) is WorkerState.SWITCHING:
                self._move(worker, Cause.ENTERED)
        self._commands.append(CloseRing(plan.generation))
        if first:
            self._settle_first_size()
        else:
            self._tell_scaled(plan, old)

    def _settle_first_size(self) -> None:
        """What could not be done while the first ring was forming, and whoever came beyond what was asked for."""
        if len(self.record.roster) > self.record.target:
            self._dismiss(scaling.surplus(self.record, self.record.target))
        else:
            self._change(target=max(self.record.target, len(self._staying())))

    def _adopt_data(self, plan: Plan) -> int:
        """Make the ledger that of the generation that takes over; return the step that it takes over after.

        If the ring agreed on the planned step, its leases were made with the plan and are in use already. Else the
        step is known only now, and nobody trains on before the leases are.
        """
        source = max(self.seen[worker].observation.leases_of for worker in plan.roster)
        if source == plan.generation and plan.after_step is not None:
            step = plan.after_step
        else:
            step = min(self._seen_step(worker) for worker in plan.roster)
        if self.ledger is None:
            return step
        before = self.ledger.epoch
        if source == plan.generation and plan.ledger is not None:
            self.ledger = Ledger.restore(plan.ledger)
        else:
            self.ledger = self._ledger_of(source, self.ledger)
            self.ledger.enter(plan.roster, step)
            self.ledger.grant(step + self.horizon.lease_steps(self._step_time()))
        self._tell_epochs(tuple(range(before, self.ledger.epoch)))
        self._keep_ledger()
        return step

    def _ledger_of(self, generation: int, present: Ledger) -> Ledger:
        """The ledger by which a generation trained: the present one's, or that of a plan that came to nothing."""
        for plan in self.record.superseded:
            if plan.generation == generation and plan.ledger is not None:
                return Ledger.restore(plan.ledger)
        return present

    def _commit_stable(self) -> None:
        """Only what all living members of the ring have applied moves samples to trained (I5).

        Not worth a write of its own: a new leader learns the step from the workers.
        """
        living = [member.identity.id for member in self._in_ring()]
        plan = self.record.plan
        if self.ledger is None or not living or self.record.superseded or (plan and plan.after_step is not None):
            return  # some may train by the leases of a plan already
        if any(worker not in self.seen for worker in living):
            return
        stable = min(self._seen_step(worker) for worker in living)
        if stable > self.ledger.step:
            ended = self.ledger.commit(min(stable, self.ledger.covered_step))
            if ended:
                self._tell_epochs(ended)
                self._keep_ledger()

    def _plan_if_needed(self, now: float) -> None:
        """One next generation at a time: what comes up while it is pending waits for the one after, merged."""
        plan, broken = self.record.plan, self._broken()
        if plan is not None and not broken and not self._lacks_member(plan.roster):
            return
        roster = self._wanted_roster()
        if plan is None and not broken and roster == self.record.roster:
            return
        if self.record.generation == 0:
            self._plan_first(roster, now)
        elif not any(worker in self.record.roster for worker in roster):
            self._end(JobState.FAILED, f"nobody is left who has the model's state{self._last_loss}")
        elif len(roster) < self.record.limits.minimum:
            self._end(JobState.FAILED, self._too_few(roster))
        elif plan is not None or broken or self._lacks_member(self.record.roster):
            self._plan(roster, None, now)
        elif (step := self._switch_step(now)) is not None:
            self._plan(roster, step, now)

    def _plan_first(self, roster: tuple[str, ...], now: float) -> None:
        """The first generation needs all that were asked for; who is lost before it stands is waited for anew."""
        if len(roster) >= self.record.target:
            self._plan(roster[: self.record.target], 0 if self.record.plan is None else None, now)
        elif self.record.plan is not None:
            self._drop_plan(self.record.plan, roster=())
            self._change(plan=None)

    def _wanted_roster(self) -> tuple[str, ...]:
        """Survivors in their order, then newcomers in order of arrival: ranks move as little as they can."""
        base = self.record.plan.roster if self.record.plan else self.record.roster
        staying = {m.identity.id for m in self._staying() if self._could_enter(m)}
        if not self._broken() and not self._lacks_member(base):
            # Who is done keeps its seat, until the ring must be made anew for those who are not.
            staying |= {m.identity.id for m in self._in_ring() if m.state is WorkerState.DONE}
        if self._staying() and not any(worker in staying for worker in self.record.roster):
            # Nobody who stays has the model: whoever is about to leave hands it on first, and leaves with the next one.
            staying |= {m.identity.id for m in self._in_ring() if m.state is WorkerState.LEAVING}
        kept = tuple(worker for worker in base if worker in staying)
        new = sorted((m for m in self.record.members if m.identity.id in staying - set(base)), key=lambda m: m.number)
        return kept + tuple(m.identity.id for m in new)

    def _could_enter(self, member: Member) -> bool:
        """Nobody waits for a boot (I4); only in the first generation there is nobody who could."""
        booting = member.state in (WorkerState.JOINING, WorkerState.WARMING)
        return not booting or self.record.generation == 0

    def _plan(self, roster: tuple[str, ...], after_step: int | None, now: float) -> None:
        generation = self.record.planned + 1
        if self.record.plan is not None:
            self._drop_plan(self.record.plan, roster)
        for member in self.record.members:
            if member.identity.id in roster and member.state is not WorkerState.LEAVING:
                self._move(member.identity.id, Cause.PLANNED)
        plan = Plan(generation, roster, after_step, self._planned_ledger(roster, after_step), now)
        state = JobState.STARTING if self.record.generation == 0 else JobState.SCALING
        self._change(plan=plan, planned=generation, state=state)
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
        self._commands.append(CloseRing(plan.generation))
        for worker in set(plan.roster) - set(roster):
            if self._state(worker) is WorkerState.SWITCHING:
                self._move(worker, Cause.UNPLANNED)
        if plan.ledger is not None:
            self._change(superseded=(*self.record.superseded, plan))

    def _planned_ledger(self, roster: tuple[str, ...], after_step: int | None) -> Any:
        """The data as it will be after `after_step`, so that nobody asks for it inside the pause."""
        if self.ledger is None or after_step is None:
            return None
        ledger = Ledger.restore(self.ledger.snapshot())
        ledger.enter(roster, after_step)
        ledger.grant(after_step + self.horizon.lease_steps(self._step_time()))
        return ledger.snapshot()

    def _switch_step(self, now: float) -> int | None:
        """None: nothing is left to be trained by another generation."""
        newest, at = self._newest()
        step = self.horizon.switch_step(newest, now - at, self._step_time())
        if self.ledger is None:
            return step
        if step > self.ledger.covered_step and self.ledger.grant(step):
            self._keep_ledger()
        return min(step, self.ledger.covered_step) if self.ledger.covered_step > newest else None

    def _grant(self) -> None:
        ledger, plan = self.ledger, self.record.plan
        if ledger is None or not self.record.roster:
            return
        newest, ahead = self.newest_step, self.horizon.lease_steps(self._step_time())
        until, least = newest + ahead, newest + ahead // 2
        if plan is not None and plan.after_step is not None:
            until = least = plan.after_step  # what comes after was leased with the plan
        # A broken ring's survivors go on being supplied: who waits for samples would never find that it is broken.
        if ledger.covered_step <= least and ledger.grant(until):
            self._keep_ledger()

    def _finish(self) -> None:
        """The job is finished when nobody trains any more, and no data that was asked for is left untrained."""
        if self.record.generation == 0 or any(m.state is not WorkerState.DONE for m in self._in_ring()):
            return
        if self.ledger is not None and not self.ledger.exhausted:
            self._end(JobState.FAILED, f"all scripts ended at step {self.ledger.step}, before their data did")
        else:
            self._end(JobState.FINISHED, "")

    # ---------------------------------------------------------------------------------------------------- endings

    def _end_of(self, member: Member) -> None:
        """A script came to its end: it has left if it was asked to, else it is done."""
        worker = member.identity.id
        leaving = member.state is WorkerState.LEAVING
        if leaving or worker not in self.record.roster:
            self._tell(Kind.WORKER_LEFT, worker=worker, leaving_ms=self._spent(worker, WorkerState.LEAVING))
            self._remove(worker)
        else:
            self._move(worker, Cause.ENDED)

    def _lose(self, worker: str, reason: str) -> None:
        member = self._member(worker)
        if member is None or member.state is WorkerState.DONE or self.record.state in OVER:
            return
        self._remove(worker)
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

    def _too_few(self, roster: tuple[str, ...]) -> str:
        return f"{len(roster)} workers are left and the job needs {self.record.limits.minimum}{self._last_loss}"

    # ------------------------------------------------------------------------------------------------------- views

    def _member(self, worker: str) -> Member | None:
        return next((member for member in self.record.members if member.identity.id == worker), None)

    def _state(self, worker: str) -> WorkerState | None:
        member = self._member(worker)
        return member.state if member else None

    def _staying(self) -> list[Member]:
        return scaling.staying(self.record)

    def _in_ring(self) -> list[Member]:
        return [m for m in self.record.members if m.identity.id in self.record.roster]

    def _broken(self) -> bool:
        """Somebody's ring of the newest generation failed."""
        generation = self.record.plan.generation if self.record.plan else self.record.generation
        return any(
            self.seen[m.identity.id].observation.phase is Phase.BROKEN
            and self.seen[m.identity.id].observation.generation == generation
            for m in self.record.members
            if m.identity.id in self.seen
        )

    def _lacks_member(self, roster: tuple[str, ...]) -> bool:
        """Somebody of `roster` is gone without leave: their ring is broken, or will be, or does not form."""
        return any(self._member(worker) is None for worker in roster)

    def _sits(self, worker: str, generation: int) -> bool:
        sighting = self.seen.get(worker)
        return (
            sighting is not None
            and sighting.observation.generation == generation
            and sighting.observation.phase in SITTING
        )

    def _seen_step(self, worker: str) -> int:
        return self.seen[worker].observation.step

    def _newest(self) -> tuple[int, float]:
        """The newest step that anybody of the ring was seen to have committed, and when."""
        sightings = [self.seen[worker] for worker in self.record.roster if worker in self.seen]
        found = [(sighting.observation.step, sighting.at) for sighting in sightings]
        return max(found, default=(self.ledger.step if self.ledger else 0, 0.0))

    @property
    def newest_step(self) -> int:
        """The newest step that anybody is known to have committed."""
        return max(self._newest()[0], self.ledger.step if self.ledger else 0)

    def _step_time(self) -> float:
        times = [self.seen[w].observation.step_time_s for w in self.record.roster if w in self.seen]
        return min((t for t in times if t > 0), default=0.0)

    # ----------------------------------------------------------------------------------------------------- changes

    def _change(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, version=self.record.version + 1, **changes)

    def _keep_ledger(self) -> None:
        self._change(ledger=self.ledger.snapshot() if self.ledger else None)

    def _update(self, worker: str, **changes: Any) -> None:
        replaced = (
            msgspec.structs.replace(m, **changes) if m.identity.id == worker else m for m in self.record.members
        )
        self._change(members=tuple(replaced))

    def _move(self, worker: str, cause: Cause) -> None:
        member = self._member(worker)
        if member is not None:
            state = moved(member, cause).state
            self._update(worker, state=state)
            self._spans.enter(worker, state, self._now)

    def _remove(self, worker: str) -> None:
        self._change(members=tuple(m for m in self.record.members if m.identity.id != worker))
        self.seen.pop(worker, None)
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
        pauses = [self.seen[w].observation.pause for w in plan.roster if w in old]
        worst = max((p for p in pauses if p is not None), key=lambda p: p.total, default=None)
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
