"""Mutants of the leader's writing (`edl.core.job.commit`): each breaks one rule of it, and the simulation must notice.

As in `test_checks`, a mutant is a rule replaced in the real code, which the simulated leader runs as the real one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from mutants import Mutant, Patch, Play, Prompt, expect_noticed, full, later

from edl.core.job import commit, job_report
from edl.core.job.commit import (
    BatchDecided,
    Commit,
    DeclareRest,
    ForgetSecret,
    Forgotten,
    GiveAnswer,
    Publish,
    Writing,
    Written,
)
from edl.core.job.orders import OrderBook
from edl.errors import Fenced, StoreUnavailable
from edl.protocol import leader_messages as say
from edl.protocol.data_nouns import DataSpec
from tests.model import Moment, Planned, SimFault, SimJob, scenario, writing_checks
from tests.model.model_coordinator import RecordNode

SEEDS = 150


def answers_before_it_is_durable(patch: Patch) -> None:
    def hasty(right, self, decided):
        return [*decided.answers, *right(self, dataclasses.replace(decided, answers=()))]

    replace_decided(patch, hasty)


def replace_decided(patch: Patch, change: Callable[..., Any]) -> None:
    """Take a decided batch by `change`, which is given the right way first."""
    right = Writing.handle

    def handle(self, happened):
        return change(right, self, happened) if isinstance(happened, BatchDecided) else right(self, happened)

    patch.setattr(Writing, "handle", handle)


def replace_told(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Put another instruction in the place of each, or none."""
    right = Writing.handle
    patch.setattr(
        Writing, "handle", lambda self, happened: [new for one in right(self, happened) if (new := change(one))]
    )


def publishes_before_it_is_durable(patch: Patch) -> None:
    def hasty(right, self, decided):
        if decided.record.version == self.record.version:
            return right(self, decided)
        return [Publish(OrderBook(decided.record, self._term, self.book), True), *right(self, decided)]

    replace_decided(patch, hasty)


def publishes_the_record_before(patch: Patch) -> None:
    handle = Writing.handle

    def late(self, happened):
        before = self.book
        follows = handle(self, happened)
        return [Publish(before, one.pressing) if isinstance(one, Publish) and before else one for one in follows]

    patch.setattr(Writing, "handle", late)


def drops_the_events(patch: Patch) -> None:
    replace_decided(patch, lambda right, self, decided: right(self, dataclasses.replace(decided, told=())))


def takes_no_answer_for_an_answer(patch: Patch) -> None:
    receives = RecordNode.receives

    def trusting(self, command, term):
        try:
            return receives(self, command, term)
        except StoreUnavailable:
            return Written(command.version + 1) if isinstance(command, Commit) else Forgotten()

    patch.setattr(RecordNode, "receives", trusting)


def writes_again_what_may_have_been_carried_out(patch: Patch) -> None:
    receives = RecordNode.receives

    def again(self, command, term):
        try:
            return receives(self, command, term)
        except StoreUnavailable:
            if isinstance(command, Commit):
                command = dataclasses.replace(command, version=self.version)
            return self._carry_out(command, term)

    patch.setattr(RecordNode, "receives", again)


def leads_on_by_what_was_not_kept(patch: Patch) -> None:
    new_machine = SimJob.new_machine

    def unread(self, record, term):
        return new_machine(self, record if term == 1 else self.leader.machine.record, term)

    patch.setattr(SimJob, "new_machine", unread)


def lets_a_late_write_into_the_next_term(patch: Patch) -> None:
    late = RecordNode.late
    patch.setattr(RecordNode, "late", lambda self, command, _term: late(self, command, self._job.term))


def goes_on_though_another_leads(patch: Patch) -> None:
    receives = RecordNode.receives

    def deaf(self, command, term):
        try:
            return receives(self, command, term)
        except Fenced:
            return Written(command.version + 1)

    patch.setattr(RecordNode, "receives", deaf)


