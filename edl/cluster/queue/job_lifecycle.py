"""The life of a job, from its placement to the last of its processes, and how its end is judged.

Owns: the transitions of a job that has devices, and its budget of tries. Does not own: which devices (`seating`),
causes, and what follows from them (`retries`).
"""

from __future__ import annotations

import math

import msgspec

from edl.cluster.queue.end_causes import (
    KEPT,
    STOPPED,
    TOLD_BY_LEADERS,
    Denial,
    Domain,
    EndCause,
    FailureKept,
    RetryRules,
    classify,
    denied,
    first,
)
from edl.cluster.queue.queue_entries import (
    ACTIVE,
    BOOTING,
    TRAINING,
    JobEntry,
    JobPhase,
    PhaseChange,
    WorkerEntry,
    WorkerExit,
    WorkerSeen,
    WorkerWish,
)
from edl.cluster.queue.queue_state import QueueState, SeenJob, wasted
from edl.cluster.queue.scheduler_inputs import BeginLife, JobLook, JobLooked, LifeReady, LifeRefused, LookOnce, SendAway
from edl.protocol.checkpoint_record import PREEMPTED_CODE

JOINED = frozenset({"running", "scaling", "preempting"})  # states of a job whose workers train
MOST_EXITS = 32
KEEP_STEP_S = 5.0


def ready(state: QueueState, word: LifeReady, now: float) -> None:
    job = state.jobs.get(word.job)
    if job is None or job.life != word.life or job.ready or job.phase not in ACTIVE:
        return
    came_on = max(0, job.step - word.step)
    if came_on and job.sent_away == job.life - 1:  # the job was not saved in time: it is given twice as long
        job = msgspec.structs.replace(job, save_s=min(2 * state.save_s(job), state.rules.longest_save_s))
    job = wasted(job, came_on, state.seen_of(job).step_s) if came_on else job
    state.put(
        job,
        now,
        ready=True,
        saved_life=word.saved_life,
        resume_from=word.path,
        base=word.step,
        step=word.step,
        started_with=len(job.staying),
    )


def refused(state: QueueState, word: LifeRefused, now: float) -> None:
    job = state.jobs.get(word.job)
    if job is None or job.life != word.life or job.ready or job.phase not in ACTIVE:
        return
    cause = EndCause("checkpoint", Domain.DATA, word.again, "its next life cannot begin", word.reason)
    if word.again:
        cause = msgspec.structs.replace(cause, domain=Domain.INFRASTRUCTURE)
    _failed(state, state.put(job, now, workers=()), cause, now)  # no agent has received its workers


def looked(state: QueueState, word: JobLooked, now: float) -> None:
    job = state.jobs.get(word.job)
    if job is None or job.life != word.life or job.over or job.waits:
        return
    seen = state.seen_of(job)
    seen.look, seen.final = word.look, seen.final or word.final
    seen.step_s = word.look.step_s or seen.step_s
    seen.left = seen.left if word.look.left is None else word.look.left
    seen.save_s = word.look.save_s or seen.save_s
    _count_boot(seen, job, now)
    if word.look.over and seen.over_since is None:
        seen.over_since = now
    step = job.base + word.look.step
    if step > job.step:
        job = _came_on(state, job, step, now)
    if job.phase in BOOTING and word.look.state in JOINED and word.look.size:
        _trains(state, job, now)


def _count_boot(seen: SeenJob, job: JobEntry, now: float) -> None:
    """Note how long the newest worker took to train, once all that are to stay train."""
    newest = max(job.staying, key=lambda worker: worker.number, default=None)
    if newest is not None and newest.number > seen.booted and seen.look.size >= len(job.staying):
        seen.booted, seen.boot_s = newest.number, max(0.0, now - newest.began)


def _came_on(state: QueueState, job: JobEntry, step: int, now: float) -> JobEntry:
    # The step is made durable when the retry budget depends on it, and every few seconds: not at each look.
    rules = state.rules.retries
    last = job.strikes[-1] if job.strikes else None
    if last is not None and job.tries_left < rules.tries and step >= last.step + rules.progress:
        return state.put(job, now, step=step, tries_left=rules.tries)
    if now - job.since >= KEEP_STEP_S:
        return state.put(job, now, step=step)
    state.jobs[job.name] = job = msgspec.structs.replace(job, step=step)
    return job


def _trains(state: QueueState, job: JobEntry, now: float) -> None:
    said = f"it goes on from step {job.base}" if job.base else f"it trains with {len(job.staying)} workers"
    state.turn(job, PhaseChange.TRAINS, now, said, began=now if job.began is None else job.began)


