"""Part with members and remember hosts after rings that failed.

Owns: when a ring counts as failed, what is on record of that, and whether newcomers from a host are let in. Does not
own: whose fault a failure was (`edl.core.switch.ring_blame`), nor the next roster (`edl.core.switch.next_generation`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import msgspec

from edl import facts
from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_state import WorkingState, did_not_end
from edl.core.job.local_ranks import host_of
from edl.core.resize.scale_requests import staying
from edl.core.switch import ring_blame
from edl.core.switch.next_generation import Situation, is_ahead, is_broken, lacks_member, left_behind
from edl.protocol.record import OVER, Identity, JobState, Unfit
from edl.protocol.tally import LossCause

LEFT_BEHIND: Final = (
    "it sat in a ring that came to nothing, and the others were given the samples that its pipeline has read there: "
    "start another worker in its place"
)


class FaultyMembers:
    """Newcomers from a host with unfit members are refused for as long as a boot may take."""

    def __init__(self, working: WorkingState, lead_times: LeadTimes, deadlines: Deadlines) -> None:
        self._working = working
        self._lead_times = lead_times
        self._deadlines = deadlines
        self.again_at = 0.0  # before that, a ring that failed for no known reason is not tried again
        self._excused = 0  # no worker is to blame for rings up to this generation
        self._failed_first: frozenset[str] = frozenset()  # members of a first ring that came to nothing
        self._failed_at: float | None = None  # when the newest ring was first seen to have come to nothing
        self._last_unfit_at = 0.0  # not kept: a new leader counts from its beginning

    def take_over(self) -> None:
        """Excuse the members: another leader planned the newest ring, and may have told only some of them."""
        self._last_unfit_at = self._working.now
        self.excuse()

    def excuse(self) -> None:
        """Excuse the newest ring: if it fails, that may be for something that none of its members has to do with."""
        self._excused = self._working.record.planned

    def hears_more(self, now: Situation) -> float:
        """Return until when other members' reports of a failed ring are awaited; else 0.0."""
        if not self._has_failed(now):
            self._failed_at = None
            return 0.0
        evidence = self._evidence(now)
        self._failed_at = self._working.now if self._failed_at is None else self._failed_at
        if len(evidence.said) == len(evidence.roster) or ring_blame.accused(evidence, now.record.trials.proven):
            return 0.0
        # A newcomer that is well may have made the step that has failed the others, and a ring without it would make it
        # again.
        tell = self._lead_times.loss_s if evidence.said.keys() >= set(evidence.newcomers) else self._deadlines.finding_s
        due = self._failed_at + tell
        return due if self._working.now < due else 0.0

    def look(self, now: Situation) -> None:
        """Judge each ring once: whether it failed and by whose fault, or has made a step."""
        record, trials = now.record, now.record.trials
        roster = record.plan.roster if record.plan else record.roster
        tried = (*self._failed_first, *trials.tried)  # without the latter rings were tried, and came to nothing, too
        if lacks_member(now, roster) or not all(map(now.members.__contains__, tried)):
            self.again_at, self._failed_first = 0.0, frozenset()
            self._follow(ring_blame.RingBlame(ring_blame.not_proven(trials)))  # a member is gone, which may explain it
        elif self._has_failed(now):
            self._failed_at = None
            self._failed_first = frozenset() if record.generation else frozenset(roster)
            self._follow(ring_blame.judge(trials, self._evidence(now)))
            undecided = self._working.record.trials.failed > max(trials.failed, 1)
            self.again_at = self._working.now + self._deadlines.moments_s if undecided else 0.0
        elif record.plan is None and record.generation > trials.judged and self._is_news(now):
            self._follow(ring_blame.stood(trials, record.roster))
        # Also one that was left out: its pipeline has read samples that others have now, so it goes, without blame.
        for worker in left_behind(dataclasses.replace(now, record=self._working.record)):
            self._part_with(worker)

    def hear_of(self, unprepared: ring_blame.Evidence, doubted: Sequence[str]) -> None:
        """A ring did not come to stand beside the one that trains; newcomers that are `doubted` may be why not.

        Nothing is held against them if a daemon or the leader died meanwhile: that may be why.
        """
        if unprepared.generation > self._excused:
            self._follow(ring_blame.judge_unprepared(self._working.record.trials, unprepared, doubted))

    def count_parting(self) -> None:
        trials = self._working.record.trials
        self._working.change(trials=msgspec.structs.replace(trials, parted=trials.parted + 1))

    def refusal(self, identity: Identity) -> str:
        """Say why a newcomer is not let in: newcomers before it differed from the others, as it would with the same
        script, or two workers of its host were unfit, and the job's newest unfit one is less than a boot ago. Empty: it
        is let in.
        """
        record = self._working.record
        if record.trials.parted >= ring_blame.ENOUGH:
            times, of = record.trials.parted, record.ending.differed
            return f"{times} times newcomers of this job came to differ from the others, so no more are let in: {of}"
        here = [one for one in record.trials.unfit if (one.host, one.address) == host_of(identity)]
        left_s = self._last_unfit_at + self._deadlines.boot_s - self._working.now
        if len(here) < ring_blame.ENOUGH or left_s <= 0:
            return ""
        return (
            f"{len(here)} workers of host {identity.host} could not be part of a ring, the last one for this: "
            f"{here[-1].reason}; for {left_s:.0f} s more no other one of it is let in: mend it, or start elsewhere"
        )

    # ---------------------------------------------------------------------------------------------------- evidence

    def _has_failed(self, now: Situation) -> bool:
        """Tell whether the newest ring has failed without a step, no member is gone, and that was not judged yet."""
        record = now.record
        newest = record.plan.generation if record.plan else record.generation
        roster = record.plan.roster if record.plan else record.roster
        if not newest or newest <= max(record.trials.judged, self._excused) or not is_broken(now):
            return False
        if lacks_member(now, roster) or (record.plan is None and self._has_stepped(now)):
            return False
        words = (now.seen.observation(worker) for worker in roster if now.seen.breaks(worker, newest))
        return not any(word and ring_blame.is_no_workers_own(word.reason) for word in words)

    def _is_news(self, now: Situation) -> bool:
        """Tell whether the present ring makes steps, and its members, or one left out of it, were in doubt."""
        trials, roster = now.record.trials, now.record.roster
        doubted = trials.left_out or trials.failed or any(strike.worker in roster for strike in trials.strikes)
        return bool(doubted or ring_blame.condemned(trials)) and self._has_stepped(now)

    def _has_stepped(self, now: Situation) -> bool:
        return bool(now.record.roster) and now.seen.newest_step(now.record.roster)[0] > now.record.began_step

    def _evidence(self, now: Situation) -> ring_blame.Evidence:
        record, seen = now.record, now.seen
        newest = record.plan.generation if record.plan else record.generation
        roster = record.plan.roster if record.plan else record.roster
        broken = ((worker, seen.observation(worker)) for worker in roster if seen.breaks(worker, newest))
        return ring_blame.Evidence(
            generation=newest,
            roster=roster,
            base=tuple(worker for worker in record.roster if worker in now.members),
            said={worker: (word.reason.splitlines() or [""])[0] for worker, word in broken if word},
            came=frozenset(worker for worker in roster if seen.generation(worker) >= newest),
            addresses={worker: now.members[worker].identity.address for worker in roster},
            minimum=record.limits.minimum,
            ahead=frozenset(worker for worker in roster if is_ahead(now, worker)),
        )

    # ------------------------------------------------------------------------------------------------ what follows

    def _follow(self, judgement: ring_blame.RingBlame) -> None:
        working = self._working
        if judgement.trials != working.record.trials:
            working.change(trials=judgement.trials, pressing=False)
        for worker, reason in judgement.unfit.items():
            self._dismiss(worker, reason)
        if judgement.hopeless:
            working.end(JobState.FAILED, judgement.hopeless)
        elif judgement.unfit and not working.record.generation and len(staying(working.record)) < working.record.target:
            working.end(JobState.FAILED, f"the first ring does not form{working.last_loss}")

    def _part_with(self, worker: str) -> None:
        """Remove a member without fault of its own: another one in its place may be in the next ring."""
        working, was = self._working, self._working.state(worker)
        if was is not None and working.record.state not in OVER:
            working.remove(worker, LEFT_BEHIND)
            working.last_loss = f"; the last one lost was {worker}: {LEFT_BEHIND}"
            cause = LossCause.LEFT_BEHIND.value
            working.tell(facts.WorkerLost(worker=worker, was=was.value, reason=LEFT_BEHIND, cause=cause))

    def _dismiss(self, worker: str, reason: str) -> None:
        working, member = self._working, self._working.members.get(worker)
        if member is None:
            return
        host, address = host_of(member.identity)
        said = f"it cannot be part of a ring: {reason}"
        if not working.record.ending.unended and worker in working.record.roster:
            working.change(unended=did_not_end(worker, said))
        working.remove(worker, said)
        trials = working.record.trials
        known = (*trials.unfit, Unfit(worker, host, address, reason))[-ring_blame.REMEMBERED :]
        working.change(trials=msgspec.structs.replace(trials, unfit=known))
        working.last_loss = f"; worker {worker} of host {host} cannot be part of a ring: {reason}"
        working.tell(facts.WorkerUnfit(worker=worker, host=host, reason=reason))
        self._last_unfit_at = working.now
