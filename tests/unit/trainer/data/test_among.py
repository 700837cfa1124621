"""The parts of a worker's samples that its processes take."""

from __future__ import annotations

import numpy as np
import pytest

from edl.errors import UsageError
from edl.trainer.data.sample_ids import Among


class Mesh:
    ndim = 1
    mesh = np.array([1, 3])

    def get_group(self) -> str:
        return "the group"

    def get_local_rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


def test_parts_are_all_samples_once_and_differ_by_one_at_most() -> None:
    for count in (1, 2, 3, 4):
        for samples in range(10):
            parts = [list(Among(place, count).range(samples)) for place in range(count)]
            assert [one for part in parts for one in part] == list(range(samples))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_mean_of_weighted_means_is_the_mean_of_all() -> None:
    losses = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    for samples in range(1, 6):
        limbs = [Among(place, 3) for place in range(3)]
        means = [float(losses[:samples][limb.part(np.arange(samples))].mean()) for limb in limbs]
        weighted = [mean * limb.weight(samples) for mean, limb in zip(means, limbs, strict=True)]
        assert np.mean(weighted) == pytest.approx(losses[:samples].mean())


def test_a_process_for_which_no_sample_is_left_has_one_that_weighs_nothing() -> None:
    last = Among(1, 2)
    assert last.part(np.array([7])).tolist() == [7]
    assert last.weight(1) == 0.0


def test_all_processes_make_as_many_microbatches_as_the_largest_part_needs() -> None:
    for count in (1, 2, 3):
        for samples in range(1, 20):
            for most in range(1, 8):
                limbs = [Among(place, count) for place in range(count)]
                mine = [len(limb.part(np.arange(samples))) for limb in limbs]
                cut = [limb.microbatches(samples, own, most) for limb, own in zip(limbs, mine, strict=True)]
                assert len({*map(len, cut)}) == 1
                assert [sum(parts) for parts in cut] == mine
                assert max(max(parts) for parts in cut) <= most
    assert Among().microbatches(0, 7, 3) == (3, 2, 2), "of a batch that is not this step's samples"
    assert Among().microbatches(32, 7, 3) == (3, 2, 2), "of a piece of them"


def test_an_even_part_weighs_one() -> None:
    assert Among(1, 2).weight(8) == 1.0
    assert Among().weight(7) == 1.0
    assert Among(1, 2).weight(0) == 1.0


def test_a_mesh_of_one_dimension_tells_the_place() -> None:
    assert Among.of(Mesh()) == Among(1, 2, "the group", frozenset({1, 3}))
    assert Among.of(None) == Among()


def test_what_is_no_dimension_of_a_mesh_is_refused() -> None:
    for wrong in (2, "shard", type("Mesh", (Mesh,), {"ndim": 2})()):
        with pytest.raises(UsageError, match="one dimension of a mesh"):
            Among.of(wrong)


def test_batches_that_do_not_divide_are_refused() -> None:
    Among(0, 2).check(8)
    with pytest.raises(UsageError, match="multiple of 2"):
        Among(0, 2).check(7)
