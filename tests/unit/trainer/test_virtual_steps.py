"""`edl.trainer.virtual_steps`: which parts of a step a worker computes, their seeds, and the loop over them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from edl.errors import UsageError
from edl.protocol.data_nouns import ITEMS, DataSpec, Lease, Range, held_by
from edl.trainer.recomputed_parts import UNCHECKED, StepTrial
from edl.trainer.value_tree import Arrays
from edl.trainer.virtual_steps import (
    AFTER,
    LoadedParts,
    Scales,
    VirtualParts,
    VirtualSteps,
    cut_rows,
    differences,
    instructions,
    loads,
    machine,
    nowhere,
    parts_of,
    rehearsed,
    stand_ins,
)

SPEC = DataSpec(total=27, epochs=2, batch=4, seed=7, virtual=4)


def lease_of(rank: int, size: int, after_step: int = 10, start: int = 0) -> Lease:
    steps = -(-(27 - start) // 16)
    return Lease(1, after_step, steps, 16, (Range(1, start, 27),), 1, True, (*held_by(rank, size, 4), 4))


def computed(step: int, size: int, **lease: Any) -> dict[int, tuple[int, int, float, int]]:
    """Of each virtual worker: the first position, how many, the weight, and the seed."""
    found = {}
    for rank in range(size):
        own = lease_of(rank, size, **lease)
        parts = parts_of(SPEC, own, step)
        first = own.between(step - 1, step)[0].start if parts.parts else 0
        for one in parts.parts:
            seed = parts.place.seed_of(one.virtual, 0)
            found[one.virtual] = (first + one.start, one.stop - one.start, one.weight, seed)
    return found


@pytest.mark.parametrize("step", [11, 12])
def test_parts_weights_and_seeds_do_not_depend_on_the_number_of_workers(step: int) -> None:
    alone = computed(step, 1)
    assert all(computed(step, size) == alone for size in (2, 3, 4))
    assert sum(weight for _, _, weight, _ in alone.values()) == pytest.approx(4)
    assert len({seed for *_, seed in alone.values()}) == len(alone)


def test_nor_on_the_step_that_a_life_counts() -> None:
    assert computed(2, 2, after_step=1, start=16) == computed(12, 2)


def test_a_short_step_weighs_its_parts_by_samples() -> None:
    assert {virtual: (at, rows) for virtual, (at, rows, *_) in computed(12, 1).items()} == {
        0: (16, 4),
        1: (20, 4),
        2: (24, 3),
    }
    assert computed(12, 1)[2][2] == 3 * 4 / 11


def test_seeds_differ_by_step_loop_and_seed() -> None:
    place = parts_of(SPEC, lease_of(0, 1), 11).place
    others = [place._replace(epoch=0), place._replace(number=1), place._replace(seed=8)]
    seeds = [place.seed_of(0, 0), place.seed_of(0, 1), *(one.seed_of(0, 0) for one in others)]
    assert len(set(seeds)) == len(seeds)


def test_each_virtual_workers_samples_are_loaded_by_a_seed_of_its_own_whoever_loads_them() -> None:
    def loaded(size: int) -> list[tuple[Any, list[int], int]]:
        found = []
        for rank in range(size):
            parts = parts_of(SPEC, lease_of(rank, size), 11)
            ids = np.arange(4 * parts.parts[0].virtual, 16)
            found += [(one.key, one.ids.tolist(), one.seed) for one in loads(parts, ids)]
        return found

    alone = loaded(1)
    assert loaded(2) == loaded(3) == alone
    assert len({seed for *_, seed in alone}) == 4
    assert not {seed for *_, seed in alone} & {seed for *_, seed in computed(11, 1).values()}


class Sums:
    """Takes note of what it is told. `agains`: the first reductions are to be computed again."""

    def __init__(self, agains: int = 0) -> None:
        self.told: list[Any] = []
        self._agains = agains

    def begin(self, scales: Scales, virtual: int, trial: StepTrial = UNCHECKED) -> None:
        self.told.append(("begin", virtual))

    def begin_part(self, seed: int) -> None:
        self.told.append(("part", seed))

    def take(self, weight: float, *, digest: bool) -> int:
        self.told.append(("take", weight))
        return int(100 * weight) if digest else 0

    def reduce(self, computed: int) -> bool:
        self.told.append(("reduce", computed))
        self._agains -= 1
        return self._agains >= 0

    def seed(self, seed: int) -> None:
        self.told.append(("seed", seed))

    def conditions(self) -> dict[str, str]:
        return {}


def steps_with(sums: Sums, parts: Callable[[Any], VirtualParts]) -> VirtualSteps:
    port = SimpleNamespace(
        parts_of_step=parts,
        adding_up=contextlib.nullcontext,
        step_of_all_lives=lambda: 11,
        tell_bits=sums.told.append,
        keeps_digests=False,
        corrupt_since=0,
        trial=lambda batch, parts: UNCHECKED,
    )
    return VirtualSteps(sums, Arrays(), port, 4)


def test_the_loop_goes_through_the_same_parts_again_where_a_scale_did_not_suffice() -> None:
    sums = Sums(agains=1)
    steps = steps_with(sums, lambda _: parts_of(SPEC, lease_of(0, 2), 11))
    parts = [(part.tolist(), share) for part, share in steps.parts(np.arange(8), None)]
    assert parts == 2 * [([0, 1, 2, 3], 1.0), ([4, 5, 6, 7], 1.0)]
    *rounds, (last, _), bits = sums.told
    assert rounds[: len(rounds) // 2] == rounds[len(rounds) // 2 :]
    assert (last, bits) == ("seed", "held")


def test_a_void_mini_batch_comes_again_with_its_seeds_and_scales_and_a_second_loop_of_a_step_has_others() -> None:
    sums = Sums()
    steps = steps_with(sums, lambda _: parts_of(SPEC, lease_of(0, 4), 11))

    def seeds() -> list[int]:
        sums.told.clear()
        list(steps.parts(np.arange(4), None))
        return [one[1] for one in sums.told if one[0] == "part"]

    first = seeds()
    steps.scales.exponents["weight"] = 3  # as the sum has it
    assert seeds() != first
    assert steps.scales.exponents == {"weight": 3}
    steps.begin_anew()
    assert seeds() == first
    assert steps.scales.exponents == {}


def test_scales_of_a_step_hold_until_the_next_one_on_workers_that_have_begun_it_and_others() -> None:
    step = 5
    begun, other = Scales(step=lambda: step), Scales(step=lambda: step)
    for one in (begun, other):
        one.begin_step()
        one.exponents = {"weight": 2}
    step = 6
    begun.begin_step()
    begun.exponents = {"weight": 9}  # and then it was void
    newcomer = Scales(step=lambda: step)
    newcomer.load_state_dict(begun.state_dict())
    for one in (begun, other, newcomer):
        one.begin_step()
        assert one.exponents == {"weight": 2}


def test_a_part_that_memory_does_not_hold_is_cut_once_more() -> None:
    steps = steps_with(Sums(), lambda _: parts_of(SPEC, lease_of(3, 4), 11))
    assert [(part.tolist(), share) for part, share in steps.parts(np.arange(4), 3)] == [([0, 1], 0.5), ([2, 3], 0.5)]


def test_so_is_one_that_a_loader_has_loaded() -> None:
    steps = steps_with(Sums(), lambda _: parts_of(SPEC, lease_of(3, 4), 11))
    loaded = LoadedParts({3: {"x": np.arange(4)}}, 4)
    assert [(part["x"].tolist(), share) for part, share in steps.parts(loaded, 3)] == [([0, 1], 0.5), ([2, 3], 0.5)]
    assert [(part["x"].tolist(), share) for part, share in steps.parts(loaded, None)] == [([0, 1, 2, 3], 1.0)]


def test_numbers_before_the_parts_begin_alike_on_all_workers_and_each_time() -> None:
    def parts_for(rank: int) -> Callable[[Any], VirtualParts]:
        return lambda _: parts_of(SPEC, lease_of(rank, 4), 11)

    sums = Sums()
    for rank in (0, 3, 3):
        steps_with(sums, parts_for(rank)).begin_numbers(np.arange(4))
    (first,) = set(sums.told)
    place = parts_of(SPEC, lease_of(0, 4), 11).place
    assert first[0] == "seed"
    assert first[1] not in {place.seed_of(virtual, call) for virtual in range(-1, 4) for call in range(-1, 2)}


def test_numbers_of_an_evaluation_are_those_of_its_batch_and_of_the_step_before_it() -> None:
    sums = Sums()
    steps = steps_with(sums, lambda _: parts_of(SPEC, lease_of(0, 4), 11))
    for first in (0, 16, AFTER, 0):
        steps.begin_evaluated(first)
    seeds = [seed for _, seed in sums.told]
    assert seeds[0] == seeds[3] and len(set(seeds)) == 3
    places = [parts_of(SPEC, lease_of(0, 4), step).place for step in (11, 12)]
    assert not set(seeds) & {place.seed_of(virtual, 0) for place in places for virtual in (-2, -1, 0)}


def test_random_numbers_around_the_parts_are_also_those_of_a_worker_that_has_no_samples_in_the_step() -> None:
    """As noise that a script adds to gradients, in an epoch's short last step."""
    parts = parts_of(SPEC, lease_of(0, 4), 11)
    seeds = []
    for found in (parts, stand_ins(SPEC, parts, 3)):
        sums = Sums()
        steps = steps_with(sums, lambda _, found=found: found)  # type: ignore[misc]
        steps.begin_numbers(np.arange(4))
        assert len([*steps.parts(np.arange(found.rows), None)]) == 1
        seeds.append([told for told in sums.told if told[0] == "seed"])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 2


