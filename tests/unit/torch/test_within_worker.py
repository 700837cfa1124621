"""Averaging among the processes of a worker: threads with a group each, as gloo has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from edl.errors import UsageError  # noqa: E402
from edl.torch import within_worker  # noqa: E402
from edl.torch.sharded import averaged_by_fsdp  # noqa: E402
from edl.torch.within_worker import average_within, refuse_copies  # noqa: E402
from edl.trainer.data.sample_ids import Among  # noqa: E402
from edl.trainer.limb_agreement import LimbLost  # noqa: E402

BOTH = frozenset({0, 1})


def parameters(*gradients: Any) -> list[Any]:
    found = []
    for gradient in gradients:
        one = torch.nn.Parameter(torch.zeros(2))
        one.grad = None if gradient is None else torch.tensor(gradient)
        found.append(one)
    return found


def average(among: Among, parameters: list[Any], by_fsdp: frozenset[int] = frozenset()) -> None:
    average_within(
        among, {one: str(number) for number, one in enumerate(parameters)}, dict.fromkeys(parameters, by_fsdp)
    )


def averaged(
    monkeypatch: pytest.MonkeyPatch, mine: list[Any], other: list[Any], by_fsdp: frozenset[int] = frozenset()
) -> list[Any]:
    """What this process has after its like has brought `other`: as packed by the same code."""
    packed: list[Any] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: packed.append(tensor.clone()))
    average(Among(0, 2, "group", BOTH), other, by_fsdp)
    theirs = iter(packed[:])
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: tensor.add_(next(theirs)))
    average(Among(0, 2, "group", BOTH), mine, by_fsdp)
    return [None if one.grad is None else one.grad.tolist() for one in mine]


def test_gradients_become_the_mean_and_one_that_no_process_has_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = parameters([2.0, 4.0], None, None), parameters([4.0, 8.0], [6.0, 0.0], None)
    assert averaged(monkeypatch, mine, other) == [[3.0, 6.0], [3.0, 0.0], None]


def test_a_frozen_parameter_and_one_that_a_mesh_averages_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = parameters([2.0, 2.0], [2.0, 2.0], [2.0, 2.0]), parameters([4.0, 4.0], [4.0, 4.0], [4.0, 4.0])
    meshes = {0: [0, 1], 1: [0, 2]}  # of the first this process's group is a part, of the second it is not
    for frozen, sharded, across in (mine, other):
        frozen.requires_grad_(False)
        for number, one in enumerate((sharded, across)):
            one.device_mesh = SimpleNamespace(mesh=torch.tensor(meshes[number]))
    known = {id(one) for _, *some in (mine, other) for one in some}
    monkeypatch.setattr(within_worker, "is_sharded", lambda one: id(one) in known)
    monkeypatch.setattr(within_worker, "local_of", lambda one: one)
    assert averaged(monkeypatch, mine, other, BOTH) == [[2.0, 2.0], [2.0, 2.0], [3.0, 3.0]]


@pytest.mark.parametrize(
    ("members", "by_fsdp"),
    [
        ({0, 1}, frozenset()),  # tensor parallel
        ({0, 1}, {0, 2}),  # tensor parallel below FSDP2
        ({0, 1, 2, 3}, {0, 1}),  # FSDP2 over pairs
    ],
)
def test_processes_whose_parts_are_not_averaged_do_not_divide_samples(
    monkeypatch: pytest.MonkeyPatch, members: set[int], by_fsdp: set[int]
) -> None:
    [one] = parameters([2.0, 2.0])
    one.device_mesh = SimpleNamespace(mesh=torch.tensor([[0, 1]]))
    monkeypatch.setattr(within_worker, "is_sharded", lambda _: True)
    with pytest.raises(UsageError, match=r"divide its samples \(among=\), and \[0, 1\] of them hold parts of 0"):
        average(Among(0, 2, "group", frozenset(members)), [one], frozenset(by_fsdp))


def test_the_processes_over_which_fsdp_averages_are_those_of_its_mesh() -> None:
    dist.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
        fully_shard(model[0], mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        assert averaged_by_fsdp(model) == dict.fromkeys(model[0].parameters(), frozenset({0}))
    finally:
        dist.destroy_process_group()
    assert averaged_by_fsdp(None) == {}


def test_a_process_that_has_ended_is_the_end_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_tensor: Any, group: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "all_reduce", fail)
    with pytest.raises(LimbLost, match="another process of this worker has ended"):
        average(Among(0, 2, "group", BOTH), parameters([1.0, 1.0]))


def test_an_engine_of_deepspeed_is_refused() -> None:
    engine = type("DeepSpeedEngine", (torch.nn.Module,), {"__module__": "deepspeed.runtime.engine"})()
    with pytest.raises(UsageError, match=r"edl\.Optimizer: DeepSpeed shards and averages by itself"):
        refuse_copies(engine)


def test_copies_by_distributed_data_parallel_are_refused(tmp_path: Any) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined] # torch's own stub
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 1)
        refuse_copies(model)
        copies = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            with pytest.raises(UsageError, match="leave it away"):
                copies(torch.zeros(1, 2))
        with pytest.raises(UsageError, match=r"edl\.Optimizer: DistributedDataParallel inside"):
            refuse_copies(torch.nn.Sequential(copies))
    finally:
        dist.destroy_process_group()
