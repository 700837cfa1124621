"""GPUs that can be seen, and those that a worker of several processes gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.host.visible_gpus import choose_gpus, count_gpus, told_of, visible_gpus

FOUR = ("0", "1", "2", "3")


def test_the_driver_has_a_folder_for_each_gpu(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert count_gpus(tmp_path / "gpus") == 2
    assert count_gpus(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (None, ("0", "1")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2,3", ("2", "3")),
        (" 2, 3 ", ("2", "3")),
        ("4,-1,5", ("4",)),
        ("GPU-1f,MIG-2e", ("GPU-1f", "MIG-2e")),
    ],
)
def test_a_program_sees_what_its_variable_says_up_to_the_first_name_of_none(
    told: str | None, seen: tuple[str, ...]
) -> None:
    assert visible_gpus({} if told is None else {"CUDA_VISIBLE_DEVICES": told}, 2) == seen


def test_workers_take_gpus_of_their_own_and_a_replacement_those_of_the_one_that_went() -> None:
    assert choose_gpus(FOUR, 2, []) == ("0", "1")
    assert choose_gpus(FOUR, 2, [("0", "1")]) == ("2", "3")
    assert choose_gpus(FOUR, 2, [("2", "3")]) == ("0", "1")
    assert choose_gpus(("7", "5", "3"), 2, []) == ("7", "5")


def test_workers_beyond_the_gpus_share_those_of_the_fewest() -> None:
    taken = [("0", "1"), ("2", "3")]
    assert choose_gpus(FOUR, 2, taken) == ("0", "1")
    assert choose_gpus(FOUR, 2, [*taken, ("0", "1")]) == ("2", "3")
    assert choose_gpus(FOUR, 2, [*taken, ()]) == ("0", "1")
    assert told_of(FOUR, 2, taken).startswith("one more worker takes GPUs 0,1, which another worker has: 4 of")


def test_a_machine_with_fewer_than_a_worker_has_processes_gives_none() -> None:
    assert choose_gpus(("0",), 2, []) == ()
    assert told_of(("0",), 2, []).startswith("CUDA_VISIBLE_DEVICES stays as it is: 1 of")


@pytest.mark.parametrize(("visible", "taken"), [((), []), ((), [()]), (FOUR, []), (FOUR, [("0", "1")])])
def test_nothing_is_said_of_workers_with_gpus_of_their_own_nor_where_there_are_none(
    visible: tuple[str, ...], taken: list[tuple[str, ...]]
) -> None:
    assert told_of(visible, 2, taken) == ""