def says_taken_for_a_refusal(patch: Patch) -> None:
    patch.setattr(commit, "_answer", lambda asker, _follows: GiveAnswer(asker, say.Done()))


def never_presses(patch: Patch) -> None:
    replace_told(patch, lambda one: Publish(one.book, False) if isinstance(one, Publish) else one)


def says_it_is_at_rest_while_it_writes(patch: Patch) -> None:
    patch.setattr(Writing, "_unrest", lambda _self: [])


def says_it_is_at_rest_whatever_is_planned(patch: Patch) -> None:
    replace_told(patch, lambda one: DeclareRest(True) if isinstance(one, DeclareRest) else one)


def tells_the_end_before_the_secret_is_gone(patch: Patch) -> None:
    handle = Writing.handle

    def hasty(self, happened):
        follows = handle(self, happened)
        return handle(self, Forgotten()) if follows == [ForgetSecret()] else follows

    patch.setattr(Writing, "handle", hasty)


def tells_the_end_though_the_secret_could_not_be_removed(patch: Patch) -> None:
    receives = RecordNode.receives

    def careless(self, command, term):
        try:
            return receives(self, command, term)
        except StoreUnavailable:
            if isinstance(command, Commit):
                raise
            return Forgotten()

    patch.setattr(RecordNode, "receives", careless)


def answers_no_caller(patch: Patch) -> None:
    replace_told(patch, lambda one: None if isinstance(one, GiveAnswer) else one)


def shows_what_is_not_durable_yet(patch: Patch) -> None:
    shown = job_report.status_of

    def hasty(*told, durable):
        assert durable is not None
        return shown(*told)

    patch.setattr(writing_checks, "status_of", hasty)


def lost_answers(seed: int) -> SimJob:
    """Every fifth call to the coordinator gets no answer."""
    job = scenario(seed, in_line=True)
    job.node.lost = 0.2
    return job


def prompt(seed: int) -> SimJob:
    job = Prompt(DataSpec(total=1200, epochs=1, batch=2), seed=seed, workers=2, lease_s=0.6)
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


def other_leaders(seed: int) -> SimJob:
    """And leaders are deposed all the time."""
    job = lost_answers(seed)
    job.plan([Planned(SimFault.CHANGE_LEADER, Moment.DECIDING, count) for count in range(5, 60, 5)])
    return job


@dataclasses.dataclass(frozen=True)
class Case:
    """Which complaint there is without a rule, and the jobs that need it."""

    noticed: str
    job: Play = scenario


CASES: dict[Mutant, Case] = {
    answers_before_it_is_durable: Case("I9"),
    publishes_before_it_is_durable: Case("I9"),
    publishes_the_record_before: Case("I9"),
    drops_the_events: Case("events"),
    takes_no_answer_for_an_answer: Case("I9", lost_answers),
    writes_again_what_may_have_been_carried_out: Case("I1 events", lost_answers),
    leads_on_by_what_was_not_kept: Case("I9 events", lost_answers),
    lets_a_late_write_into_the_next_term: Case("I1", lost_answers),
    goes_on_though_another_leads: Case("I9", other_leaders),
    says_taken_for_a_refusal: Case("I9", full),
    never_presses: Case("I11", prompt),
    says_it_is_at_rest_while_it_writes: Case("rest"),
    says_it_is_at_rest_whatever_is_planned: Case("rest"),
    tells_the_end_before_the_secret_is_gone: Case("secret"),
    tells_the_end_though_the_secret_could_not_be_removed: Case("secret", later(lost_answers, 30)),
    answers_no_caller: Case("I12"),
    shows_what_is_not_durable_yet: Case("I9"),
}


@pytest.mark.parametrize("mutant", CASES, ids=lambda mutant: mutant.__name__)
def test_wrong_writing_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    case = CASES[mutant]
    expect_noticed(mutant, case.job, {*case.noticed.split()}, SEEDS, monkeypatch)