def test_stand_ins_and_rehearsals_are_one_part() -> None:
    sums = Sums()
    for found in (stand_ins(SPEC, VirtualParts(nowhere(SPEC), 3, (), 0, 16), 5), rehearsed(SPEC, 5)):

        def given(_: Any, parts: VirtualParts = found) -> VirtualParts:
            return parts

        rows = [len(part) for part, _ in steps_with(sums, given).parts(np.arange(5), None)]
        assert rows == [5]
    assert [one for one in sums.told if one[0] == "take"] == [("take", 0.0), ("take", 4.0)]


def test_rows_are_cut_in_whatever_a_mini_batch_is() -> None:
    rows = np.arange(8)
    batch = {"x": [rows, rows * 2], "ids": list("abcdefgh")}
    found = cut_rows(batch, 2, 4, 8, Arrays())
    assert [one.tolist() for one in found["x"]] == [[2, 3], [4, 6]]
    assert found["ids"] == ["c", "d"]
    assert not np.shares_memory(found["x"][0], rows)
    with pytest.raises(UsageError, match="has 7 rows, and this worker has 8"):
        cut_rows(rows[:7], 0, 4, 8, Arrays())


def test_arrays_of_a_stream_are_samples_and_no_columns() -> None:
    packed = [np.full(512, number) for number in range(8)]
    found = cut_rows(packed, 2, 4, 8, Arrays())
    assert [one[0] for one in found] == [2, 3]
    assert len(found[0]) == 512
    named = [{"input_ids": one} for one in packed]
    assert cut_rows(named, 2, 4, 8, Arrays()) == named[2:4]
    with pytest.raises(UsageError, match="may be samples or columns: make one array") as error:
        cut_rows([one[:8] for one in packed], 2, 4, 8, Arrays())
    assert "\n" not in str(error.value)
    columns = cut_rows([np.arange(2), np.arange(2)], 0, 1, 2, Arrays())
    assert [len(one) for one in columns] == [1, 1]


