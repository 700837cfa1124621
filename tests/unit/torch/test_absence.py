"""Gradients that no worker has: the sum of what workers contribute tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edl.torch.absence import AbsentGradients, are_absent, blank, no_rows, nothing_like, takes_gradients
from edl.torch.tensor_ring import scale, scaled_rows

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


def parameter(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(3, 2, dtype=dtype))


def added(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As a ring adds: number by number."""
    if not one.is_complex():
        return one + other
    return torch.view_as_complex(torch.view_as_real(one) + torch.view_as_real(other))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("factor", [1.0, 0.5, 1 / 3])
def test_nothing_stays_nothing_whatever_it_is_summed_up_with_of_its_kind(dtype: torch.dtype, factor: float) -> None:
    total = nothing_like(parameter(dtype))
    scale(total, factor)
    assert are_absent([added(total, nothing_like(parameter(dtype)))]) == [True]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_gradient_of_any_worker_is_there_be_it_zero_and_stays_what_it_is(dtype: torch.dtype) -> None:
    zeros, one = torch.zeros(3, 2, dtype=dtype), torch.zeros(3, 2, dtype=dtype)
    one[2, 1] = 3
    sums = [added(nothing_like(parameter(dtype)), gradient) for gradient in (zeros, one)]
    assert are_absent(sums) == [False, False]
    assert torch.equal(sums[1], one)


def test_rows_of_no_worker_are_none() -> None:
    rows = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[2.0, 3.0]]), (3, 2), check_invariants=True)
    none = no_rows(rows.shape, rows.coalesce().values(), 1)
    assert are_absent([(none + none).coalesce(), (none + rows).coalesce()]) == [True, False]
    assert torch.equal((none + rows).to_dense(), rows.to_dense())


@pytest.mark.parametrize("dtype", TYPES)
def test_what_a_worker_without_samples_computed_is_nothing(dtype: torch.dtype) -> None:
    gradient = torch.full((3, 2), float("nan"), dtype=dtype)
    scale(gradient, 0.0)
    assert are_absent([gradient]) == [True]
    rows = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[float("nan")]]), (3, 1), check_invariants=True)
    assert not scaled_rows(rows, 0.0).coalesce().values().numel()


def test_nothing_has_the_layout_of_what_others_have() -> None:
    known, one = AbsentGradients(), parameter()
    assert not known.nothing(one).is_sparse
    known.know_sparse(one)
    nothing = known.nothing(one)
    assert nothing.is_sparse and not nothing.coalesce().values().numel() and nothing.shape == one.shape
    assert not known.nothing(one).requires_grad


def test_in_place_it_stays_the_same_tensor() -> None:
    gradient = torch.ones(2)
    where = gradient.data_ptr()
    blank(gradient)
    assert gradient.data_ptr() == where and are_absent([gradient]) == [True]


@pytest.mark.parametrize(
    ("tensor", "takes"),
    [
        (torch.nn.Parameter(torch.ones(1)), True),
        (torch.nn.Parameter(torch.ones(1), requires_grad=False), True),
        (torch.nn.Parameter(torch.ones(1, dtype=torch.int8), requires_grad=False), False),
    ],
)
def test_which_may_take_a_gradient_once_they_are_thawed(tensor: Any, takes: bool) -> None:
    assert takes_gradients(tensor) is takes
