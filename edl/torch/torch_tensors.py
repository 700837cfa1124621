"""torch's tensors and modules among the values that travel (`edl.trainer.value_tree`).

Owns: their form, and which are filled in place. Does not own: moving them (`edl.torch.torch_state`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.parameter import is_lazy

from edl.torch.sharded import is_sharded, local_of, placement_of
from edl.trainer.value_tree import CannotTravel, Destination, Differs, Form, TensorPart

SORT = "torch.Tensor"


class TorchTensors:
    """`edl.trainer.value_tree.Tensors`."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` is where tensors are made that nothing here stands for; None: the one in use."""
        self._device = device

    def describe(self, tensor: torch.Tensor) -> Form:
        return form(tensor)

    def is_of(self, form: Form) -> bool:
        return form.sort.partition(" ")[0] == SORT

    def form(self, value: object) -> Form | None:
        if not isinstance(value, torch.Tensor):
            return None
        if is_lazy(value):
            raise CannotTravel("a lazy module has no parameters yet; run a batch through it first")
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise CannotTravel("a sparse, quantized or meta tensor cannot travel to a newcomer; register a dense one")
        return self.describe(value)

    def contents(self, value: torch.Tensor) -> torch.Tensor:
        return local_of(value)

    def place(self, form: Form, mine: object) -> Destination:
        if isinstance(mine, torch.Tensor) and self.form(mine) == form and not _overlaps(mine):
            return Destination(local_of(mine), lambda: mine)
        sharded = form.sort != SORT
        if sharded or (
            isinstance(mine, torch.Tensor) and mine.requires_grad
        ):  # its optimizer would go on with the old one
            raise Differs(f"{self.form(mine) if mine is not None else 'nothing'} here, {form} there")
        tensor = torch.empty(form.shape, dtype=_dtype(form.dtype), device=self._device_for(form, mine))
        return Destination(tensor, lambda: tensor)

    def parts(self, value: object) -> Sequence[TensorPart] | None:
        if not isinstance(value, torch.nn.Module):
            return None
        parameters = [TensorPart(name, parameter) for name, parameter in value.named_parameters()]
        return [*parameters, *(TensorPart(name, buffer, is_statistic=True) for name, buffer in value.named_buffers())]

    def _device_for(self, form: Form, mine: object) -> torch.device:
        if form.on_cpu:
            return torch.device("cpu")
        if isinstance(mine, torch.Tensor) and mine.device.type != "cpu":
            return mine.device
        return self._device or torch.device("cuda" if torch.cuda.is_available() else "cpu")


class WholeTensors(TorchTensors):
    """Sharded tensors as a checkpoint has them: it does not say how a tensor was sharded."""

    def __init__(self, device: torch.device | None = None, like: torch.Tensor | None = None) -> None:
        """`like`: the parameter that is sharded as what is kept of it."""
        super().__init__(device)
        self._like = like

    def describe(self, tensor: torch.Tensor) -> Form:
        return whole_form(tensor)

    def contents(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def place(self, form: Form, mine: object) -> Destination:
        if isinstance(mine, torch.Tensor) and is_sharded(mine) and self.form(mine) == form:
            return Destination(mine, lambda: mine)
        like = self._like
        if like is None or not is_sharded(like) or math.prod(form.shape) <= 1:
            return super().place(form, None if isinstance(mine, torch.Tensor) and is_sharded(mine) else mine)
        if tuple(like.shape) != form.shape:
            raise Differs(f"{form} is not of the shape of its sharded parameter, {list(like.shape)}")
        made = torch.empty_like(like, dtype=_dtype(form.dtype), requires_grad=False)
        return Destination(made, lambda: made)


def whole_form(tensor: torch.Tensor) -> Form:
    local = local_of(tensor)
    return Form(SORT, str(local.dtype).removeprefix("torch."), tuple(tensor.shape), local.device.type == "cpu")


def form(tensor: torch.Tensor) -> Form:
    local, placement = local_of(tensor), placement_of(tensor)
    sort = f"{SORT} {placement}" if placement else SORT
    return Form(sort, str(local.dtype).removeprefix("torch."), tuple(local.shape), local.device.type == "cpu")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Differs(f"torch here has no dtype {name!r}")
    return dtype


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tell whether one element of memory stands for several, as in an expanded tensor."""
    return any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True))
