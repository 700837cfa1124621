"""DistributedDataParallel in a script of torchrun's: the model itself trains, and `edl.Optimizer` averages gradients.

Owns: what the wrapped model offers. Does not own: averaging (`edl.torch.torch_reducer`), nor which optimizers train it
(`edl.torchrun.training_objects`).

It is a subclass of torch's, so `isinstance` holds on either name. As torch's, it gives all workers the model of rank 0
where it is made, and its buffers before each mini-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import nn
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel as TorchParallel

from edl.errors import RingBroken, UsageError
from edl.torch.buffers import SharedBuffers
from edl.torch.torch_process import framework, trainer
from edl.torch.torch_state import synchronize
from edl.torch.torch_tensors import form
from edl.torchrun.refusals import COMM_HOOK, JOIN
from edl.trainer.first_state import check_same

Began = Callable[["DistributedDataParallel"], object]


class DistributedDataParallel(TorchParallel):
    """The elastic stand-in for torch's class."""

    began: ClassVar[Began] = staticmethod(lambda _model: None)  # called before each forward pass, outside graphs
    known: ClassVar[list[DistributedDataParallel]] = []

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        module: nn.Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        *_given: Any,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **_named: Any,
    ) -> None:
        nn.Module.__init__(self)
        trained = [one for one in module.parameters() if one.requires_grad]
        if not trained:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                "gradient."
            )
        self.module = module
        self.device = trained[0].device
        places = [torch.device("cuda", one) if isinstance(one, int) else one for one in device_ids or ()]
        self.device_ids: Any = places or None
        self.output_device = output_device
        self.dim = dim
        self.process_group: Any = None
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.parameters_to_ignore: set[str] = set()
        framework.track(module)
        if init_sync:
            self._be_equal()
        if broadcast_buffers:
            SharedBuffers(trainer, framework.ring).attach(module)
        DistributedDataParallel.known.append(self)

    def _be_equal(self) -> None:
        """Take over the model of rank 0, as torch's does."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        if any(nn.parameter.is_lazy(tensor) for _, tensor in named):
            raise UsageError(
                "DistributedDataParallel: a lazy module has no parameters yet; run a batch through it first"
            )
        if framework.ring.size <= 1:
            return
        try:
            check_same(framework.ring, [f"{name} ({form(tensor)})" for name, tensor in named])
            synchronize(_ModelAlone(named), framework.ring, 0)
        except RingBroken as error:
            framework.ring.is_failure(error)
            trainer.void_beside(error)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, on the device that `device_ids` names."""
        if torch.is_grad_enabled() and self.training:
            type(self).began(self)
        if self.device_ids:
            moved, named = _to_kwargs(inputs, kwargs, torch.device(self.device_ids[0]), False)
            inputs, kwargs = moved[0], named[0]
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of forward passes inside the context only add up."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def train(self, mode: bool = True) -> DistributedDataParallel:
        nn.Module.train(self, mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]

    def register_comm_hook(self, *_given: Any, **_named: Any) -> NoReturn:
        raise UsageError(f"DistributedDataParallel.register_comm_hook: {COMM_HOOK}")

    def join(self, *_given: Any, **_named: Any) -> NoReturn:
        raise UsageError(f"DistributedDataParallel.join: {JOIN}")

    def _set_static_graph(self) -> None:
        self.static_graph = True


class _ModelAlone(NamedTuple):
    """A holder (`edl.torch.torch_state.Holder`) of a model without its optimizer, which may not be made yet."""

    named: Sequence[tuple[str, torch.Tensor]]

    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        return self.named

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return []


class GradientPauses:
    """Gradients only add up while a model says so: by `no_sync()`, or by `require_backward_grad_sync = False`."""

    def __init__(self) -> None:
        self._paused = contextlib.ExitStack()
        self.only_add_up = False

    def follow(self, model: DistributedDataParallel) -> None:
        """Follow what `model` says at a forward pass, as torch's does."""
        if (wanted := not model.require_backward_grad_sync) == self.only_add_up:
            return
        self.only_add_up = wanted
        if wanted:
            self._paused.enter_context(framework.adding_up())
        else:
            self._paused.close()


def put() -> None:
    """Set the class in the places where scripts find it."""
    import torch.nn.parallel.distributed as defining

    defining.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]
    DistributedDataParallel.__module__ = TorchParallel.__module__