def worker_seen(state: QueueState, job: JobEntry, worker: WorkerEntry, seen: WorkerSeen, now: float) -> None:
    """Remove a worker that is gone; its device is free."""
    rest = tuple(one for one in job.workers if one.id != worker.id)
    assert seen.evidence is not None
    cause = classify(seen.evidence) if worker.wish is WorkerWish.RUN else None
    state.news = True
    if job.over:
        state.put(job, now, workers=rest)
        return
    exits = job.exits
    if worker.wish is WorkerWish.RUN and not seen.evidence.told:
        exits = (*exits, WorkerExit(worker.id, worker.number, seen.at or now, cause, seen.evidence.code))[-MOST_EXITS:]
    job = state.put(job, now, workers=rest, exits=exits)
    state.seen_of(job).gone.add(worker.id)
    words = f"{worker.id} on {worker.node}" + ("" if cause is None else f": {cause.words} {cause.root}")
    state.tell(now, "worker_gone", job.name, words, cause="" if cause is None else cause.code)
    job = state.jobs[job.name]
    if cause is not None and cause.domain is Domain.INFRASTRUCTURE and not cause.follows:
        seen_so = seen.evidence.unserved or seen.evidence.code is None
        _blame(state, worker.node, "" if seen_so else job.asked.user, now)
    if cause is not None and rest and job.phase in ACTIVE:
        _crashed(state, job, cause, worker.number, now)


def _blame(state: QueueState, name: str, user: str, now: float) -> None:
    """Leave a node out for a while if workers fail on it one after the other."""
    # Failures that the output of one user's jobs reports shut the node to that user alone: as long as no other has a
    # job.
    node, rules = state.nodes.get(name), state.rules
    if node is None:
        return
    node.failures = [one for one in node.failures if now - one[0] < rules.sick_s] + [(now, user)]
    users = {user for _, user in node.failures}
    by = user if users == {user} else ""
    others = any(one.takes(now) for key, one in state.nodes.items() if key != name)
    if len(node.failures) >= rules.sick_failures and others and not state.concerns_others(by):
        node.left_out_until, node.left_out_for, node.failures = now + rules.sick_s, by, []
        words = f"{name} has failed {rules.sick_failures} workers: none is started there for {rules.sick_s:g} s"
        state.tell(now, "node_left_out", "", words, node=name, until=node.left_out_until, user=by)


def let_in(state: QueueState, now: float) -> None:
    """Let nodes take workers again that only one user's jobs speak against, once another user has a job."""
    for name, node in state.nodes.items():
        if node.left_out_until > now and state.concerns_others(node.left_out_for):
            node.left_out_until, state.news = now, True
            words = f"{name} takes workers again: only jobs of {node.left_out_for} have failed there"
            state.tell(now, "node_let_in", "", words, node=name)


def _crashed(state: QueueState, job: JobEntry, cause: EndCause, number: int, now: float) -> None:
    """Judge a worker's crash while other workers of the job live."""
    # The others go on, and a new worker replaces the crashed one while there are tries left.
    if cause.follows:
        return
    trained = state.seen_of(job).look.size > 0
    judged = judge(job, cause, number, now, state.rules.retries)
    job = state.put(judged.job, now)
    if judged.again or (trained and len(job.staying) >= job.asked.min_np):
        return
    give_up(state, job, judged.words, now)


def give_up(state: QueueState, job: JobEntry, words: str, now: float) -> None:
    state.wish(state.turn(job, PhaseChange.GIVEN_UP, now, words), WorkerWish.DIE, now)


def cancel(state: QueueState, job: JobEntry, now: float, words: str = "it was cancelled") -> None:
    if not job.over:
        state.wish(state.turn(job, PhaseChange.CANCELLED, now, words), WorkerWish.LEAVE, now)


def send_away(state: QueueState, job: JobEntry, reason: str, now: float) -> None:
    """Preempt a job: it is saved first, if it trains; if it does not train yet, nothing is lost."""
    trains = job.phase in TRAINING
    job = state.put(job, now, save_s=state.save_s(job), sent_away=job.life)
    job = state.turn(job, PhaseChange.SENT_AWAY, now, reason, preemptions=job.preemptions + 1)
    state.desired.pop(job.name, None)
    if not job.ready:
        job = state.put(job, now, workers=())  # no agent has received its workers
    elif not trains:
        state.wish(job, WorkerWish.DIE, now)


def look_after(state: QueueState, job: JobEntry, now: float) -> None:
    """Do what is due of a job that holds devices, or did a moment ago."""
    _hurry(state, job, now)
    job = state.jobs[job.name]
    if job.over or job.waits:
        return
    if not job.workers:
        _ended(state, job, now)
    elif not job.ready:
        state.ask(job, "begin", BeginLife(job.name, job.life))
    elif job.phase is JobPhase.PREEMPTING:
        state.ask(job, "away", SendAway(job.name, job.saved_life, state.save_s(job), job.reason))
    elif job.phase in TRAINING:
        _settle(state, job, now)


