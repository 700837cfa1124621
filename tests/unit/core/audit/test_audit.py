"""The audit: which steps count, what is found and how it is said, and the files that it is read from."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edl.cli import main
from edl.core.audit.kept_steps import WorkerAudit, lineage
from edl.core.audit.sample_account import Account, Offender, Portion, Weighed, account
from edl.core.data.permutation import samples_at
from edl.core.worker.lease_buffer import LeaseBuffer
from edl.core.worker.next_move import NEVER
from edl.errors import ConfigError, UsageError
from edl.protocol.assignment import Place, Share
from edl.protocol.audit_lines import (
    BatchGiven,
    Began,
    Committed,
    Damaged,
    DataEnded,
    DataOpened,
    Line,
    Sat,
    decoded,
    encoded,
)
from edl.protocol.data_nouns import DataSpec, Lease, Range
from edl.trainer.data.audit_files import AuditedCount, AuditFile, read
from edl.trainer.data.epoch_cursor import Pass
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.sample_ids import SampleIds
from edl.trainer.data.shards import ShardGenerator
from edl.transport.shared_page import SharedPage

SPEC = DataSpec(total=8, epochs=1, batch=2, shuffle=True, seed=3)


def given(step: int, *pieces: tuple[int, int], epoch: int = 0, spec: DataSpec = SPEC) -> BatchGiven:
    ranges = tuple(Range(epoch, start, stop) for start, stop in pieces)
    ids = b"".join(samples_at(spec, piece).astype("<i8").tobytes() for piece in ranges)
    return BatchGiven(step, epoch, ranges, zlib.crc32(ids))


def audit(worker: str, *lines: Line, job: str = "j", spec: DataSpec = SPEC) -> WorkerAudit:
    return WorkerAudit(worker, job, (DataOpened(spec), *lines))


def pair() -> dict[str, list[Line]]:
    """Two workers, one epoch of two steps."""
    return {
        "a": [Sat(1, 0, 0, 2), given(1, (0, 2)), Committed(1, 1), given(2, (4, 6)), Committed(1, 2), DataEnded(1, 2)],
        "b": [Sat(1, 0, 1, 2), given(1, (2, 4)), Committed(1, 1), given(2, (6, 8)), Committed(1, 2), DataEnded(1, 2)],
    }


def found(lines: dict[str, list[Line]]) -> Account:
    return account([audit(worker, *said) for worker, said in lines.items()])


def sample(position: int) -> int:
    return int(samples_at(SPEC, Range(0, position, position + 1))[0])


# ---------------------------------------------------------------------------------------------- which steps count


def durations(*audits: tuple[str, Sequence[Any]]) -> list[tuple[int, int, int, str]]:
    durations = lineage([audit(worker, *lines) for worker, lines in audits])
    return [(one.generation, one.after_step, one.until_step, "".join(one.members)) for one in durations]


def test_a_step_that_only_a_victim_applied_is_void() -> None:
    victim = ("v", [Sat(1, 0, 0, 2), Committed(1, 1), Committed(1, 2)])
    survivor = ("s", [Sat(1, 0, 1, 2), Committed(1, 1), Sat(2, 1, 0, 1), Committed(2, 2)])
    assert durations(victim, survivor) == [(1, 0, 1, "vs"), (2, 1, 2, "s")]


def test_a_step_counts_for_a_victim_that_could_not_write_so() -> None:
    victim = ("v", [Sat(1, 0, 0, 2), Committed(1, 1)])
    survivor = ("s", [Sat(1, 0, 1, 2), Committed(1, 1), Committed(1, 2), Sat(2, 2, 0, 1)])
    assert durations(victim, survivor) == [(1, 0, 2, "vs")]


def test_a_generation_in_which_the_newest_state_was_lost_again_decides_nothing() -> None:
    """v had step 2 alone, gave it to s in generation 2, and both are killed before t has got it."""
    v = ("v", [Sat(1, 0, 0, 3), Committed(1, 1), Committed(1, 2)])
    s = ("s", [Sat(1, 0, 1, 3), Committed(1, 1), Sat(2, 2, 1, 3)])
    t = ("t", [Sat(1, 0, 2, 3), Committed(1, 1), Sat(3, 1, 0, 1), Committed(3, 2)])
    assert durations(v, s, t) == [(1, 0, 1, "vst"), (3, 1, 2, "t")]


def test_in_the_newest_generation_one_is_enough() -> None:
    """The last step of all, in which the other is killed."""
    assert durations(("a", [Sat(1, 0, 0, 2), Committed(1, 1)]), ("b", [Sat(1, 0, 1, 2)])) == [(1, 0, 1, "ab")]
    assert durations(("a", [Sat(1, 0, 0, 2)]), ("b", [Sat(1, 0, 1, 2)])) == []


@pytest.mark.parametrize(
    ("a", "b", "complaint"),
    [
        ([Sat(1, 0, 0, 1)], [Sat(1, 0, 0, 1)], "both have rank 0 in generation 1: these are audits of more than one"),
        ([Sat(1, 0, 0, 2)], [Sat(1, 4, 1, 2)], "do not agree on its size, or on where it began"),
        ([Sat(1, 0, 0, 3), Committed(1, 1)], [Sat(1, 0, 1, 3)], "no audit of rank 2 of the 3 workers of generation 1"),
        ([Sat(1, 0, 0, 2), Committed(1, 1)], [Sat(1, 0, 1, 2), Sat(2, 2, 0, 1)], "step 2 was kept .* lines are miss"),
        ([Sat(1, 0, 0, 1)], [Committed(1, 1)], "b says that it trained in generation 1, where it has no seat"),
    ],
)
def test_audits_that_do_not_fit_together_are_refused(a: list[Line], b: list[Line], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        lineage([audit("a", *a), audit("b", *b)])


def test_who_died_before_it_wrote_anything_is_not_missed() -> None:
    """It got its seat in a ring that stood for the others, and nothing was trained in that."""
    survivor = ("s", [Sat(1, 0, 0, 1), Committed(1, 1), Sat(2, 1, 0, 2), Sat(3, 1, 0, 1), Committed(3, 2)])
    assert durations(survivor) == [(1, 0, 1, "s"), (3, 1, 2, "s")]


# --------------------------------------------------------------------------------------------------- what is found


def test_a_clean_job() -> None:
    clean = found(pair())
    assert clean.clean
    (epoch,) = clean.epochs
    assert (epoch.total, epoch.trained, epoch.lost, epoch.repeated, epoch.over) == (8, 8, 0, 0, True)
    assert (clean.workers, clean.generations, clean.steps) == (2, 1, 2)


def test_a_lost_sample_is_named() -> None:
    lines = pair()
    lines["b"][3] = given(2, (6, 7))
    (epoch,) = found(lines).epochs
    assert (epoch.trained, epoch.lost, epoch.first_lost) == (7, 1, (Offender(sample(7), ()),))


def test_a_repeated_sample_is_named_with_its_steps_and_workers() -> None:
    lines = pair()
    lines["b"][3] = given(2, (1, 2), (6, 8))
    (epoch,) = found(lines).epochs
    assert (epoch.trained, epoch.repeated, epoch.lost) == (8, 1, 0)
    assert epoch.first_repeated == (Offender(sample(1), (Portion(1, "a"), Portion(2, "b"))),)


def test_what_was_trained_in_a_void_step_is_lost_unless_it_comes_again() -> None:
    lines = pair()
    lines["a"][4:] = [Sat(2, 1, 0, 1), Committed(2, 2), DataEnded(1, 2)]  # b is lost in step 2
    lines["b"][4:] = []
    (epoch,) = found(lines).epochs
    assert (epoch.lost, epoch.first_lost[0]) == (2, Offender(sample(6), (Portion(2, "b"),)))
    lines["a"][-1:] = [given(3, (6, 8)), Committed(2, 3), DataEnded(1, 3)]
    assert found(lines).clean


def test_the_same_step_handed_out_again_counts_once() -> None:
    lines = pair()
    lines["a"].insert(3, lines["a"][3])
    assert found(lines).clean


def test_other_samples_than_those_of_the_positions_are_wrong() -> None:
    lines = pair()
    lines["a"][1] = msgspec.structs.replace(given(1, (0, 2)), check=1)
    assert (found(lines).clean, found(lines).wrong, found(lines).first_wrong) == (False, 1, (Portion(1, "a"),))


def test_an_epoch_that_is_not_over_has_lost_nothing_yet() -> None:
    lines = {worker: said[:3] for worker, said in pair().items()}
    (epoch,) = found(lines).epochs
    assert (epoch.over, epoch.trained, epoch.lost) == (False, 4, 0)


def test_an_epoch_is_over_once_the_pass_after_the_next_has_begun() -> None:
    """What comes back after its epoch's last step is trained with the next; only then is it lost."""
    three = msgspec.structs.replace(SPEC, epochs=3)
    lines: list[Line] = [Sat(1, 0, 0, 1), given(1, (0, 7)), Committed(1, 1)]
    lines += [given(2, (0, 8), epoch=1), Committed(1, 2)]
    assert not account([audit("a", *lines, spec=three)]).epochs[0].over
    lines += [given(3, (0, 1), epoch=2), Committed(1, 3)]
    first, second, third = account([audit("a", *lines, spec=three)]).epochs
    assert (first.over, first.lost, second.over, third.over) == (True, 1, True, False)