def test_a_mini_batch_of_parts_is_used_by_its_parts_alone() -> None:
    batch = LoadedParts({0: "a"}, 4)
    assert len(batch) == 4
    for use in (lambda: list(batch), lambda: batch[0], lambda: batch.to("cpu")):
        with pytest.raises(UsageError, match=r"edl\.microbatches\(batch\)"):
            use()


def test_conditions_of_the_job_go_on_and_a_worker_in_other_ones_says_so(caplog) -> None:
    ours, theirs = Scales({"torch": "2.1"}, lambda: 9), Scales({"torch": "2.0"})
    theirs.exponents = {"weight": 3}
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict() == theirs.state_dict()
    assert "bits: not held from step 9 on: torch is 2.1 here, and was 2.0" in caplog.text
    ours.load_state_dict(theirs.state_dict())
    assert len(caplog.records) == 1
    assert differences({"a": "1"}, {"a": "1"}) == ""


def test_all_workers_hear_since_when_and_why_bits_are_not_held() -> None:
    first, second = Scales({"threads": "1", "torch": "2"}, lambda: 9), Scales({"threads": "1", "torch": "3"}, lambda: 9)
    second.load_state_dict(first.state_dict())
    assert [one.bits for one in (first, second)] == ["held", "held"]
    heard = [sum(pair) for pair in zip(first.differing, second.differing, strict=True)]
    for one in (first, second):
        one.hear_differing(heard)
        assert one.bits == "not held since step 9: a worker with another torch"
        one.hear_differing([5, 0])
    assert first.state_dict() == second.state_dict()
    later = Scales({"threads": "1", "torch": "2", "GPU": "none"})
    later.load_state_dict(first.state_dict())
    assert later.bits == first.bits, "what comes after is not what it would have been"


