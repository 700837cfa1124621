"""`edl.core.audit.kept_steps`: a run's digests of parts beside those of a replay."""

from __future__ import annotations

from edl.core.audit.kept_steps import PartKey, ReplayedPart, WorkerAudit, compared, digests_of
from edl.protocol.audit_lines import DataEnded, Line, PartsComputed, decoded, encoded


def audit(worker: str, *lines: PartsComputed) -> WorkerAudit:
    written: list[Line] = [*lines, DataEnded(1, 9)]
    return WorkerAudit(worker, "j", decoded(b"".join(map(encoded, written))))


def test_parts_of_all_workers_are_compared_with_those_of_the_one_that_replays() -> None:
    run = digests_of(
        [
            audit("w0", PartsComputed(4, 0, ((0, 10), (1, 11))), PartsComputed(5, 0, ((0, 20), (1, 21)))),
            audit("w1", PartsComputed(4, 0, ((2, 12),)), PartsComputed(5, 0, ((2, 2**64 - 1),))),
        ]
    )
    replay = digests_of([audit("x", PartsComputed(5, 0, ((0, 20), (1, 99), (2, 2**64 - 1))))])
    assert compared(run, replay) == [
        ReplayedPart(PartKey(5, 0, 0), 20, (20,)),
        ReplayedPart(PartKey(5, 0, 1), 99, (21,)),
        ReplayedPart(PartKey(5, 0, 2), 2**64 - 1, (2**64 - 1,)),
    ]
    assert [one.is_same for one in compared(run, replay)] == [True, False, True]


def test_a_step_that_was_void_has_several_digests_and_all_must_be_the_same() -> None:
    again = [audit(worker, PartsComputed(5, 0, ((0, digest),))) for worker, digest in (("w0", 20), ("w1", 20))]
    other = audit("w2", PartsComputed(5, 0, ((0, 30),)))
    replay = digests_of([audit("x", PartsComputed(5, 0, ((0, 20),)))])
    assert [one.is_same for one in compared(digests_of(again), replay)] == [True]
    (found,) = compared(digests_of([*again, other]), replay)
    assert (found.is_same, found.in_run) == (False, (20, 30))


def test_loops_of_one_step_are_told_apart_and_what_the_run_has_not_is_left_out() -> None:
    run = digests_of([audit("w0", PartsComputed(5, 0, ((0, 20),)), PartsComputed(5, 1, ((0, 21),)))])
    replay = digests_of([audit("x", PartsComputed(5, 1, ((0, 20),)), PartsComputed(6, 0, ((0, 1),)))])
    assert [(one.key, one.is_same) for one in compared(run, replay)] == [(PartKey(5, 1, 0), False)]
