"""`edl.torch.part_sums`: gradients and statistics of parts, added up by any number of workers, have the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from edl.core.worker.fixed_point import units
from edl.errors import RingBroken, UsageError
from edl.torch.part_sums import TorchPartSums
from edl.trainer.recomputed_parts import StepTrial
from edl.trainer.virtual_steps import Scales

VIRTUAL = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several members are threads of this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class SumRing:
    """A ring of threads. `breaks`: no sum comes to its end."""

    def __init__(self, size: int, breaks: bool = False) -> None:
        self.size, self.breaks = size, breaks
        self.sums = 0
        self._barrier = threading.Barrier(size, timeout=20)
        self._lock = threading.Lock()
        self._here: list[Any] = []

    def _all(self, mine: Any) -> list[Any]:
        with self._lock:
            self._here.append(mine)
        self._barrier.wait()
        found = list(self._here)
        if self._barrier.wait() == 0:
            self._here.clear()
        self._barrier.wait()
        return found

    def sum_begun(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        if self.breaks:
            raise RingBroken("a peer is gone")
        total = sum(self._all(tensor.clone()))
        self.sums += 1
        return lambda: tensor.copy_(total)

    def largest(self, values: Sequence[int]) -> list[int]:
        return [max(one) for one in zip(*self._all(list(values)), strict=True)]

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)


class Seat:
    def __init__(self) -> None:
        self.voided = ""

    def step(self) -> int:
        return 1

    def before_reduce(self) -> None: ...

    def void(self, error: BaseException) -> None:
        self.voided = str(error)


def model() -> nn.Sequential:
    torch.manual_seed(3)
    found = nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))
    found.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return found


def last(net: nn.Sequential) -> Any:
    return net[3]


def sums_of(net: nn.Module, ring: SumRing) -> tuple[TorchPartSums, Seat]:
    seat = Seat()
    named = lambda: iter([*net.named_parameters(), *net.named_buffers()])  # noqa: E731
    reducers: Any = [SimpleNamespace(begin_parts=lambda _used: net.zero_grad(), note_summed=lambda: None)]
    sums: Any = TorchPartSums(seat, ring, reducers, named, lambda: {id(one) for one in net.buffers()})  # type: ignore[arg-type]
    return sums, seat


Loss = Callable[[nn.Sequential, int, int], torch.Tensor]


def usual(net: nn.Sequential, step: int, virtual: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(100 * step + virtual)
    scale = 10.0 ** (virtual - 2 + (5 if step == 2 else 0))  # gradients of many sizes, and larger ones all at once
    return scale * net(torch.randn(4, 5, generator=drawn)).square().mean()


def trained(shares: Sequence[Sequence[Sequence[int]]], loss: Loss = usual) -> tuple[list[dict[str, Any]], int]:
    """Train by workers of these shares of virtual workers, step by step; the models of all, and how often parts
    were computed.
    """
    nets = [model() for _ in range(max(map(len, shares)))]
    scales = [Scales() for _ in nets]
    computed = 0
    for step, held in enumerate(shares):
        ring = SumRing(len(held))

        def work(rank: int, virtuals: Sequence[int], step: int = step, ring: SumRing = ring) -> None:
            nonlocal computed
            net = nets[rank]
            sums, _ = sums_of(net, ring)
            again = True
            while again:
                sums.begin(scales[rank], VIRTUAL)
                for virtual in virtuals:
                    sums._put_back()  # and not `begin_part`, which seeds the whole process
                    loss(net, step, virtual).backward()
                    computed += 1
                    sums.take(1.0, digest=False)
                again = sums.reduce(VIRTUAL)
            with torch.no_grad():
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(0.01 * parameter.grad / (1 + parameter.grad.abs()))

        threads = [threading.Thread(target=work, args=(rank, one)) for rank, one in enumerate(held)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for net, scale in zip(nets[len(held) :], scales[len(held) :], strict=True):
            net.load_state_dict(nets[0].state_dict())
            scale.load_state_dict(scales[0].state_dict())
    return [net.state_dict() for net in nets], computed


ALONE = [[range(VIRTUAL)]] * 5


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "shares",
    [
        [[[0, 1, 2], [3, 4, 5]]] * 5,
        [[[5, 1], [4, 0, 3], [2]]] * 5,
        [[[0, 1, 2, 3, 4, 5], []]] * 5,
        [[range(6)], [[3], [0, 1, 2, 4, 5]], [[1, 0], [3, 2], [5, 4]], [range(5, -1, -1)], [[0, 1, 2], [3, 4, 5]]],
    ],
    ids=["halves", "any order", "an idle worker", "changing"],
)
def test_gradients_statistics_and_scales_do_not_depend_on_who_computes(shares) -> None:
    alone = trained(ALONE)[0][0]
    assert int(alone["1.num_batches_tracked"]) == 5
    assert all(same(found, alone) for found in trained(shares)[0])


def test_the_memory_of_a_gradient_is_held_until_the_next_one_is_there() -> None:
    """All at once it would return to the system, and each of its pages would be mapped anew, in each part."""
    net = nn.Linear(5, 3)
    sums, _ = sums_of(net, SumRing(1))
    sums.begin(Scales(), VIRTUAL)
    for _ in range(2):
        net(torch.randn(4, 5)).sum().backward()
        given = {id(one): one.grad for one in net.parameters()}
        sums.take(1.0, digest=False)
        assert all(one.grad is None for one in net.parameters())
        assert sums._used == given


def test_a_sum_in_floating_point_would_depend_on_it() -> None:
    def summed(order: Sequence[int]) -> torch.Tensor:
        net = model()
        for virtual in order:
            usual(net, 0, virtual).backward()
        return last(net).weight.grad.clone()

    assert not torch.equal(summed(range(6)), summed([5, 3, 1, 4, 2, 0]))


def test_sums_are_as_exact_as_floats() -> None:
    net, other = model(), model()
    sums, _ = sums_of(net, SumRing(1))
    scales = Scales()
    again = True
    while again:
        sums.begin(scales, VIRTUAL)
        for virtual in range(VIRTUAL):
            sums._put_back()
            usual(net, 0, virtual).backward()
            sums.take(1.0, digest=False)
        again = sums.reduce(VIRTUAL)
    sum(usual(other, 0, virtual) for virtual in range(VIRTUAL)).div(VIRTUAL).backward()
    for one, exact in zip(net.parameters(), other.parameters(), strict=True):
        if exact.grad is None:
            assert one.grad is None, "no worker has used it"
        else:
            torch.testing.assert_close(one.grad, exact.grad, rtol=1e-5, atol=1e-6 * float(exact.grad.abs().max()))


def test_a_scale_that_does_not_suffice_is_told_to_all_and_the_step_is_computed_again() -> None:
    halves: list[Sequence[Sequence[int]]] = [[[0, 1, 2], [3, 4, 5]]]
    _, once = trained(halves * 2)
    assert once == 3 * VIRTUAL  # the first step, of which no scale is known, twice
    _, again = trained(halves * 3)
    assert again == 5 * VIRTUAL  # and the third, whose gradients are a hundred thousand times as large


@pytest.mark.parametrize(
    ("bad", "seen"), [(float("nan"), torch.isnan), (float("inf"), lambda one: one == float("inf"))]
)
def test_what_is_not_finite_arrives_and_changes_no_scale(bad: float, seen: Callable[[torch.Tensor], Any]) -> None:
    grads, exponents = {}, {}

    def loss(net: nn.Sequential, step: int, virtual: int) -> torch.Tensor:
        if step == 1 and virtual == 4:
            return last(net).bias.sum() * bad + 0 * net(torch.ones(2, 5)).sum()
        return usual(net, 0, virtual)

    net, scales = model(), Scales()
    sums, _ = sums_of(net, SumRing(1))
    for step in range(2):
        again = True
        while again:
            sums.begin(scales, VIRTUAL)
            for virtual in range(VIRTUAL):
                sums._put_back()
                loss(net, step, virtual).backward()
                sums.take(1.0, digest=False)
            again = sums.reduce(VIRTUAL)
        grads[step], exponents[step] = last(net).bias.grad.clone(), dict(scales.exponents)
    assert torch.isfinite(grads[0]).all()
    assert bool(seen(grads[1]).all())
    assert exponents[1]["3.bias"] == exponents[0]["3.bias"]


def test_a_broken_ring_voids_the_step_and_leaves_statistics_as_they_were() -> None:
    net, ring, scales = model(), SumRing(1), Scales()
    sums, seat = sums_of(net, ring)
    before = {name: one.clone() for name, one in net.state_dict().items()}
    while True:
        sums.begin(scales, VIRTUAL)
        usual(net, 0, 0).backward()
        sums.take(1.0, digest=False)
        ring.size, ring.breaks = (2, True) if scales.exponents else (1, False)
        if not sums.reduce(1):
            break
    assert "a peer is gone" in seat.voided
    assert same(net.state_dict(), before)
    assert all(not one.grad.any() for one in net.parameters())


def test_sparse_gradients_are_refused() -> None:
    net = nn.Embedding(5, 3, sparse=True)
    sums, _ = sums_of(net, SumRing(1))
    sums.begin(Scales(), VIRTUAL)
    net(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match="make it dense"):
        sums.take(1.0, digest=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_come_back_in_their_type(dtype: torch.dtype) -> None:
    net, scales = nn.Linear(4, 2).to(dtype), Scales()
    sums, _ = sums_of(net, SumRing(1))
    again = True
    while again:
        sums.begin(scales, 2)
        for value in (1.0, 3.0):
            net(torch.full((1, 4), value, dtype=dtype)).sum().backward()
            sums.take(1.0, digest=False)
        again = sums.reduce(2)
    assert net.weight.grad.dtype is dtype
    assert bool((net.weight.grad == 2).all())


def test_what_lies_between_two_units_goes_to_the_nearer_one() -> None:
    net, scales, unit = nn.Linear(1, 2), Scales(), 0.0
    sums, _ = sums_of(net, SumRing(1))
    for given in ([1.0, 0.0], [1.0, 5.75]):
        again = True
        while again:
            sums.begin(scales, 1)
            unit = 1 / units(scales.exponents.get("bias", 0), 1)
            (net.bias * torch.tensor([given[0], given[1] * unit])).sum().backward()
            sums.take(1.0, digest=False)
            again = sums.reduce(1)
    assert net.bias.grad.tolist() == [1.0, 6 * unit]


class Counting(nn.Module):
    """A model whose forward pass changes a buffer of its own."""

    state: torch.Tensor

    def __init__(self, state: torch.Tensor, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("state", state)
        self._change = change

    def forward(self) -> torch.Tensor:
        self._change(self)
        return self.weight.sum()


def step_of(net: nn.Module, parts: int = 2, virtual: int = 2) -> None:
    """Make a step of so many parts, of so many virtual workers."""
    sums, scales = sums_of(net, SumRing(1))[0], Scales()
    again = True
    while again:
        sums.begin(scales, virtual)
        for _ in range(parts):
            sums.begin_part(1)
            net().backward()
            sums.take(1.0, digest=False)
        again = sums.reduce(parts)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_whole_numbers_of_any_size_move_as_each_part_has_moved_them(dtype: torch.dtype) -> None:
    net = Counting(torch.zeros(2, dtype=dtype), lambda net: net.state.add_(3))
    step_of(net)
    assert net.state.tolist() == [3, 3]


def _move_by(moved: float, net: Counting) -> None:
    net.state.add_(moved)


def test_a_digest_is_of_the_statistics_too() -> None:
    digests = set()
    for moved in (1.0, 2.0):
        net = Counting(torch.zeros(2), partial(_move_by, moved))
        sums, _ = sums_of(net, SumRing(1))
        sums.begin(Scales(), 1)
        sums.begin_part(1)
        net().backward()
        digests.add(sums.take(1.0, digest=True))
    assert len(digests) == 2


def test_in_a_short_step_whole_numbers_move_by_the_mean_of_those_that_compute() -> None:
    net = Counting(torch.zeros(2, dtype=torch.int64), lambda net: net.state.add_(1))
    step_of(net, parts=2, virtual=4)
    assert net.state.tolist() == [1, 1]


def test_a_table_with_nan_that_nothing_changes_is_left_as_it_is() -> None:
    net = Counting(torch.tensor([1.0, float("nan"), 3.0]), lambda _: None)
    step_of(net)
    assert net.state[0] == 1 and net.state[2] == 3


@pytest.mark.parametrize(
    ("state", "change", "told"),
    [
        (torch.zeros(1), lambda net: setattr(net, "state", net.state + 1), "assigns its buffer state anew"),
        (torch.zeros(1, dtype=torch.bool), lambda net: net.state.fill_(True), "changes the flag state"),
        (torch.tensor([float("inf")]), lambda net: net.state.fill_(1.0), "changes state, which is not finite"),
    ],
)
def test_changes_of_buffers_that_have_no_sum_are_refused(state: Any, change: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        step_of(Counting(state, change))


def test_gradients_of_an_earlier_loop_of_a_mini_batch_stay_as_they_were() -> None:
    net, scales = nn.Linear(1, 1), Scales()
    sums, _ = sums_of(net, SumRing(1))
    kept = []
    for factor in (1.0, 4.0):
        again = True
        while again:
            sums.begin(scales, 1)
            (factor * net.bias).sum().backward()
            sums.take(1.0, digest=False)
            again = sums.reduce(1)
        kept.append(net.bias.grad)
    assert [one.item() for one in kept] == [1.0, 4.0]


class Doubting(StepTrial):
    """Asks for so many tries more."""

    def __init__(self, more: int) -> None:
        super().__init__((), 0, 1, lambda _: None)
        self.left = more

    def hear(self, told: Sequence[int], *, finite: bool) -> bool:
        assert finite
        assert list(told) == self.told()
        self.left -= 1
        return self.left >= 0


def test_a_step_that_is_doubted_is_summed_once_more_and_what_was_computed_for_others_is_not_added() -> None:
    net, alone = model(), model()
    found = {}
    for tried, more in ((net, 1), (alone, 0)):
        sums, _ = sums_of(tried, SumRing(1))
        scales, trial, digests, rounds = Scales(), Doubting(more), [], 0
        again = True
        while again:
            rounds += 1
            sums.begin(scales, VIRTUAL, trial)
            for virtual, weight in ((0, 1.0), (1, 0.0)):
                sums._put_back()
                usual(tried, 1, virtual).backward()
                digests.append(sums.take(weight, digest=True))
            again = sums.reduce(VIRTUAL)
        assert rounds == 2 + more  # the first has no scales
        assert len(set(digests)) == 2
        assert digests[:2] == digests[2:4]
        found[more] = [one.grad.tolist() for one in tried.parameters() if one.grad is not None]
    assert found[0] == found[1]
    sums, _ = sums_of(alone, SumRing(1))
    scales = Scales()
    for _ in range(2):
        sums.begin(scales, VIRTUAL)
        usual(alone, 1, 0).backward()
        sums.take(1.0, digest=False)
        sums.reduce(VIRTUAL)
    only = [one.grad.tolist() for one in alone.parameters() if one.grad is not None]
    assert only == found[0]


def test_which_kernels_pytorch_has_chosen_is_a_condition_of_bits() -> None:
    sums, _ = sums_of(model(), SumRing(1))
    assert sums.conditions()["choice of kernels"] == torch.backends.cpu.get_cpu_capability()