def test_of_a_stream_a_shard_is_one_virtual_worker_s_and_each_step_has_seeds_of_its_own() -> None:
    spec = DataSpec(total=4 * ITEMS, epochs=1, batch=2, shards=4, virtual=2)
    first, second = (Range(0, 0, 2), Range(0, ITEMS, ITEMS + 2)), (Range(0, 2, 4), Range(0, ITEMS + 2, ITEMS + 4))
    whole = Lease(1, 0, 2, 4, (*first, *second), part=(0, 2, 2), by_shard=True)
    places = [parts_of(spec, whole, step).place for step in (1, 2)]
    assert len({place.seed_of(0, 0) for place in places}) == 2
    # The first shard has one item left, and goes on with the third; the second shard has one, and is the last.
    ends = (Range(0, 4, 5), Range(0, 2 * ITEMS, 2 * ITEMS + 1), Range(0, ITEMS + 4, ITEMS + 5))
    short = Lease(2, 2, 1, 4, ends, part=(0, 2, 2), by_shard=True)
    assert [(one.start, one.stop, one.weight) for one in parts_of(spec, short, 3).parts] == [
        (0, 2, 4 / 3),
        (2, 3, 2 / 3),
    ]
    alone = msgspec.structs.replace(short, part=(1, 2, 2))
    assert (alone.between(2, 3), alone.share(3)) == (ends[2:], 1)


X86 = "processor : 0\nmodel name\t: Xeon\nflags\t\t: fpu sse4_2 {}fma md_clear\nprocessor : 1\nmodel name\t: Xeon\n"
ARM = "processor : 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: {}\n"


@pytest.mark.parametrize(("told", "one", "other"), [(X86, "avx2 ", ""), (ARM, "0xd0c", "0xd40")])
def test_a_processor_with_other_instructions_is_another_one_though_it_has_the_same_name(
    tmp_path, told: str, one: str, other: str
) -> None:
    found = []
    for number, kind in enumerate((one, one, other)):
        (cpuinfo := tmp_path / str(number)).write_text(told.format(kind))
        found.append((machine(cpuinfo), instructions(cpuinfo)))
    assert found[0] == found[1] != found[2]
    assert found[0][0] == found[2][0]
    assert "md_clear" not in found[0][1], "systems tell more of it or less"
    assert instructions(tmp_path / "none") == ""
    of_job = steps_with(Sums(), lambda _: parts_of(SPEC, lease_of(0, 4), 11)).scales.state_dict()["conditions"]
    assert of_job["set of instructions"] == instructions() and of_job["machine"] == machine()


def test_the_conditions_of_the_job_are_those_of_its_first_step() -> None:
    """A script may set its threads after it has joined; a batch is known with the first step."""
    step = 1
    scales = Scales({"threads": "2", "batch": ""}, lambda: step)
    scales.begin_step({"threads": "1", "batch": "32"})
    assert scales.differing == [0, 0]
    step = 2
    scales.begin_step({"threads": "1", "batch": "16"})
    assert scales.differing == [1, 0]
    resumed = Scales({"threads": "1", "batch": ""}, lambda: 3)
    resumed.load_state_dict(scales.state_dict())
    assert resumed.differing == [0, 0]
    resumed.begin_step({"threads": "1", "batch": "16"})
    assert resumed.differing == [1, 0]
    assert Scales({"threads": "1"}).marks == scales.marks[1:]
    assert Scales({"threads": "2"}).marks != scales.marks[1:]
