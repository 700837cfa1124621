"""What a process tells the others of its worker of the tensors that it holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from edl.torch import sharded, within_worker  # noqa: E402
from edl.torch.torch_framework import TorchFramework  # noqa: E402
from edl.torch.within_worker import TorchHeldTensors  # noqa: E402
from edl.trainer.data.sample_ids import Among  # noqa: E402


class Holder:
    """A model that is wrapped."""

    def __init__(self, model: Any, *, optimizers: int = 1, among: Among = Among()) -> None:  # noqa: B008 - frozen
        self.model, self.optimizers, self.divides = model, optimizers, among

    def tensors(self) -> list[tuple[str, Any]]:
        return [*self.model.named_parameters(), *self.model.named_buffers()]

    def buffers(self) -> set[int]:
        return {id(one) for one in self.model.buffers()}

    def wrapped(self) -> int:
        return 1 + self.optimizers

    def among(self) -> Among:
        return self.divides


def model(seed: int = 1, width: int = 3, start: int = 0) -> Any:
    torch.manual_seed(seed)
    parts = (torch.nn.Linear(40, width), torch.nn.BatchNorm1d(width))
    return torch.nn.Sequential(*parts) if not start else torch.nn.ModuleDict({str(start): parts[0]})


def held(*of: Any, **how: Any) -> Any:
    return TorchHeldTensors(Holder(*of, **how))


def test_parameters_and_buffers_are_named() -> None:
    found = held(model()).holding()
    assert found.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert found.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert found.beside == ()


def test_the_form_tells_names_and_shapes_apart_and_not_contents() -> None:
    form = held(model()).holding().form
    assert held(model(seed=2)).holding().form == form
    assert held(model(width=4)).holding().form != form
    assert held(model(start=1)).holding().form != held(model(start=2)).holding().form
    assert held(model().double()).holding().form != form


def test_the_sample_tells_contents_of_parameters_apart_and_not_statistics() -> None:
    one = model()
    sample = held(one).sample()
    assert held(one).holding().sample == sample == held(model()).sample()
    assert held(model(seed=2)).sample() != sample
    one(torch.randn(8, 40))
    assert held(one).sample() == sample
    with torch.no_grad():
        one[1].bias[2] += 1e-6
    assert held(one).sample() != sample


def test_scalars_empty_and_half_precision_parameters_are_sampled() -> None:
    odd = torch.nn.ParameterDict(
        {"scalar": torch.tensor(1.0), "empty": torch.zeros(0, 3), "short": torch.zeros(2).half()}
    )
    sample = held(odd).sample()
    with torch.no_grad():
        odd["scalar"] += 1
    assert held(odd).sample() != sample


def test_a_module_without_shapes_yet_is_left_out() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
    assert held(lazy).holding().parameters == ("1.weight", "1.bias")


def test_meshes_and_among_say_which_processes_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one = model()
    first = next(one.parameters())
    monkeypatch.setattr(within_worker, "mesh_of", lambda tensor: frozenset({0, 2}) if tensor is first else frozenset())
    assert held(one).holding().beside == (0, 2)
    assert held(one, among=Among(members=frozenset({0, 1}))).holding().beside == (0, 1, 2)


def test_how_parameters_are_sharded_and_how_whole_ones_begin_is_told() -> None:
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parted = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
        fully_shard(parted[0], mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        found = held(parted, among=Among(members=frozenset({0}))).holding()
    finally:
        dist.destroy_process_group()
    assert found.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert found.placed == ("(Shard(dim=0),) over (1,)", "(Shard(dim=0),) over (1,)", "", "")
    weight, bias = (one.detach().numpy().tobytes() for one in (parted[1].weight, parted[1].bias))
    assert found.pieces == ("[0] over [0]", "[0] over [0]", "", "")
    assert found.firsts[2:] == (weight[: 8 * 4], bias)
    assert found.averaged == (0,)


def test_a_witness_of_a_sharded_model_is_what_this_process_holds() -> None:
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parted = torch.nn.Linear(4, 3)
        fully_shard(parted, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        framework = TorchFramework()
        framework.track(torch.optim.SGD(parted.parameters(), lr=0.1))
        witness = framework.witness()
        assert framework.is_as(witness)
        with torch.no_grad():
            parted.bias.add_(1.0)
        assert not framework.is_as(witness)
    finally:
        dist.destroy_process_group()


def test_a_parameter_that_is_gathered_for_a_pass_is_known_by_the_part_that_is_kept() -> None:
    """A job may be saved amid a pass: then FSDP2 has put whole parameters into some modules."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parted = torch.nn.Linear(4, 3)
        fully_shard(parted, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        framework = TorchFramework()
        framework.track(parted)
        framework.track(torch.optim.SGD(parted.parameters(), lr=0.1))
        before = list(framework.tensors())
        assert all(sharded.is_sharded(tensor) for _, tensor in before)
        parted.unshard()
        assert not any(map(sharded.is_sharded, parted.parameters()))
        amid = list(framework.tensors())
        assert [name for name, _ in amid] == [name for name, _ in before] == ["weight", "bias"]
        assert all(one is other for (_, one), (_, other) in zip(amid, before, strict=True))
    finally:
        dist.destroy_process_group()


def test_the_mesh_of_a_tensor_is_that_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    parted: Any = SimpleNamespace(device_mesh=SimpleNamespace(mesh=torch.tensor([[0, 1], [4, 5]])), _local_tensor=1)
    assert sharded.mesh_of(parted) == {0, 1, 4, 5}
    assert sharded.mesh_of(torch.zeros(2)) == frozenset()


def test_copies_of_a_shard_are_one_piece() -> None:
    """As by a mesh of two dimensions that is given to `fully_shard` as it is."""

    def piece(*place: int) -> str:
        mesh = SimpleNamespace(mesh=torch.tensor([[0, 1], [2, 3]]), get_coordinate=lambda: list(place))
        parted: Any = SimpleNamespace(device_mesh=mesh, placements=(Replicate(), Shard(0)), _local_tensor=1)
        return sharded.piece_of(parted)

    assert piece(0, 1) == piece(1, 1) == "[1] over [0, 1, 2, 3]"
    assert piece(0, 0) == piece(1, 0) == "[0] over [0, 1, 2, 3]"
    assert sharded.piece_of(torch.zeros(2)) == ""


def test_the_stamp_changes_with_what_is_wrapped_and_with_who_divides_the_samples() -> None:
    one, divided = model(), Among(members=frozenset({0, 1}))
    stamps = [held(one), held(one, optimizers=2), held(one, among=divided)]
    assert len({one.stamp() for one in stamps}) == 3
    assert held(one).stamp() == held(model(seed=2)).stamp()