LONG = msgspec.structs.replace(SPEC, epochs=9)  # epochs of one step


def broken_off(until: int) -> Account:
    """Two read three epochs ahead, one of them is lost in the first step, and the other trains on up to a step."""
    read: list[Line] = [Sat(1, 0, 0, 2), *(given(step, (0, 4), epoch=step - 1, spec=LONG) for step in range(1, 5))]
    lost: list[Line] = [Sat(1, 0, 1, 2), given(1, (4, 8), spec=LONG)]
    on: list[Line] = [Sat(2, 0, 0, 1), *(Committed(2, step) for step in range(1, min(until, 4) + 1))]
    for step in range(5, until + 1):
        on += [given(step, (0, 8), epoch=step - 1, spec=LONG), Committed(2, step)]
    return account([audit("a", *read, *on, spec=LONG), audit("b", *lost, spec=LONG)])


def test_what_came_back_waits_for_what_pipelines_had_read_and_is_not_lost_by_then() -> None:
    for until in (1, 3, 4, 5):  # its script may leave its loop there
        assert broken_off(until).clean, until
    ended = broken_off(6).epochs
    assert [epoch.lost for epoch in ended] == [4, 4, 4, 4, 0, 0]
    assert not broken_off(6).clean, "it has trained all of the pass after the last one that was read, and these never"