def _hurry(state: QueueState, job: JobEntry, now: float) -> None:
    """Kill workers that were told to leave and have not left in time (I12)."""
    rules = state.rules
    patience = rules.cancel_s if job.over else rules.leave_s
    late = {
        worker.id
        for worker in job.workers
        if worker.wish is WorkerWish.LEAVE and now - state.seen_since(worker.since) >= patience
    }
    if job.phase is JobPhase.PREEMPTING:
        asked = now - state.seen_since(job.since_phase) >= state.save_s(job) + rules.save_slack_s
        late |= {worker.id for worker in job.workers if asked and worker.wish is not WorkerWish.DIE}
    if late:
        job = state.wish(job, WorkerWish.DIE, now, frozenset(late))
    if (until := state.ends_until(job)) is not None and now >= until:
        state.wish(job, WorkerWish.LEAVE, now)


def _settle(state: QueueState, job: JobEntry, now: float) -> None:
    look = state.seen_of(job).look
    if state.is_ending(job):
        return
    going = any(worker.wish is not WorkerWish.RUN for worker in job.workers)
    if job.phase is JobPhase.RUNNING and (going or (look.size and look.size != len(job.staying))):
        state.turn(job, PhaseChange.CHANGES, now, f"from {look.size} to {len(job.staying)} workers")
    elif job.phase is JobPhase.SCALING and not going and look.size == len(job.staying):
        state.turn(job, PhaseChange.SETTLED, now, f"{look.size} workers")


def _ended(state: QueueState, job: JobEntry, now: float) -> None:
    """Judge the end of a life whose last worker is gone, once the last status of its leaders was read."""
    seen = state.seen_of(job)
    if not job.ready:
        if job.phase is JobPhase.PREEMPTING:
            state.turn(job, PhaseChange.SAVED, now, "it had not begun to train")
        return
    if not seen.final:
        state.ask(job, "look", LookOnce(job.name, job.life))
        return
    look = seen.look
    ended_well = bool(job.exits) and all(one.code == 0 and one.cause is None for one in job.exits)
    saved = look.state == "preempted" or any(one.code == PREEMPTED_CODE for one in job.exits)
    if look.state == "finished" or (ended_well and not saved and look.state != "failed"):
        state.turn(job, PhaseChange.ENDED, now)
    elif saved or job.phase is JobPhase.PREEMPTING:
        state.turn(job, PhaseChange.SAVED, now, look.reason or "it was ended before it could be saved")
    else:
        _failed(state, job, _cause_of(job, look), now)


def _cause_of(job: JobEntry, look: JobLook) -> EndCause:
    """Return the cause of a job's failure: the first worker that failed; else the reason that its leader gives."""
    told = TOLD_BY_LEADERS.get(look.failed_by)
    if told is not None:
        return msgspec.structs.replace(told, root=look.reason)
    found = first(one.cause for one in job.exits if one.cause is not None)
    if found is not None:
        return found
    words = look.reason or "all its workers are gone"
    return EndCause("peer", Domain.INFRASTRUCTURE, retry=True, words=words)


def _failed(state: QueueState, job: JobEntry, cause: EndCause, now: float) -> None:
    if cause.code == STOPPED.code:
        state.turn(job, PhaseChange.CANCELLED, now, cause.words)
        return
    number = next((one.number for one in job.exits if one.cause == cause), job.made + 1)
    judged = judge(job, cause, number, now, state.rules.retries)
    job = state.put(judged.job, now)
    state.turn(job, PhaseChange.AGAIN if judged.again else PhaseChange.GIVEN_UP, now, judged.words)


class JobVerdict(msgspec.Struct, frozen=True):
    again: bool
    words: str
    job: JobEntry  # the entry with the strike added


def judge(job: JobEntry, cause: EndCause, number: int, now: float, rules: RetryRules) -> JobVerdict:
    """Judge a failure at the job's newest step; `number` is that of the worker."""
    step, last = job.step, job.strikes[-1] if job.strikes else None
    said = f"{cause.words}: {cause.root}" if cause.root else cause.words
    if last is not None and (last.life, last.step) == (job.life, step) and number <= last.made:
        words = f"tries left: {job.tries_left}" if cause.retry else Denial.HOPELESS.value
        return JobVerdict(again=cause.retry, words=f"{said}; {words}", job=job)
    failure = FailureKept(cause.code, cause.root, step, now, job.life, job.made)
    since = tuple(one for one in job.strikes if one.step + rules.progress > step)
    left = (rules.spare if cause.domain is Domain.INFRASTRUCTURE else rules.tries) - len(since) - 1
    verdicts = {
        None: f"tries left: {left}",
        Denial.HOPELESS: Denial.HOPELESS.value,
        Denial.REPEATED: f"for the same cause at step {step} again",
        Denial.SPENT: f"{len(since) + 1} failures without progress",
    }
    denial = denied(cause, failure, since, left)
    rest = min(rules.longest_rest_s, rules.rest_s * math.exp2(min(len(since), 16)))
    struck = msgspec.structs.replace(
        job, cause=cause, strikes=(*since, failure)[-KEPT:], tries_left=max(0, left), rests_until=now + rest
    )
    return JobVerdict(again=denial is None, words=f"{said}; {verdicts[denial]}", job=struck)
