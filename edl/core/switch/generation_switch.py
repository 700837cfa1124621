"""Lead from one generation to the next: keep the plan, from when it is made until its ring stands or it is dropped.

Owns: that a plan is made, superseded, put off and completed, its number, over how many steps newcomers get the others'
state, and how long the job waits for workers to make one of. Does not own: whether one is needed and who is in it
(`edl.core.switch.next_generation`), after which step, and its data (`edl.core.data.lease_grants`), nor what is of which
portion of the state (`edl.core.worker.model_state`, each framework).

A state that is longer on its way than a step would hold up the update of that step, at all members. So it goes in
portions, one beside each of the first steps, and what has come is kept equal by the updates that all make. Until the
last portion has come, a newcomer counts for nothing: it has no samples, and its weight is zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import UNSET

from edl import facts
from edl.core.data import lease_recut
from edl.core.data.lease_grants import Crossing, LeaseGrants
from edl.core.job.deadlines import END_OF_TIME, Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_state import WorkingState, did_not_end, since_ms
from edl.core.job.member_states import Cause
from edl.core.job.orders import newcomers
from edl.core.resize import host_migration
from edl.core.resize.target_size import TargetSize
from edl.core.switch.faulty_members import FaultyMembers
from edl.core.switch.next_generation import (
    Follow,
    GiveUp,
    Postpone,
    RestartWait,
    Situation,
    TooFew,
    awaits_newcomer,
    decide,
    fails_unexplained,
    missing,
)
from edl.core.switch.ring_forming import RingForming, RollCalling
from edl.core.worker.divergence_finder import up_to
from edl.protocol.record import OVER, JobState, Plan, WorkerState

BYTES_A_SECOND: Final = 5e8  # what one connection has carried on one host beside training (docs/benchmarks.md)
BESIDE_UPDATE: Final = 0.5  # of a step that is not before its update
LEAST_BYTES: Final = 1 << 24  # of a portion: less is through in no time, and each costs its first word


def portion_count(state_bytes: int, step_time_s: float, lead_times: LeadTimes, step_timeout_s: float) -> int:
    """Return the number of steps, at least one.

    While they last no more is leased, and the newcomers have a time-out of their own: so a large state over short steps
    goes in larger portions, which the others wait for.
    """
    if step_time_s <= 0:
        return 1
    portion = max(LEAST_BYTES, BESIDE_UPDATE * step_time_s * BYTES_A_SECOND)
    most = min(lead_times.lease_steps(step_time_s) // 2, int(step_timeout_s / step_time_s))
    return max(1, min(math.ceil(state_bytes / portion), most))


class GenerationSwitch:
    """The leader waits for others, as long as a boot may take, if too few workers are left."""

    def __init__(
        self,
        working: WorkingState,
        sizing: TargetSize,
        leasing: LeaseGrants,
        fitness: FaultyMembers,
        lead_times: LeadTimes,
        deadlines: Deadlines,
    ) -> None:
        self._working = working
        self._sizing = sizing
        self._leasing = leasing
        self._fitness = fitness
        self._lead_times = lead_times
        self._boot_s, self._step_s = deadlines.boot_s, deadlines.step_s
        self._roll_calling = RollCalling(working, lead_times, RingForming(working, fitness, lead_times, deadlines))
        self.shortage = ""  # why the next generation waits for workers to come
        self._short_at = 0.0  # since when
        self.wake_at = END_OF_TIME  # something is to be decided then, though nothing else happens
        self._broken_at: float | None = None  # when the present ring was first seen to have failed
        self._missed_at: float | None = None  # when the first was seen to miss the planned switch

    def is_due(self) -> bool:
        return (
            self._working.now >= self.wake_at
            or self._missed_at is not None
            or bool(self.shortage)
            or self._roll_calling.is_due()
        )

    # --------------------------------------------------------------------------------------------- its ring stands

    def complete(self) -> None:
        """Complete the switch once all members of the planned generation sit in their ring."""
        working, plan = self._working, self._working.record.plan
        if plan is None or not self._stands(plan):
            return
        old, first = working.record.roster, working.record.generation == 0
        step, trials = self._leasing.enter(plan), working.record.trials
        lost = next((gone for gone in map(working.gone, plan.roster) if gone is not None), None)
        unended = working.record.ending.unended if working.ledgers.spent else ""  # nothing left makes up for its end
        ended = working.record.ending.finals
        # As a member of the ring before was lost, the others may make anew a step that one has ended with. If none was,
        # a script has left something out.
        finals = up_to(ended, step) if working.record.ending.unended or self._has_lost_on_the_way() else ended
        alone = [worker for one in ended if one not in finals for worker in one.workers]
        if old and step > working.record.began_step:
            trials = msgspec.structs.replace(trials, proven=old)
        working.change(
            generation=plan.generation,
            began_step=step,
            roster=plan.roster,
            plan=None,
            superseded=(),
            state=JobState.RUNNING,
            unended=unended if lost is None else did_not_end(lost.worker, lost.reason),
            finals=finals,
            alone=(*working.record.ending.alone, *alone),
            begun=True,
            rebatch=None,
            trials=trials,
        )
        working.move_all(self._on_their_way(plan.roster), Cause.ENTERED)
        if first:
            self._sizing.settle()
        else:
            self._tell_scaled(plan, old, forced=plan.after_step is None or step < plan.after_step)

    def _has_lost_on_the_way(self) -> bool:
        """Tell whether a member of a ring that was given up was lost: it may have trained there without a word."""
        superseded = self._working.record.superseded
        gone = (self._working.gone(worker) for plan in superseded for worker in plan.roster)
        return any(one is not None and one.reason for one in gone)

    def _stands(self, plan: Plan) -> bool:
        """Tell whether all members were seen in the planned ring.

        The first ring stands, too, once a script that trained there has ended: the others have trained with it, though
        they report later or were lost, and a worker lost from now on is lost from that ring. Else the job would begin
        anew beside an ended script.
        """
        working, seen = self._working, self._working.seen
        if all(seen.sits(worker, plan.generation) for worker in plan.roster):
            return True
        if working.record.generation:
            return False
        ended = (worker for worker in plan.roster if working.state(worker) is WorkerState.DONE)
        return any(seen.sits(worker, plan.generation) and seen.step(worker) > 0 for worker in ended)

    def _tell_scaled(self, plan: Plan, old: tuple[str, ...], *, forced: bool) -> None:
        """`forced`: the ring before was broken, as its members did not come to the step that was planned."""
        working, durations = self._working, self._working.durations
        sighted = [working.seen.observation(worker) for worker in plan.roster if worker in old]
        pauses = [observation.pause for observation in sighted if observation and observation.pause]
        worst = max(pauses, key=lambda pause: pause.total, default=None)
        scaled = facts.Scaled(
            before=len(old),
            after=len(plan.roster),
            pause_ms=None if worst is None else round(worst.total, 1),
            forced=forced,
            leave_ms=UNSET if worst is None else round(worst.leave, 1),
            enter_ms=UNSET if worst is None else round(worst.enter, 1),
            state_ms=UNSET if worst is None else round(worst.state, 1),
            switching_ms=since_ms(durations.planned_at, working.now),
            asked_ms=since_ms(durations.asked_at, working.now),
        )
        working.tell(scaled)
        if len(plan.roster) == working.record.target:
            durations.asked_at = None

    # ------------------------------------------------------------------------------------------ the next is needed

    def follow(self) -> None:
        working, torn, unmet = self._working, self._is_torn(), self._roll_calling.left_out
        situation = Situation(
            working.record, working.members, working.seen, torn, working.ledgers.spent, unmet, working.leaves_as
        )
        if self._may_hear_why(situation):
            return
        self._fitness.look(situation)
        if working.record.state in OVER or self._is_too_early():
            return
        decision = decide(replace(situation, record=working.record, members=working.members))
        if not isinstance(decision, TooFew):
            self.shortage = ""
        if not isinstance(decision, Follow):
            self._roll_calling.drop()
        match decision:
            case Follow():
                self._follow(decision)
            case RestartWait():
                self._wait_anew()
            case Postpone(reason):
                self._put_off(reason)
            case TooFew(reason):
                self._wait_for_more(reason)
            case GiveUp(reason):
                working.end(JobState.FAILED, f"{reason}{working.last_loss}")
            case None:
                pass

    def _follow(self, wanted: Follow) -> None:
        """Plan the wanted ring: at once if forced, after a step that was announced already, or as soon as the present
        ring can be left.

        It is not known beforehand what a planned ring has read, nor whether it stood: so no data is planned then.
        """
        if wanted.forced:
            self._plan(wanted, self._leasing.in_place_of_broken(wanted.roster))
        elif wanted.after_step is not None:
            self._plan(wanted, Crossing(wanted.after_step, None, lease_recut.lifted(self._working.record)))
        elif not self._working.record.generation:
            self._plan(wanted, self._leasing.beginning(wanted.roster))
        elif not self._roll_calling.stands(wanted.roster):
            self._leasing.keep_mark()
            if self._working.record.roll_call is None:  # it came to nothing, and others are to be called
                self.wake_at = self._working.now
        else:
            self._leasing.word_took_s = self._roll_calling.took_s
            self._cross(wanted, self._roll_calling.prepared(wanted.roster))

    def _cross(self, wanted: Follow, prepared: int) -> None:
        """`prepared`: the number of their ring, which stands beside the one that trains; 0: it is formed in line."""
        offer = self._offer(wanted.roster, prepared)
        spare = self._sending_steps(wanted.roster) if offer else 0
        as_planned = prepared > 0 and (spare > 0 or not newcomers(self._working.record, wanted.roster))
        crossing = self._leasing.crossing(wanted.roster, spare=spare, as_planned=as_planned)
        if crossing is not None:
            self._plan(wanted, crossing, prepared, offer)

    def _sending_steps(self, roster: tuple[str, ...]) -> int:
        size = max(map(self._working.seen.state_bytes, roster))
        return portion_count(size, self._leasing.step_time_s(), self._lead_times, self._step_s)

    def _offer(self, roster: tuple[str, ...], prepared: int) -> int:
        """Return where newcomers get the state of the first of `roster`, a survivor, beside steps; 0: nowhere."""
        working = self._working
        if not prepared or not newcomers(working.record, roster):
            return 0
        can = working.ledgers.can_spare() and all(map(working.seen.sends_state, roster))
        return working.seen.offer(roster[0], prepared) if can else 0

    def _may_hear_why(self, situation: Situation) -> bool:
        """A member that is gone from the ring, or says why it failed, will be known in a moment: a plan with that
        member would fail, too. So will be where a newcomer is that may have the only newest state.
        """
        now = self._working.now
        if due := self._fitness.hears_more(situation):
            self.wake_at = due
            return True
        if not fails_unexplained(situation) and not awaits_newcomer(situation):
            self._broken_at, self.wake_at = None, END_OF_TIME
            return False
        self._broken_at = now if self._broken_at is None else self._broken_at
        due = self._broken_at + self._lead_times.loss_s
        self.wake_at = due if now < due else END_OF_TIME
        return now < due

    def _is_too_early(self) -> bool:
        """Tell whether to wait for moments before planning the same ring again: its failure may pass."""
        early = self._working.now < self._fitness.again_at
        self.wake_at = self._fitness.again_at if early else self.wake_at
        return early

    def _is_torn(self) -> bool:
        working = self._working
        if not missing(Situation(working.record, working.members, working.seen)):
            self._missed_at = None
            return False
        self._missed_at = working.now if self._missed_at is None else self._missed_at
        return working.now - self._missed_at >= self._lead_times.torn_s

    def _wait_for_more(self, reason: str) -> None:
        """Wait for more workers as long as a boot may take. A new leader begins to wait anew."""
        working = self._working
        if working.record.plan is not None:
            self._wait_anew()
        if not self.shortage:
            self._short_at = working.now
            working.tell(facts.TooFewWorkers(reason=reason))
        self.shortage = f"{reason}{working.last_loss}"
        if working.now - self._short_at >= self._boot_s:
            working.end(JobState.FAILED, f"{reason}; no others came within {self._boot_s:g} s{working.last_loss}")

    def _plan(self, wanted: Follow, crossing: Crossing, prepared: int = 0, offer: int = 0) -> None:
        """`prepared`: the number of its ring, which stands; what was prepared else is let go of. `offer`: where its
        newcomers get their state, if they have no samples in its first steps.
        """
        working, roster = self._working, wanted.roster
        generation = prepared or working.record.planned + 1
        if working.record.plan is not None:
            self._drop(working.record.plan, roster)
        self._sizing.dismiss(wanted.leavers, host_migration.reason(working.record))
        staying = [worker for worker in roster if working.state(worker) is not WorkerState.LEAVING]
        working.move_all(staying, Cause.PLANNED)
        offer = offer if crossing.spares else 0
        plan = Plan(generation, roster, crossing.after_step, crossing.ledger, prepared > 0, crossing.spares, offer)
        state = JobState.STARTING if working.record.generation == 0 else JobState.SCALING
        working.change(plan=plan, planned=generation, state=state, roll_call=None)
        self._leasing.mark_for(crossing)
        working.durations.planned_at = working.now
        working.tell(
            facts.SwitchScheduled(
                next_generation=generation,
                after_step=crossing.after_step,
                size=len(roster),
                newcomers=newcomers(working.record, roster),
                why=wanted.why,
                portions=crossing.spares if crossing.spares > 1 else UNSET,
            )
        )

    # ----------------------------------------------------------------------------------------- it comes to nothing

    def _put_off(self, reason: str) -> None:
        """Put the switch off: the old ring goes on, supplied again, as no worker can have trained by the plan."""
        working, plan = self._working, self._working.record.plan
        assert plan is not None
        working.tell(facts.SwitchPutOff(next_generation=plan.generation, after_step=plan.after_step, reason=reason))
        self._close(plan, working.record.roster)
        working.move_all(self._on_their_way(working.record.roster), Cause.PUT_OFF)
        working.change(plan=None, state=JobState.RUNNING, rebatch=None)
        self._leasing.put_off()

    def _wait_anew(self) -> None:
        plan = self._working.record.plan
        assert plan is not None
        self._drop(plan, roster=())
        self._working.change(plan=None)

    def _drop(self, plan: Plan, roster: tuple[str, ...]) -> None:
        """Drop `plan`, though some may have trained by its leases already. `roster` follows it."""
        self._close(plan, roster)
        if plan.ledger is not None:
            self._working.change(superseded=(*self._working.record.superseded, plan))

    def _close(self, plan: Plan, roster: tuple[str, ...]) -> None:
        working, following = self._working, set(roster)
        dropped = [worker for worker in self._on_their_way(plan.roster) if worker not in following]
        ready = {worker for worker in dropped if working.record.generation or working.seen.has_booted(worker)}
        working.move_all(ready, Cause.UNPLANNED)
        working.move_all((worker for worker in dropped if worker not in ready), Cause.UNPLANNED_FIRST)

    def _on_their_way(self, roster: tuple[str, ...]) -> list[str]:
        return [worker for worker in roster if self._working.state(worker) is WorkerState.SWITCHING]
