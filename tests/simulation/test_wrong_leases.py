"""Mutants of a worker's lease buffer: each breaks one of its rules, and whole jobs must notice (see `test_checks`).

What a job cannot notice, as it concerns one trainer's threads alone, is in
`tests/unit/core/worker/test_lease_buffer.py`.
"""

from __future__ import annotations

import pytest
from mutants import Mutant, Patch, Play, ReadsUnevenly, expect_noticed, later

from edl.core.worker import lease_buffer
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.next_move import NEVER
from edl.protocol.data_nouns import DataSpec
from edl.protocol.job_policy import Batching, BatchRule
from tests.model import Planned, SimFault, SimJob, scenario

SEEDS = 60
LEASED = DataSpec(total=900, epochs=1, batch=4)  # all of it is leased when a newcomer comes
EPOCHS = DataSpec(total=90, epochs=6, batch=2, open_ended=True)  # each pass asks for its epoch
SHARED = DataSpec(total=6000, epochs=1, batch=12)


def hands_out_beyond_the_mark(patch: Patch) -> None:
    hand_out = LeaseBuffer.hand_out

    def unmarked(self, lease, step):
        mark, self._mark = self._mark, NEVER
        try:
            return hand_out(self, lease, step)
        finally:
            self._mark = mark

    patch.setattr(LeaseBuffer, "hand_out", unmarked)


def tells_the_mark_that_the_leader_set(patch: Patch) -> None:
    patch.setattr(LeaseBuffer, "hand_out", lambda self, lease, step: step <= self._mark)  # notes nothing


def keeps_what_was_taken_back(patch: Patch) -> None:
    patch.setattr(lease_buffer, "_left_of", lambda leases, _newer, _covered: tuple(leases))


def takes_old_news(patch: Patch) -> None:
    adopt = LeaseBuffer.adopt

    def credulous(self, share, stamp, at_work=0):
        self._newest = (0, 0)
        adopt(self, share, stamp, at_work)

    patch.setattr(LeaseBuffer, "adopt", credulous)


def never_lifts_the_mark(patch: Patch) -> None:
    adopt = LeaseBuffer.adopt

    def for_good(self, share, stamp, at_work=0):
        rebatch, mark = self._rebatch, self._mark
        adopt(self, share, stamp, at_work)
        self._rebatch, self._mark = self._rebatch or rebatch, self._mark if self._rebatch else mark

    patch.setattr(LeaseBuffer, "adopt", for_good)


def counts_stand_ins_as_its_own(patch: Patch) -> None:
    own = LeaseBuffer.own
    patch.setattr(LeaseBuffer, "own", lambda self, step: own(self, step) or (self.at(step) and self.at(step).batch))


def weighs_alike_beyond_the_mark(patch: Patch) -> None:
    constant_until = LeaseBuffer.constant_until

    def unmarked(self, step):
        mark, self._mark = self._mark, NEVER
        try:
            return constant_until(self, step)
        finally:
            self._mark = mark

    patch.setattr(LeaseBuffer, "constant_until", unmarked)


def weighs_a_lease_alike_to_its_end(patch: Patch) -> None:
    patch.setattr(LeaseBuffer, "constant_until", lambda self, step: self.at(step).until_step)


def weighs_by_its_own_batch(patch: Patch) -> None:
    patch.setattr(LeaseBuffer, "weight", lambda self, step: self.at(step).share(step) / max(1, self.batch))


def ends_where_no_more_is_leased(patch: Patch) -> None:
    patch.setattr(LeaseBuffer, "ends_before", lambda self, step: self._share and step > self._share.covered_step)


def believes_a_share_of_fewer_epochs(patch: Patch) -> None:
    def hasty(self, step):
        return self._share and self._share.last and step > self._share.covered_step

    patch.setattr(LeaseBuffer, "ends_before", hasty)


def newcomer(seed: int) -> SimJob:
    """All is leased when it comes, so that leases are cut anew."""
    job = ReadsUnevenly(LEASED, seed=seed, workers=2, lease_s=5.0)
    job.plan([Planned(SimFault.JOIN, 0.05)])
    return job


def shared_out(seed: int) -> SimJob:
    """Two come, and the batch is shared out otherwise while all train."""
    job = SimJob(SHARED, seed=seed, workers=3, batching=Batching(BatchRule.GLOBAL))
    job.plan([Planned(SimFault.JOIN, 0.1), Planned(SimFault.JOIN, 0.5)])
    job.after(0.8, job.requests.share_out)
    return job


def epochs(seed: int) -> SimJob:
    return SimJob(EPOCHS, seed=seed)


def just_in_time(seed: int) -> SimJob:
    """So little is leased ahead that passes begin before their first lease is there."""
    return SimJob(EPOCHS, seed=seed, lease_s=0.001)


MUTANTS: dict[Mutant, tuple[Play, str]] = {
    hands_out_beyond_the_mark: (newcomer, "I7"),
    tells_the_mark_that_the_leader_set: (newcomer, "I7"),
    keeps_what_was_taken_back: (shared_out, "I7"),
    takes_old_news: (shared_out, "I12"),
    never_lifts_the_mark: (newcomer, "I12"),
    counts_stand_ins_as_its_own: (scenario, "I7"),
    weighs_alike_beyond_the_mark: (later(scenario, 20), "I7"),
    weighs_a_lease_alike_to_its_end: (newcomer, "I7"),
    weighs_by_its_own_batch: (epochs, "I7"),
    ends_where_no_more_is_leased: (scenario, "I6"),
    believes_a_share_of_fewer_epochs: (just_in_time, "I6"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rule_of_the_lease_buffer_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    play, expected = MUTANTS[mutant]
    expect_noticed(mutant, play, {expected}, SEEDS, monkeypatch)