def test_what_came_back_and_was_lost_with_its_next_worker_waits_again() -> None:
    """The second switch comes before what came back at the first one is trained."""
    first, *read = (given(step, (0, 4 if step == 1 else 8), epoch=step - 1, spec=LONG) for step in range(1, 8))
    lines: list[Line] = [Sat(1, 0, 0, 2), first, *read[:3], Sat(2, 0, 0, 2)]
    lines += [*(Committed(2, step) for step in range(1, 5)), *read[3:], Sat(3, 4, 0, 1)]
    lines += [Committed(3, step) for step in range(5, 8)]
    late = BatchGiven(5, 4, (Range(0, 4, 8),), given(1, (4, 8), spec=LONG).check)
    one = audit("b", Sat(1, 0, 1, 2), given(1, (4, 8), spec=LONG), spec=LONG)
    other = audit("c", Sat(2, 0, 1, 2), *(Committed(2, step) for step in range(1, 5)), late, spec=LONG)
    found = account([audit("a", *lines, spec=LONG), one, other])
    assert (found.epochs[0].trained, found.epochs[0].over, found.clean) == (4, False, True)


def test_what_is_trained_along_with_the_next_epoch_may_be_lost_there_and_come_with_the_one_after() -> None:
    lines: list[Line] = [Sat(1, 0, 0, 2), given(1, (0, 4), spec=LONG), Sat(2, 0, 0, 2), Committed(2, 1)]
    lines += [given(2, (0, 8), epoch=1, spec=LONG), Sat(3, 1, 0, 1), Committed(3, 2)]
    lines += [given(3, (0, 8), epoch=2, spec=LONG), Committed(3, 3)]
    late = BatchGiven(2, 1, (Range(0, 4, 8),), given(1, (4, 8), spec=LONG).check)
    one = audit("b", Sat(1, 0, 1, 2), given(1, (4, 8), spec=LONG), spec=LONG)
    other = audit("c", Sat(2, 0, 1, 2), Committed(2, 1), late, spec=LONG)
    assert account([audit("a", *lines, spec=LONG), one, other]).clean
    lines += [given(4, (0, 8), epoch=3, spec=LONG), Committed(3, 4)]
    assert account([audit("a", *lines, spec=LONG), one, other]).epochs[0].lost == 4


