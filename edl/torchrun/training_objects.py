"""Objects that a script makes besides its wrapped models: optimizers, schedules, scalers, and other modules.

Owns: finding them, giving optimizers, schedules and scalers to edl before the first mini-batch, and giving a newcomer
the tensors that training changes in modules such as a teacher, an average of the weights, a loss with a buffer. Does
not own: what edl does with them (`edl.torch.optimizer`), nor how they travel (`edl.trainer.registered_state`).

Optimizers, schedules and scalers are noted in the order of their making, which is the same on all workers as these run
the same script. An optimizer that trains a wrapped model averages gradients from then on; it stays the object that
schedules and scalers hold.

No optimizer and no wrapped model tells of the other modules, so edl compares nothing in them: a script may have one on
rank 0 alone. A newcomer takes the contents of those that it has made, too.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.optim.swa_utils import AveragedModel

from edl.errors import UsageError
from edl.torch.loop_steps import Travels, as_plain, from_plain
from edl.torch.optimizer import Elastic
from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_state import parameters_of
from edl.torchrun.refusals import REFUSED_KINDS

OUTSIDE: Final = "torchrun_modules"


class OutsideModules(Travels):
    """The tensors in some modules that have changed; a value that `edl.register` takes."""

    replaced = True

    def __init__(self, modules: Sequence[torch.nn.Module], known: Collection[int]) -> None:
        """`known`: tensors that edl knows of otherwise, by `id`."""
        self._known = frozenset(known)
        self._named: dict[str, torch.nn.Module] = {}
        counts = Counter[str]()
        for module in _roots(modules):
            mine = [(name, tuple(tensor.shape)) for name, tensor in self._tensors(module)]
            if mine:
                kind = f"{type(module).__qualname__} {len(mine)} {mine[0][0]}"
                counts[kind] += 1
                self._named[f"{kind} {counts[kind]}"] = module
        self._before = {name: _digest(tensor) for name, tensor in self._all()}

    def __bool__(self) -> bool:
        return bool(self._named)

    def now(self) -> dict[str, Any]:
        return {name: as_plain(tensor) for name, tensor in self._all() if self._before.get(name) != _digest(tensor)}

    def take(self, found: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self._all():
                if name in found and (theirs := from_plain(found[name])).shape == tensor.shape:
                    tensor.copy_(theirs)

    def _all(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, module in self._named.items():
            for part, tensor in self._tensors(module):
                yield f"{name}.{part}", tensor

    def _tensors(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if id(tensor) not in self._known and not torch.nn.parameter.is_lazy(tensor) and _is_plain(tensor):
                yield name, tensor.detach()


def _roots(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that are in no other."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in inner and "_modules" in module.__dict__]


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0


def _digest(tensor: torch.Tensor) -> int:
    (found,) = fingerprints([("", tensor)])
    return found.digest


NOTED = (Optimizer, LRScheduler, torch.amp.GradScaler, torch.nn.Module)


def let_schedules_end() -> None:
    """Let OneCycleLR keep its last rate when it is over: a job that has lost workers makes more steps in an epoch."""
    theirs = OneCycleLR.step

    def step(schedule: OneCycleLR, *given: Any, **named: Any) -> None:
        if schedule.last_epoch < schedule.total_steps:
            theirs(schedule, *given, **named)

    OneCycleLR.step = step  # type: ignore[assignment, method-assign]


class TrainingObjects:
    def __init__(self, wrap: Callable[[Any, Any], object], register: Callable[[str, Any], object]) -> None:
        """`wrap(optimizer, model)` makes an optimizer average gradients; `register(name, value)` lets a value travel to
        newcomers.
        """
        self._wrap, self._register = wrap, register
        self._noted: list[weakref.ref[Any]] = []
        self._new: list[weakref.ref[Any]] = []
        self._modules: list[weakref.ref[Any]] | None = []  # None: those that are made now are of a mini-batch
        self._registered: list[weakref.ref[Any]] = []
        self._numbers = itertools.count(1)

    def watch(self, kinds: Iterable[type] = NOTED) -> None:
        """Note all of these kinds that is made from now on."""
        for kind in kinds:
            self._watch(kind)

    def _watch(self, kind: Any) -> None:
        made = kind.__new__

        def noted(cls: type, *given: Any, **named: Any) -> Any:
            found = made(cls) if made is object.__new__ else made(cls, *given, **named)
            self.note(found)
            return found

        kind.__new__ = staticmethod(noted)

    def note(self, made: Any) -> None:
        """Note what is being made. Raises UsageError where edl cannot train by it."""
        for kind in type(made).__mro__:
            if kind.__module__.startswith("torch.distributed.") and kind.__name__ in REFUSED_KINDS:
                raise UsageError(f"{kind.__name__}: {REFUSED_KINDS[kind.__name__]}")
        if isinstance(made, torch.nn.Module) and self._modules is not None:
            self._modules.append(weakref.ref(made))
        if isinstance(made, AveragedModel) or not isinstance(made, torch.nn.Module):
            self._new.append(weakref.ref(made))

    def outside(self, models: Sequence[torch.nn.Module]) -> OutsideModules:
        """Return modules made so far that are none of `models`, nor inside of one, nor trained or registered. What is
        made later is not noted.
        """
        known = {id(one) for model in models for one in (*model.parameters(), *model.buffers())}
        known.update(id(one) for optimizer in _living(self._noted) for one in parameters_of(optimizer))
        found = [one for one in _living(self._modules or ()) if not isinstance(one, AveragedModel)]
        self._modules = None
        return OutsideModules(found, known)

    def take(self, models: Sequence[torch.nn.Module]) -> None:
        """Give what was made since the last call to edl: what trains `models`, and what belongs to that."""
        if not self._new:
            return
        new, self._new = [one for ref in self._new if (one := ref()) is not None], []
        for one in new:
            if isinstance(one, Optimizer):
                self._take_optimizer(one, models)
        for one in new:
            if _travels(one):
                self._registered.append(weakref.ref(one))
                self._register(f"torchrun_{next(self._numbers)}", one)

    def _take_optimizer(self, optimizer: Optimizer, models: Sequence[torch.nn.Module]) -> None:
        if isinstance(optimizer, Elastic) or not hasattr(optimizer, "param_groups"):
            return
        trained = {id(one) for one in parameters_of(optimizer) if one.requires_grad}
        for model in models:
            if any(id(one) in trained for one in model.parameters()):
                self._wrap(optimizer, model)
                self._noted.append(weakref.ref(optimizer))
                return

    @property
    def has_scaler(self) -> bool:
        """Tell whether a scaler is in use, which leaves out updates by gradients that are not finite."""
        return any(isinstance(one, torch.amp.GradScaler) and one.is_enabled() for one in _living(self._registered))

    def kept(self) -> Callable[[], None]:
        """Keep schedules, scalers and hyper-parameters as they are. Return a function that puts them back."""
        values = [(one, copy.deepcopy(one.state_dict())) for one in _living(self._registered) if _is_no_module(one)]
        rates = [
            (group, {name: copy.deepcopy(value) for name, value in group.items() if name != "params"})
            for optimizer in _living(self._noted)
            for group in optimizer.param_groups
        ]

        def put_back() -> None:
            for one, state in values:
                one.load_state_dict(state)
            for group, before in rates:
                group.update(before)

        return put_back


def _living(noted: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [one for ref in noted if (one := ref()) is not None]


def _is_no_module(one: Any) -> bool:
    return not isinstance(one, torch.nn.Module)


def _travels(one: Any) -> bool:
    """Tell whether it is a schedule of an optimizer that averages gradients, or belongs to no optimizer."""
    if isinstance(one, Optimizer):
        return False
    if isinstance(one, LRScheduler):
        return isinstance(_optimizer_of(one), Elastic)
    return True


def _optimizer_of(schedule: Any) -> Any:
    found = getattr(schedule, "optimizer", None)
    inner: Collection[Any] = getattr(schedule, "_schedulers", ())
    return found if found is not None or not inner else next(iter(inner)).optimizer
