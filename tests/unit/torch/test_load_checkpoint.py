"""A checkpoint's model goes into one that is here, by name, or the one here stays as it is."""

from __future__ import annotations

import copy
import errno
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from stored import folder_at, manifest_of

import edl.torch as edl
from edl.checkpoints import checkpoint_writer
from edl.checkpoints.checkpoint_names import CheckpointName, optimizer_tensor
from edl.checkpoints.manifest import Belongs, StoredPart, StoredTensor
from edl.checkpoints.part_files import shares
from edl.cli import main
from edl.errors import CheckpointError, UsageError
from edl.torch.torch_state import as_bytes, hyper_parameters, states
from edl.torch.torch_tensors import TorchTensors, form
from edl.trainer.packing import Packing

NAME = CheckpointName(1, 1, 5)


def model(width: int = 40) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(30, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1, dtype=torch.bfloat16)
    )


def trained() -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(3)
    one = model()
    optimizer = torch.optim.Adam(one.parameters())
    hidden = one[1](one[0](torch.randn(8, 30)))
    one[2](hidden.bfloat16()).sum().backward()
    optimizer.step()
    return one, optimizer


def raw(tensor: torch.Tensor) -> memoryview:
    lying: Any = as_bytes(tensor).numpy()
    return memoryview(lying)


def save(root: Path, parts: int = 3, framework: str = "torch") -> torch.nn.Sequential:
    """As a job does it: parameters and buffers by name, then the optimizer's tensors by their paths."""
    one, optimizer = trained()
    described: dict[str, tuple[Belongs, torch.Tensor]] = {
        name: ("model", tensor.detach()) for name, tensor in chain(one.named_parameters(), one.named_buffers())
    }
    for value, path in ((hyper_parameters(optimizer), "param_groups"), (states(optimizer), "optimizer.state")):
        packing = Packing([TorchTensors()])
        packing.of(value, path)
        described |= {optimizer_tensor(0, content.path): ("optimizer", content.tensor) for content in packing.contents}
    tensors = tuple(
        StoredTensor(name, form(tensor).dtype, form(tensor).shape, tensor.numel() * tensor.element_size(), belongs)
        for name, (belongs, tensor) in described.items()
    )
    by_name, folder, stored = {tensor.name: tensor for tensor in tensors}, folder_at(root), []
    for number, slices in enumerate(shares(tensors, parts)):
        contents = (raw(described[piece.tensor][1])[piece.offset : piece.end] for piece in slices)
        file = checkpoint_writer.write_part(folder, folder.title(NAME, number, parts), slices, by_name, contents)
        stored.append(StoredPart.of(file, slices))
    manifest = manifest_of(folder, NAME, tensors, tuple(stored), framework=framework)
    assert "optimizer/0/optimizer.state[1]['exp_avg']" in by_name
    checkpoint_writer.publish(folder, manifest)
    return one