@pytest.mark.parametrize(
    ("audits", "complaint"),
    [
        ([], "nothing to verify"),
        ([WorkerAudit("a", "j", (Sat(1, 0, 0, 1),))], "no worker has asked for data"),
        ([audit("a"), audit("b", job="k")], "audits of the jobs j and k"),
        ([audit("a"), audit("b", spec=DataSpec(9, 1, 2))], "more than one run: workers trained on data of another tot"),
        ([audit("a", BatchGiven(1, 0, (Range(0, 7, 9),), 0))], r"a was given positions 7\.\.8 of epoch 0"),
    ],
)
def test_what_cannot_be_an_audit_is_refused(audits: list[WorkerAudit], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        account(audits)


def test_a_large_audit_is_quick(tmp_path: Path) -> None:
    """3 epochs of 50,000 samples in batches of 8, with 10 workers."""
    spec = DataSpec(total=50_000, epochs=3, batch=8, shuffle=True)
    orders = [samples_at(spec, Range(epoch, 0, spec.total)).astype("<i8") for epoch in range(3)]
    for rank in range(10):
        lines: list[Line] = [Began(1, "j", f"w{rank}"), DataOpened(spec), Sat(1, 0, rank, 10)]
        for step in range(1, 3 * 625 + 1):
            epoch, at = divmod(step - 1, 625)
            start = (at * 10 + rank) * 8
            check = zlib.crc32(orders[epoch][start : start + 8].tobytes())
            lines += [BatchGiven(step, epoch, (Range(epoch, start, start + 8),), check), Committed(1, step)]
        (tmp_path / f"audit-w{rank}.jsonl").write_bytes(b"".join(map(encoded, [*lines, DataEnded(3, 1875)])))
    began = time.process_time()
    found = account(read(tmp_path))
    assert time.process_time() - began < 3.0
    assert found.clean
    assert [epoch.trained for epoch in found.epochs] == [50_000] * 3


# ------------------------------------------------------------------------------------------------------- the files


def test_lines_come_back_as_they_were_written() -> None:
    lines = (Began(1, "j", "w"), DataOpened(SPEC), Sat(1, 0, 0, 2), given(1, (0, 2)), Committed(1, 1), DataEnded(1, 9))
    data = b"".join(encoded(line) for line in lines)
    assert decoded(data) == lines
    for cut in range(len(data)):
        assert decoded(data[:cut]) == lines[: data[:cut].count(b"\n")]


def test_a_damaged_line_is_named_by_its_place() -> None:
    with pytest.raises(Damaged, match=r"^at byte 20: "):
        decoded(b'["committed",1,123]\n["commit\n["committed",1,2]\n')


def test_a_worker_writes_what_is_its_own_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    file = AuditFile(folder, "j", "w1")
    file.opened(SPEC)
    file.sat(Place(1, 0, 1, "w1"), 0)
    file.given(Lease(1, 0, 3, 2, (Range(0, 0, 2), Range(0, 5, 7)), 0), 2, samples_at(SPEC, Range(0, 5, 7)))
    file.given(Lease(1, 0, 3, 2, (Range(0, 0, 2),), 0), 3, np.empty(0, np.int64))
    file.committed(1, 1, 0.25)
    file.ended(1, 1)
    (found,) = read(folder)  # it is there already, whatever becomes of this process
    expected = (
        DataOpened(SPEC),
        Sat(1, 0, 0, 1),
        given(2, (5, 7)),
        BatchGiven(3, 0, (), 0),
        Committed(1, 1, 0.25),
        DataEnded(1, 1),
    )
    assert found == WorkerAudit("w1", "j", expected)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "audit-w1.jsonl").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="has the audit of another run in it"):
        AuditFile(folder, "j", "w1")


def test_a_full_disk_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AuditFile(tmp_path, "j", "w1")
    monkeypatch.setattr(os, "write", lambda descriptor, text: len(text) - 1)
    with pytest.raises(ConfigError, match="no space is left"):
        file.committed(1, 1)


