"""Check a leader's writing: it tells only of durable decisions (I9), and writes each event once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edl.core.job.commit import WritingState
from edl.core.job.job_report import shown_state, stable_of, status_of
from edl.core.job.leader_inputs import Command, Tell
from edl.core.job.orders import OrderBook
from edl.protocol.record import OVER

if TYPE_CHECKING:
    from tests.model.model_leader import LeaderInJob
    from tests.model.simulation import SimJob


class WritingChecks:
    def __init__(self, job: SimJob) -> None:
        self._job = job
        self._due: dict[int, dict[int, Tell]] = {}  # by term: events that the machine wants to be written down
        self._written: dict[int, Tell] = {}  # all there are; by identity, as two may be alike

    def handled(self, term: int, follows: Iterable[Command]) -> None:
        self._due.setdefault(term, {}).update({id(one): one for one in follows if isinstance(one, Tell)})

    def count(self, kind: str) -> int:
        return sum(tell.fact.kind == kind for tell in self._written.values())

    def written(self, told: Iterable[Tell]) -> None:
        for tell in told:
            if id(tell) in self._written:
                self._job.checks.violated("events", f"{tell.fact.kind} was written twice")
            self._written[id(tell)] = tell

    def published(self, leader: LeaderInJob, book: OrderBook) -> None:
        """Check the record that all callers hear of from now on."""
        if book.record is not leader.machine.record:
            now = leader.machine.record.version
            self._job.checks.violated("I9", f"version {book.record.version} is published, and {now} was decided")
        if book.record.state in OVER and self._job.node.has_secret:
            self._job.checks.violated("secret", "the job's end is told, and its secret still lies in the coordinator")
        self._is_durable(leader)

    def answered(self, leader: LeaderInJob) -> None:
        """The caller hears that it was taken, or why it was not."""
        self._is_durable(leader)

    def asked_for_status(self, leader: LeaderInJob) -> None:
        """Check the status that a caller gets while a write is under way."""
        durable = leader.writing.record
        shown = status_of(leader.machine, leader.term, "", {}, durable=durable)
        told = (shown.generation, shown.target, shown.state, [worker.id for worker in shown.workers])
        if told != (
            durable.generation,
            durable.target,
            shown_state(durable),
            [one.identity.id for one in durable.members],
        ):
            self._job.checks.violated("I9", f"{told} is shown, and version {durable.version} is durable")

    def registered(self, worker: str) -> None:
        """Check that a worker told of its registration is on record."""
        record = self._job.durable
        here = {member.identity.id for member in record.members} | {gone.worker for gone in record.gone}
        if worker not in here | set(record.past):
            self._job.checks.violated("I9", f"{worker} is told that it is a member, and is not on record")

    def done(self, leader: LeaderInJob) -> None:
        """A leader has done what its machine said."""
        if leader.unanswered and leader.writing.state is WritingState.IDLE:
            self._job.checks.violated("I12", f"{len(leader.unanswered)} have asked, and wait for an answer for ever")
        if leader.alive and leader.term == self._job.term:
            record = leader.writing.record
            # Where all members are gone with a leader, the next one may never hear of their last steps.
            lives = not record.roster or any(self._job.workers[one].alive for one in record.roster)
            stable = stable_of(leader.machine, record) if lives else None
            self._job.checks.tallies.served(record.tally, leader.machine.record.tally, stable, self._job.now)
        if leader.at_rest and (leader.writing.state is not WritingState.IDLE or not leader.machine.at_rest):
            self._job.checks.violated("rest", "a leader has decided something, and says that no caller waits for it")

    def _is_durable(self, leader: LeaderInJob) -> None:
        if leader.term != self._job.term:  # what it had decided may be overwritten by now
            return
        decided, durable = leader.machine.record, self._job.durable
        if decided is not durable:
            self._job.checks.violated("I9", f"version {decided.version} is told, and {durable.version} is durable")
        due = self._due.pop(leader.term, {})
        if missing := [tell.fact.kind for key, tell in due.items() if key not in self._written]:
            self._job.checks.violated("events", f"{missing} were never written, and the leader went on")