def differs(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return any(
        not torch.equal(tensor, twin)
        for tensor, twin in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_parameters_and_buffers_are_those_of_the_checkpoint(tmp_path) -> None:
    there, here = save(tmp_path), model()
    parameters = list(here.parameters())
    assert differs(here, there)
    edl.load_checkpoint(tmp_path / "mnist", here)
    assert not differs(here, there)
    assert all(one is other for one, other in zip(here.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad for parameter in here.parameters())


def test_the_model_keeps_its_dtypes(tmp_path) -> None:
    there: Any
    here: Any
    there, here = save(tmp_path, parts=1), model().half()
    edl.load_checkpoint(str(tmp_path), here)
    assert here[0].weight.dtype == torch.float16
    assert torch.equal(here[0].weight, there[0].weight.half())


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (lambda: model(50), r"0\.weight of the model is \[50, 30\], that of .* is \[40, 30\]; build the model that"),
        (lambda: torch.nn.Linear(30, 40), r"it has 0\.weight, 0\.bias, 1\.weight and 6 more and has not weight, bias"),
        (lambda: model().append(torch.nn.Linear(1, 1)), r"it has not 3\.weight, 3\.bias; build"),
    ],
)
def test_another_model_is_refused_in_one_line_and_stays_as_it_is(tmp_path, other, line) -> None:
    save(tmp_path)
    here = other()
    before = copy.deepcopy(here)
    with pytest.raises(UsageError, match=line) as caught:
        edl.load_checkpoint(tmp_path, here)
    assert "\n" not in str(caught.value)
    assert not differs(here, before)


def test_a_model_without_shapes_is_refused(tmp_path) -> None:
    save(tmp_path)
    here = model()
    here[0] = torch.nn.LazyLinear(40)
    with pytest.raises(UsageError, match=r"0\.weight of the model has no shape yet: run a batch through it first"):
        edl.load_checkpoint(tmp_path, here)


def test_what_is_broken_is_not_loaded(tmp_path) -> None:
    there, here = save(tmp_path), model()
    path = tmp_path / "mnist" / str(NAME) / "part-0002-of-0003.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"part-0002-of-0003\.safetensors is not as it was written"):
        edl.load_checkpoint(tmp_path, here)
    assert differs(here, there)


def test_a_checkpoint_of_another_framework_is_refused(tmp_path) -> None:
    save(tmp_path, framework="tensorflow")
    with pytest.raises(UsageError, match="was written by tensorflow, not by PyTorch"):
        edl.load_checkpoint(tmp_path, model())


def test_a_type_that_torch_does_not_have_is_refused(tmp_path) -> None:
    folder = folder_at(tmp_path)
    odd = (StoredTensor("weight", "save", (2, 2), 16), StoredTensor("bias", "float32", (2,), 8))
    [slices] = shares(odd, 1)
    contents = [memoryview(bytes(24))]
    file = checkpoint_writer.write_part(
        folder, folder.title(NAME, 0, 1), slices, {one.name: one for one in odd}, contents
    )
    checkpoint_writer.publish(folder, manifest_of(folder, NAME, odd, (StoredPart.of(file, slices),)))
    with pytest.raises(UsageError, match="PyTorch here has no save, which weight of"):
        edl.load_checkpoint(tmp_path, torch.nn.Linear(2, 2))


def test_what_is_no_model_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"model must be a torch\.nn\.Module, not a dict"):
        edl.load_checkpoint(tmp_path, {})  # type: ignore[arg-type]


def test_the_exported_file_is_read_by_safetensors_and_fits_the_model(tmp_path, monkeypatch, capsys) -> None:
    from safetensors.torch import load_file

    there, here = save(tmp_path / "checkpoints"), model()
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoint", "export", "checkpoints", "model.safetensors"]) == 0
    found = load_file("model.safetensors")
    assert list(found) and set(found) == set(there.state_dict())  # neither more nor less, none of the optimizer's
    assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in there.state_dict().items()}
    here.load_state_dict(found)
    assert not differs(here, there)
    assert f"{len(found)} tensors" in capsys.readouterr().out
    assert [one.name for one in tmp_path.iterdir() if "model" in one.name] == ["model.safetensors"]
    assert main(["checkpoint", "export", "checkpoints", "no/model.safetensors"]) == 2
    assert "no/model.safetensors cannot be written: No such file" in capsys.readouterr().err


def test_an_export_that_fails_in_the_middle_leaves_no_file(tmp_path, monkeypatch, capsys) -> None:
    save(tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edl.checkpoints.checkpoint_reader.os.fsync", full)
    assert main(["checkpoint", "export", "checkpoints", "model.safetensors"]) == 2
    assert capsys.readouterr().err == "edl: model.safetensors cannot be written: No space left on device\n"
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("name", ["", "model"])
def test_a_folder_of_torch_distributed_checkpoint_is_loaded(tmp_path, name) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    (there, optimizer), here = trained(), model()
    weights = there.state_dict()
    state = {name: weights, "optim": optimizer.state_dict()} if name else weights
    with warnings.catch_warnings(action="ignore"):  # PyTorch's, that there is no process group
        save_distributed(state, checkpoint_id=tmp_path, no_dist=True)
    assert differs(here, there)
    edl.load_checkpoint(tmp_path, here)
    assert not differs(here, there)
    wrong = r"0\.weight of the model is \[50, 30\]"
    for other, line in ((model(50), wrong), (model()[:2], "has no dict with the names")):
        with pytest.raises(UsageError, match=line):
            edl.load_checkpoint(tmp_path, other)