def test_what_is_a_usual_mini_batch_does_not_depend_on_the_audit(tmp_path: Path) -> None:
    count = SharedPage.unshared().count()
    audited = AuditedCount(count, AuditFile(tmp_path, "j", "w"), lambda: 7, lambda: 0.5)
    assert not audited.advance()  # as long as the seat does not say until when
    page = SharedPage.unshared()
    page.attention_step = NEVER
    count = page.count()
    count.usual_until = 3
    audited = AuditedCount(count, AuditFile(tmp_path, "j", "v"), lambda: 7, lambda: 0.5)
    assert [audited.advance() for _ in range(4)] == [True, True, False, False]
    assert [found.lines for found in read(tmp_path)] == [(Committed(7, 1, 0.5), Committed(7, 2, 0.5))]


class OneLease:
    """Three steps of two samples, one sample, none."""

    def __init__(self, rehearses: bool) -> None:
        self.rehearsals = Rehearsals()
        self.rehearsals.add(int(rehearses))
        self.leases = LeaseBuffer()
        lease = Lease(1, 0, 3, 2, (Range(0, 0, 3),), 0, final=True)
        self.leases.adopt(Share(1, 0, (lease,), (), 3, 1, last=True), (1, 1))

    def open(self, spec: DataSpec) -> None: ...
    def check_ended(self, step: int) -> None: ...
    def loaded(self, nanoseconds: int) -> None: ...
    def begin_batch(self) -> None:
        """There is one state only."""

    def await_samples(self, step: int | None, *, wait: bool = True) -> bool:
        return self.leases.offers(step or self.step())

    def step(self) -> int:
        return 1


def test_a_generator_writes_down_what_it_hands_out(tmp_path: Path) -> None:
    shards = ShardGenerator(3, OneLease(rehearses=True), epochs=1, audit=AuditFile(tmp_path, "j", "w"))
    assert len(list(shards.batches(2))) == 4  # the rehearsal first, and stand-ins for the third step
    (found,) = read(tmp_path)
    *hands, ended = found.lines
    assert [(line.step, line.ranges) for line in hands] == [(1, (Range(0, 0, 2),)), (2, (Range(0, 2, 3),)), (3, ())]
    assert ended == DataEnded(1, 3)


def test_a_look_at_samples_to_come_is_no_handing_out(tmp_path: Path) -> None:
    spec, feed = DataSpec(3, 1, 2), OneLease(rehearses=False)
    one = Pass(spec, feed, SampleIds(), AuditFile(tmp_path, "j", "w"), one_epoch=False)
    one.next()
    assert one.coming(1)[0].tolist() == [2]
    (found,) = read(tmp_path)
    assert [line.step for line in found.lines if isinstance(line, BatchGiven)] == [1]


# -------------------------------------------------------------------------------------------------------- weights


def weighed(first: float | None, second: float | None, *, stand_ins: bool = False) -> Account:
    """One step of two workers, with these weights: of two samples each, or of none; before it a step with weights."""
    mine, yours = (given(2), given(2)) if stand_ins else (given(2, (4, 6)), given(2, (6, 8)))
    return found(
        {
            "a": [Sat(1, 0, 0, 2), given(1, (0, 2)), Committed(1, 1, 0.5), mine, Committed(1, 2, first)],
            "b": [Sat(1, 0, 1, 2), given(1, (2, 4)), Committed(1, 1, 0.5), yours, Committed(1, 2, second)],
        }
    )


def counts(account: Account) -> tuple[int | None, int, int, bool]:
    return account.updates, account.weightless, account.misweighed, account.clean


def test_it_says_how_many_updates_were_made() -> None:
    assert counts(weighed(0.5, 0.5)) == (2, 0, 0, True)
    assert counts(weighed(0.0, 0.0)) == (1, 0, 0, True)  # all left it out, as a scaled loss was not finite
    assert counts(weighed(0.0, 0.0, stand_ins=True)) == (1, 1, 0, True)


def test_a_step_that_was_applied_though_no_worker_had_samples_is_wrong() -> None:
    account = weighed(0.0, 1.0, stand_ins=True)
    assert counts(account) == (2, 1, 1, False)
    assert account.first_misweighed == (Weighed(2, "b", 1.0, 0.0),)


@pytest.mark.parametrize(("first", "second"), [(0.25, 0.75), (1.0, 0.0), (0.5, 0.0)])
def test_a_weight_that_is_not_the_share_of_the_samples_is_wrong(first: float, second: float) -> None:
    assert not weighed(first, second).clean


