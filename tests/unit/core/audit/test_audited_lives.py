"""The audit of a job that died and was resumed: which life counts up to where, what is said of it, and the files."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path

import msgspec
import pytest

from edl.cli import main
from edl.core.audit.kept_steps import WorkerAudit
from edl.core.audit.sample_account import Account, LifeAccount, Offender, Portion, account
from edl.core.data.permutation import samples_at
from edl.errors import ConfigError, UsageError
from edl.protocol.assignment import Orders, Place, Verdict
from edl.protocol.audit_lines import (
    BatchGiven,
    Began,
    Committed,
    DataEnded,
    DataOpened,
    LifeAudited,
    Line,
    Sat,
    encoded,
)
from edl.protocol.checkpoint_record import Origin
from edl.protocol.data_nouns import DataSpec, Range
from edl.trainer.data.audit_files import AuditFile, check_free, read
from edl.trainer.first_state import life_begun

SPEC = DataSpec(total=24, epochs=1, batch=2, shuffle=True, seed=3)


def given(step: int, start: int, stop: int, epoch: int = 0) -> BatchGiven:
    ids = samples_at(SPEC, Range(epoch, start, stop)).astype("<i8").tobytes()
    return BatchGiven(step, epoch, (Range(epoch, start, stop),), zlib.crc32(ids))


def life(number: int, places: range, *, parent: int = 0, after: int = 0, ends: bool = False) -> WorkerAudit:
    """One worker, that trains two positions a step, the first of each in `places`."""
    lines: list[Line] = [DataOpened(SPEC), Sat(1, 0, 0, 1)]
    for step, start in enumerate(places, 1):
        lines += [given(step, start, start + 2), Committed(1, step, 1.0)]
    lines += [DataEnded(1, len(places))] if ends else []
    begun = LifeAudited(number, parent, after, "j" if parent else "")
    return WorkerAudit(f"w{number}", "j", tuple(lines), begun)


def job() -> list[WorkerAudit]:
    """Of 12 steps: five, of which three were saved; two, of which none was; four, all saved; the rest of five."""
    return [
        life(1, range(0, 10, 2)),
        life(2, range(6, 10, 2), parent=1, after=3),
        life(3, range(6, 14, 2), parent=1, after=3),
        life(4, range(14, 24, 2), parent=3, after=4, ends=True),
    ]


def sample(position: int) -> int:
    return int(samples_at(SPEC, Range(0, position, position + 1))[0])


def told(found: Account) -> list[tuple[int, int, int, int | None, int, int]]:
    return [(one.life, one.parent, one.parent_step, one.base, one.steps, one.kept) for one in found.lives]


def test_all_lives_of_a_job_have_trained_each_sample_once() -> None:
    found = account(job())
    assert found.clean
    assert told(found) == [(1, 0, 0, 0, 5, 3), (2, 1, 3, None, 2, 0), (3, 1, 3, 3, 4, 4), (4, 3, 4, 7, 5, 5)]
    assert (found.steps, found.updates, found.workers, found.generations) == (12, 12, 4, 4)
    assert (found.void_steps, found.again) == (4, 8)
    assert [(one.over, one.trained, one.repeated) for one in found.epochs] == [(True, 24, 0)]


def test_what_was_given_for_a_step_that_was_never_made_is_not_trained_again() -> None:
    lives = job()
    lives[0] = dataclasses.replace(lives[0], lines=(*lives[0].lines, given(6, 10, 12)))  # it was killed in it
    assert account(lives) == account(job())


def test_the_order_of_files_does_not_matter() -> None:
    assert account(job()[::-1]) == account(job())


def test_a_life_that_begins_from_an_earlier_step_than_it_says_repeats() -> None:
    lives = job()
    lives[3] = life(4, range(12, 24, 2), parent=3, after=4, ends=True)
    (epoch,) = account(lives).epochs
    assert (epoch.repeated, epoch.lost) == (2, 0)
    assert epoch.first_repeated[0] == Offender(sample(12), (Portion(4, "w3", 3), Portion(1, "w4", 4)))


def test_a_life_that_begins_from_a_later_step_than_it_says_loses() -> None:
    lives = job()
    lives[3] = life(4, range(16, 24, 2), parent=3, after=4, ends=True)
    (epoch,) = account(lives).epochs
    assert (epoch.repeated, epoch.lost) == (0, 2)


def test_a_life_that_says_another_step_than_it_began_with_is_seen() -> None:
    for step, lost, repeated in ((3, 2, 0), (2, 4, 0)):
        lives = job()
        lives[3] = life(4, range(14, 24, 2), parent=3, after=step, ends=True)
        found = account(lives)
        (epoch,) = found.epochs
        assert (epoch.lost, epoch.repeated, found.clean) == (lost, repeated, False)
    then = life(2, range(6, 24, 2), parent=1, after=5, ends=True)
    (epoch,) = account([job()[0], then]).epochs
    assert (epoch.lost, epoch.repeated) == (0, 4)


def test_a_sample_that_is_doubled_in_a_void_step_is_no_fault_and_in_another_is() -> None:
    void, kept = job(), job()
    void[0] = life(1, (0, 2, 4, 0, 0))  # type: ignore[arg-type]
    assert account(void).clean
    kept[0] = life(1, (0, 2, 2, 6, 8))  # type: ignore[arg-type]
    (epoch,) = account(kept).epochs
    assert (epoch.lost, epoch.repeated) == (2, 2)
    assert Portion(3, "w1", 1) in epoch.first_repeated[0].steps


def test_a_lost_sample_is_told_with_the_void_step_that_had_it() -> None:
    lives = job()
    lives[2] = life(3, range(6, 14, 2), parent=1, after=3)
    lives[0] = life(1, range(0, 26, 2)[:5])
    lives[3] = life(4, (16, 18, 20, 22), parent=3, after=4, ends=True)  # type: ignore[arg-type]
    lives[2] = life(3, range(6, 16, 2), parent=1, after=3)
    (epoch,) = account(lives).epochs
    assert epoch.first_lost[0] == Offender(sample(14), (Portion(5, "w3", 3),))


def test_a_life_that_began_anew_counts_alone() -> None:
    lives = [*job(), life(5, range(0, 24, 2), ends=True)]
    found = account(lives)
    assert (found.clean, found.steps, found.void_steps) == (True, 12, 16)
    assert [one.base for one in found.lives] == [None, None, None, None, 0]


def test_a_life_on_other_data_that_was_given_up_does_not_matter() -> None:
    other = msgspec.structs.replace(SPEC, total=30)
    lines = (DataOpened(other), Sat(1, 0, 0, 1), BatchGiven(1, 0, (Range(0, 26, 28),), 0), Committed(1, 1))
    given_up = WorkerAudit("w1", "j", lines, LifeAudited(1))
    assert account([given_up, life(2, range(0, 24, 2), ends=True)]).clean


def test_the_newest_life_may_not_have_begun_to_train() -> None:
    found = account([*job()[:3], WorkerAudit("w5", "j", (), LifeAudited(5, 3, 2, "j"))])
    assert told(found)[-2:] == [(3, 1, 3, 3, 4, 2), (5, 3, 2, 5, 0, 0)]
    (epoch,) = found.epochs
    assert (epoch.trained, epoch.over, found.clean) == (10, False, True)


@pytest.mark.parametrize(
    ("drop", "more", "complaint"),
    [
        (0, [], "life 3 went on from step 3 of life 1, of which there is no audit here: give the folders of all lives"),
        (2, [], "life 4 went on from step 4 of life 3, of which there is no audit"),
        (
            3,
            [life(4, range(2), parent=3, after=9)],
            "step 9 of life 3, whose workers say that it made 4: lines are mis",
        ),
        (3, [life(4, range(2), parent=4, after=1)], "step 1 of life 4, which was not before it"),
        (
            3,
            [life(4, range(2), parent=3, after=4), life(4, range(2), parent=3, after=3)],
            "life 4 do not agree on what",
        ),
        (
            3,
            [WorkerAudit("x", "j", (DataOpened(SPEC),), LifeAudited(4, 1, 2, "k"))],
            "of job k: what became of its sam",
        ),
    ],
)
def test_lives_that_do_not_fit_together_are_refused(drop: int, more: list[WorkerAudit], complaint: str) -> None:
    lives = job()
    del lives[drop]
    with pytest.raises(UsageError, match=complaint):
        account([*lives, *more])


def test_a_life_that_nothing_follows_from_may_be_missing() -> None:
    lives = job()
    del lives[1]
    assert account(lives).clean


# ------------------------------------------------------------------------------------------- files and the command


def written(folder: Path, audits: list[WorkerAudit]) -> Path:
    folder.mkdir(exist_ok=True)
    for one in audits:
        text = b"".join(map(encoded, [Began(2, one.job, one.worker, one.begun), *one.lines]))
        (folder / f"audit-{one.worker}.jsonl").write_bytes(text)
    return folder


def test_verify_tells_of_all_lives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path / "first", job()[:2])
    then = written(tmp_path / "then", job()[2:])
    assert main(["data", "verify", str(first), str(then)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job j: 12 steps, 4 lives, 4 workers and 4 generations in all",
        "life  workers  goes on from                steps  kept",
        "1     1        -                           5      3",
        "2     1        step 3 of life 1            2      0",
        "3     1        step 3 of life 1            4      4",
        "4     1        step 4 of life 3, 7 in all  5      5",
        "trained again, as later lives went on from before: 4 steps, 8 samples",
        "12 updates, 0 steps weighed nothing",
        "epoch  total  trained  lost  repeated",
        "0      24     24       0     0",
        "0 lost, 0 repeated",
    ]
    assert main(["data", "verify", str(first), str(then), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["void_steps"], found["again"]) == (True, 4, 8)
    assert found["lives"][3] == {**msgspec.to_builtins(LifeAccount(4, 3, 4, 7, 5, 5, 1, 1))}
    assert main(["data", "verify", str(then)]) == 2
    assert "no audit here: give the folders of all lives" in capsys.readouterr().err


def test_a_step_of_a_later_life_is_named_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lives = job()
    lives[3] = life(4, range(12, 24, 2), parent=3, after=4, ends=True)
    assert main(["data", "verify", str(written(tmp_path, lives))]) == 1
    out = capsys.readouterr().out
    assert f"sample {sample(12)} is repeated: w3 in step 4 of life 3, w4 in step 1 of life 4" in out


def test_a_worker_writes_which_life_it_is_of(tmp_path: Path) -> None:
    """As its leader says: another line may have begun the job, with a choice of its own."""
    known: list[Orders] = []
    audit = AuditFile(tmp_path, "mnist", "w1", lambda: life_begun(known[-1] if known else None))
    assert read(tmp_path) == []  # nothing is known of it yet
    path = "/somewhere/else/mnist/0002-000012-000000001200/"
    known.append(Orders(1, 1, Verdict.STAY, "", 0, 0, 2, False, None, (), origin=Origin(path, 1200, 3, 0), life=3))
    audit.sat(Place(1, 0, 1, "w1"), 0)
    audit.ended(1, 9)
    begun = LifeAudited(3, 2, 1200, "mnist")
    assert [(one.begun, len(one.lines)) for one in read(tmp_path)] == [(begun, 2)]
    known.append(msgspec.structs.replace(known[0], origin=None))
    assert life_begun(known[-1]) == LifeAudited(3)
    assert life_begun(None) == LifeAudited()


def test_a_file_of_the_version_without_lives_is_read(tmp_path: Path) -> None:
    (tmp_path / "audit-w.jsonl").write_text('["began",1,"j","w"]\n')
    assert read(tmp_path) == [WorkerAudit("w", "j", ())]
    (tmp_path / "audit-w.jsonl").write_text('["began",4,"j","w"]\n')
    with pytest.raises(UsageError, match="is no audit of this version of edl"):
        read(tmp_path)


def test_the_lives_of_a_job_share_a_folder_and_no_others_do(tmp_path: Path, capsys, monkeypatch) -> None:
    folder = written(tmp_path / "audit", job())
    (folder / "audit-x.jsonl").touch()  # it died before its first line
    check_free(folder, "j")
    for name in ("k", None):
        with pytest.raises(ConfigError, match="has the audit of another run in it"):
            check_free(folder, name)
    (folder / "audit-y.jsonl").write_text("nothing of ours\n")
    with pytest.raises(ConfigError, match=r"another run in it \(audit-y\.jsonl"):
        check_free(folder, "j")
    (folder / "audit-y.jsonl").unlink()
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    line = ["run", "--audit", str(folder), "--checkpoint", str(tmp_path / "ck")]
    assert main([*line, "--job", "k", "true"]) == 2
    assert "has the audit of another run in it" in capsys.readouterr().err
    assert not (tmp_path / "ck").exists()