def test_who_was_killed_before_it_could_tell_is_told_of_by_others() -> None:
    assert counts(weighed(None, 0.5)) == (2, 0, 0, True)
    assert counts(weighed(None, None)) == (None, 0, 0, True)  # of a version that did not write weights, say


def test_lines_of_a_version_without_weights_are_read() -> None:
    assert decoded(b'["committed",1,2]\n') == (Committed(1, 2, None),)


# ---------------------------------------------------------------------------------------------------- the command


def written(folder: Path, lines: dict[str, list[Line]]) -> Path:
    for worker, said in lines.items():
        text = b"".join(map(encoded, [Began(1, "j", worker), DataOpened(SPEC), *said]))
        (folder / f"audit-{worker}.jsonl").write_bytes(text)
    return folder


def test_verify_says_that_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", str(written(tmp_path, pair()))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job j: 2 steps, 2 workers and 1 generation in all",
        "epoch  total  trained  lost  repeated",
        "0      8      8        0     0",
        "0 lost, 0 repeated",
    ]


def test_verify_says_what_weighed_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: dict[str, list[Line]] = {
        "a": [Sat(1, 0, 0, 1), given(1, (0, 8)), Committed(1, 1, 1.0), given(2), Committed(1, 2, 0.0), DataEnded(1, 2)]
    }
    assert main(["data", "verify", str(written(tmp_path, lines))]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "1 update, 1 step weighed nothing"
    lines["a"][4] = Committed(1, 2, 1.0)
    assert main(["data", "verify", str(written(tmp_path, lines))]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "2 updates, 1 step weighed nothing"
    assert said[-2:] == ["a went into step 2 with weight 1, and 0 is right", "0 lost, 0 repeated, 1 wrong weight"]


def test_verify_names_who_was_lost_and_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = pair()
    lines["b"][3] = msgspec.structs.replace(given(2, (1, 2)), check=1)
    assert main(["data", "verify", str(written(tmp_path, lines))]) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        "0      8      6        2     1",
        f"epoch 0: sample {sample(6)} is lost; no worker was given it",
        f"epoch 0: sample {sample(7)} is lost; no worker was given it",
        f"epoch 0: sample {sample(1)} is repeated: a in step 1, b in step 2",
        "b was given other samples in step 2 than those of its positions",
        "2 lost, 1 repeated, 1 wrong batch",
    ]
    assert main(["data", "verify", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["wrong"]) == (False, 1)
    assert found["epochs"][0]["first_repeated"] == [
        {"sample": sample(1), "steps": [{"step": 1, "worker": "a", "life": 1}, {"step": 2, "worker": "b", "life": 1}]}
    ]


def test_verify_tells_of_a_job_in_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, {worker: said[:3] for worker, said in pair().items()})
    with (folder / "audit-a.jsonl").open("ab") as file:
        file.write(b'["given",2,0,[[0,')  # killed in the middle of it
    assert main(["data", "verify", str(folder)]) == 0
    assert "0      8      4        -     0         in progress" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (lambda folder: folder.rmdir(), "is no folder"),
        (lambda folder: None, "has no audit in it"),
        (
            lambda folder: (folder / "audit-w.jsonl").write_text('["began",1,"j","w"]\n[]\n["x"'),
            "is damaged at byte 20",
        ),
        (lambda folder: (folder / "audit-w.jsonl").write_text('["committed",1,1]\n'), "is no audit of this version"),
        (lambda folder: (folder / "audit-w.jsonl").mkdir(), "cannot be read: Is a directory"),
        (lambda folder: (folder / "audit-w.jsonl").touch(), "nothing to verify"),
    ],
)
def test_verify_refuses_what_is_no_audit(tmp_path: Path, capsys, prepare, complaint: str) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    prepare(folder)
    assert main(["data", "verify", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err


def test_a_run_does_not_write_into_the_audit_of_another(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    assert main(["run", "--audit", str(written(tmp_path, pair())), "true"]) == 2
    assert "has the audit of another run in it (audit-a.jsonl)" in capsys.readouterr().err
    assert main(["run", "--audit", str(tmp_path / "audit-a.jsonl"), "true"]) == 2
    assert "cannot be made a folder" in capsys.readouterr().err
