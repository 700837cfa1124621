"""PyTorch behind the runtime's port.

Owns: what the script has wrapped, torch's ring, and a copy of what is not learned: buffers, which forward passes update
by themselves, and hyper-parameters. Does not own: the steps (`edl.torch.torch_reducer`), nor moving
state (`edl.torch.torch_state`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from edl import ownership
from edl.checkpoints.worker_stages import ElementRun
from edl.collectives.horovod_environment import prepare_environment
from edl.collectives.name_warmup import Named
from edl.collectives.ring_port import GradientWeight
from edl.core.worker.digest import leaves
from edl.errors import RingBroken, UsageError
from edl.protocol.divergence_report import Fingerprint
from edl.torch.absence import sparse_parameters
from edl.torch.backward import Backward, Reduction
from edl.torch.loading_seeds import LoadingSeeds
from edl.torch.nccl_sums import Gpu
from edl.torch.optimizer import Elastic, attach, check_optimizer, check_trained, names_of, release
from edl.torch.part_sums import TorchPartSums
from edl.torch.sharded import averaged_by_fsdp, check_sharding, held_by, is_sharded, local_of
from edl.torch.tensor_ring import TensorRing, chosen
from edl.torch.torch_fingerprints import fingerprints, fingerprints_begun
from edl.torch.torch_reducer import USUAL, Manner, Reducer
from edl.torch.torch_snapshot import TorchSnapshot, bytes_of, fill_stored, put_random_states, random_states, restore
from edl.torch.torch_state import (
    broadcast_tensors,
    hyper_parameters,
    named_hyper_parameters,
    parameters_of,
    states,
    synchronize,
    synchronize_rest,
)
from edl.torch.torch_state_split import TorchApart
from edl.torch.torch_tensors import TorchTensors, WholeTensors, form
from edl.torch.torch_unwrapped import TorchUnwrapped
from edl.torch.within_worker import GroupWorld, TorchHeldTensors, refuse_copies
from edl.trainer.data.sample_ids import Among
from edl.trainer.first_state import check_same
from edl.trainer.framework_port import WRAP_IT, Fill, StepPort
from edl.trainer.limb_agreement import LimbWorld
from edl.trainer.updates_due import UpdatesDue

# Give all members of the ring rank 0's state of what one call of `edl.Optimizer` brings.
#
# DistributedDataParallel does the same when it is constructed. Without it the first step of a script that brings data
# of its own would sum up gradients of other shapes, which ends the process in gloo.


class Wrapped(NamedTuple):
    """A holder (`edl.torch.torch_state.Holder`) of what one call has brought."""

    named: Sequence[tuple[str, torch.Tensor]]  # what no call before has brought
    optimizer: torch.optim.Optimizer

    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        return self.named

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [self.optimizer]

    def parts(self) -> list[str]:
        """Describe each tensor, and each group of the optimizer's parameters, in words."""
        tensors = [f"{name} ({form(tensor)})" for name, tensor in self.named]
        groups = [f"a group of {len(group['params'])} parameters" for group in self.optimizer.param_groups]
        return [*tensors, *groups]


def make_equal(wrapped: Wrapped, ring: TensorRing) -> None:
    """Make what was wrapped equal on all members of the ring, which call this at the same place of their scripts.
    Raises RingBroken, and on all of them UsageError.
    """
    if ring.place is not None and ring.place.size > 1:
        check_same(ring, wrapped.parts())
        synchronize(wrapped, ring, 0)


def statistics(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the parts of models that keep statistics of their forward passes in each worker for itself."""
    return [part for model in models for part in model.modules() if isinstance(part, _NormBase)]


class UnlearnedState:
    """Buffers of some modules and hyper-parameters of some optimizers, as they are now."""

    def __init__(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        self._buffers = [
            (model, {name: buffer.detach().clone() for name, buffer in model.named_buffers()}) for model in models
        ]
        self._hyper = [
            (group, copy.deepcopy(hyper))
            for optimizer in optimizers
            for group, hyper in zip(optimizer.param_groups, hyper_parameters(optimizer), strict=True)
        ]

    def put_back(self) -> None:
        with torch.no_grad():
            for model, values in self._buffers:
                for name, buffer in model.named_buffers():  # by name, as a module may put another tensor there
                    if name in values:
                        buffer.copy_(values[name])
        for group, hyper in self._hyper:
            group.update(hyper)


CPU = torch.device("cpu")


class TorchFramework:
    """`edl.trainer.framework_port.Framework`, once per process."""

    def __init__(self) -> None:
        prepare_environment()
        self.sort = TorchTensors()
        self.stored_sort = WholeTensors()
        self.loading = LoadingSeeds()
        self._share = GradientWeight()
        self.updates_due = UpdatesDue()
        self._backward = Backward(self.updates_due)
        self._rate = 1.0
        self._noise_due = False
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._reducers: list[Reducer] = []
        self._kept: list[UnlearnedState] = []
        self.unwrapped = TorchUnwrapped()
        self._witnessed: torch.Tensor | None = None
        self._kept_parts: dict[tuple[int, str], torch.Tensor] = {}  # of sharded parameters, by model and name
        self._processes = 1  # of this worker
        self._trainer: StepPort | None = None
        self._apart = TorchApart(self, _tensor)
        ownership.in_children(self._be_inherited)

    def _be_inherited(self) -> None:
        """Let models and optimizers of a forked child do what they would without edl."""
        for optimizer in self._optimizers:
            release(optimizer)
        for reducer in self._reducers:
            reducer.release()

    @functools.cached_property
    def ring(self) -> TensorRing:
        """Choose the ring when it is first needed: by then a script, or what has forked it, has said which. Raises
        ConfigError.
        """
        return chosen(self.gpu, self.named)

    def join_world(self, limb: int, processes: int, folder: Path, step_timeout_s: float) -> LimbWorld:
        """Join the other processes of this worker."""
        self._processes = processes
        ring: Any = self.ring  # PyTorch's own: the settings were checked
        rows = GroupWorld(limb, processes, folder, step_timeout_s)
        return LimbWorld(rows, ring.exchange_prepared, TorchHeldTensors(self))

    def named(self) -> list[Named]:
        """Return the gradients in main memory that a step reduces. Any thread may call this."""
        return [one for reducer in list(self._reducers) for one in reducer.named()]

    def gpu(self) -> Gpu | None:
        """Return the GPU on which all lies that the optimizers train, if it is a single one."""
        trained = [one for optimizer in self._optimizers for one in parameters_of(optimizer) if one.requires_grad]
        device = trained[0].device if trained else CPU
        if device.type != "cuda" or any(one.device != device for one in trained):
            return None
        return Gpu(device, frozenset(one.dtype for one in trained))

    def is_failure(self, error: BaseException) -> bool:
        return self.ring.is_failure(error)

    def wrap(
        self,
        trainer: StepPort,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        manner: Manner = USUAL,
    ) -> None:
        """Carry out `edl.torch.Optimizer`."""
        check_optimizer(optimizer)
        if model is not None and not isinstance(model, torch.nn.Module):
            raise UsageError(f"edl.Optimizer: model must be a torch.nn.Module, not a {type(model).__name__}")
        if model is None and trainer.virtual and not self._has_models_of(optimizer):
            raise UsageError(
                "edl.Optimizer(optimizer): virtual workers add up what forward passes change in the model, too: give "
                "model=, with Accelerate prepare() it with the model or after it, or start the job without "
                "--virtual-workers"
            )
        prefix = f"{len(self._optimizers)}." if self._optimizers else ""
        names = names_of(optimizer, model, named_parameters, prefix)
        check_trained(optimizer)
        check_sharding(model, names, self._processes)
        if self._processes > 1 and model is not None:
            refuse_copies(model)
        self._trainer = trainer
        known = {id(tensor) for _, tensor in self.tensors()}
        reducer = Reducer(trainer, self.ring, self._share, self._backward, names, manner)
        reducer.number, reducer.rate, reducer.measures = len(self._reducers), self._rate, self._noise_due
        reducer.due, reducer.processes = self.updates_due, self._processes
        reducer.by_fsdp = averaged_by_fsdp(model)
        reducer.due.expect(reducer.number)
        attach(optimizer, reducer)
        self._reducers.append(reducer)
        self.track(optimizer)
        if model is not None:
            self.track(model)
            reducer.expect_sparse(sparse_parameters(model))
        self._make_equal(trainer, Wrapped([pair for pair in self.tensors() if id(pair[1]) not in known], optimizer))

    def _make_equal(self, trainer: StepPort, wrapped: Wrapped) -> None:
        """Make what is wrapped equal in a ring of several, if it is built: after the first step nothing else does."""
        if any(is_lazy(tensor) for _, tensor in wrapped.named):
            if trainer.committed:
                self.check_built()
            return
        try:
            make_equal(wrapped, self.ring)
        except RingBroken as error:
            self.ring.is_failure(error)
            trainer.void_beside(error)

    def track(self, what: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Let a model or an optimizer travel to newcomers."""
        known: list[Any] = self._models if isinstance(what, torch.nn.Module) else self._optimizers
        if not any(what is one for one in known):
            known.append(what)

    def _has_models_of(self, optimizer: torch.optim.Optimizer) -> bool:
        known = {id(one) for model in self._models for one in model.parameters()}
        return all(id(one) in known for one in parameters_of(optimizer))

    @property
    def owners(self) -> Mapping[torch.Tensor, Reduction]:
        """Return which reducer averages the gradient of each parameter."""
        return self._backward.owners

    def updates(self) -> int:
        return sum(reducer.updates for reducer in self._reducers)

    def share_of_step(self, size: int) -> float:
        """Return this worker's samples in the step, in units of an equal share among `size` workers: 1.0 if all have as
        many. It is known from the first collective on.
        """
        return self._share.factor(size)

    # ------------------------------------------------------------------------------------- the runtime's port

    def broadcast(self, contents: Sequence[Any], root: int) -> int:
        place = self.ring.place
        receive = place is not None and place.rank != root
        with torch.no_grad():
            return broadcast_tensors(self.ring, [_tensor(one) for one in contents], root, receive)

    @property
    def name(self) -> str:
        return "torch"

    def snapshot(self, *, beside: bool = False) -> TorchSnapshot:
        return TorchSnapshot(self, self._processes, beside=beside)

    def witness(self) -> torch.Tensor | None:
        """Return the smallest of the parameters that are trained, as all of them change in an update."""
        if self._witnessed is None:
            found = (one for optimizer in self._optimizers for one in parameters_of(optimizer))
            trained = ((local_of(one).numel(), one) for one in found if one.requires_grad)
            found_here = [pair for pair in trained if pair[0]]
            self._witnessed = min(found_here, key=lambda pair: pair[0])[1] if found_here else None
        return None if self._witnessed is None else local_of(self._witnessed).detach().clone()

    def is_as(self, witness: torch.Tensor | None) -> bool:
        now = self.witness()
        return now is None or (witness is not None and bytes_of(now) == bytes_of(witness))

    def restore(self, description: bytes, fill: Fill) -> None:
        restore(self, description, fill)

    def random_states(self) -> dict[str, bytes]:
        return {**random_states(), **self.loading.state()}

    def put_random_states(self, states: dict[str, bytes]) -> None:
        put_random_states(states)
        self.loading.give_back(states)

    def bytes_of(self, contents: Any) -> bytes:
        return bytes(bytes_of(local_of(_tensor(contents))))

    def fill_stored(self, contents: Any, fill: Callable[[memoryview, int], None]) -> None:
        fill_stored(_tensor(contents), fill)

    def held_by(self, contents: Any, processes: int) -> Sequence[Sequence[ElementRun]]:
        return held_by(contents, processes)

    @property
    def apart(self) -> TorchApart:
        return self._apart

    def copied(self, contents: Sequence[Any]) -> Sequence[torch.Tensor]:
        return [_tensor(one).detach().clone() for one in contents]

    def fill(self, contents: Sequence[Any], copies: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for one, copy in zip(contents, copies, strict=True):
                _tensor(one).copy_(copy)

    @property
    def built(self) -> bool:
        return not any(is_lazy(tensor) for _, tensor in self.tensors())

    def check_built(self) -> None:
        if not self.built:
            raise UsageError(
                "edl.Optimizer(model=...): a lazy module has no parameters yet; run a batch through it first"
            )

    def synchronize(self, root: int) -> int:
        self.check_built()
        return synchronize(self, self.ring, root)

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None:
        buffers = [buffer for model in self._models for buffer in model.buffers()]
        synchronize_rest([] if only_statistics else self._optimizers, buffers, self.ring, root)

    def note_living(self) -> None:
        self.unwrapped.by_hand.note_living()

    @property
    def knows(self) -> bool:
        return bool(self._optimizers or self._models or self.unwrapped.any_seen)

    def leave_alone(self, own: object) -> None:
        """Carry out `edl.torch.local`."""
        if isinstance(own, (torch.nn.Module, torch.Tensor)):
            self.unwrapped.by_hand.leave_alone([own] if isinstance(own, torch.Tensor) else own.parameters())
            return
        if not isinstance(own, torch.optim.Optimizer) or isinstance(own, Elastic):
            kind = "what edl.Optimizer gave" if isinstance(own, Elastic) else f"a {type(own).__name__}"
            raise UsageError(
                f"edl.local(optimizer): give it an optimizer that is not wrapped, a module or a tensor, not {kind}"
            )
        self.unwrapped.leave_alone(own)

    def fingerprints(self, more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
        more = list(more)
        return fingerprints(itertools.chain(self._compared(more), more))

    def fingerprints_begun(self, more: Iterable[tuple[str, Any]]) -> Callable[[], list[Fingerprint]] | None:
        more = list(more)
        return fingerprints_begun(self._compared(more), more)

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        self._share.set(weight, weightless=weightless)

    def applied(self) -> float | None:
        return max((reducer.take_applied() for reducer in self._reducers), default=None)

    def keep(self, *, only_statistics: bool) -> None:  # noqa: ARG002 - the port's: step() holds updates back
        self._kept.append(UnlearnedState(statistics(self._models)))

    def keep_hyper_parameters(self) -> None:
        self._kept.append(UnlearnedState((), self._optimizers))

    def drop_kept(self) -> None:
        self._kept = []

    def put_back(self) -> None:
        kept, self._kept = self._kept, []
        for rest in kept:
            rest.put_back()

    def scale_rates(self) -> None:
        """Do nothing: torch's optimizers scale their rates in any case."""

    @contextlib.contextmanager
    def adding_up(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for reducer in self._reducers:
                stack.enter_context(reducer.paused())
            yield

    def part_sums(self, trainer: StepPort) -> TorchPartSums:
        return TorchPartSums(trainer, self.ring, self._reducers, self.tensors, self.buffers)

    def measure_noise(self) -> None:
        """Do nothing: with torch the noise can be measured."""

    def expect_noise(self, *, due: bool) -> None:
        self._noise_due = due
        for reducer in self._reducers:
            reducer.measures = due

    def take_noise(self) -> tuple[float, float] | None:
        found = [one for reducer in self._reducers if (one := reducer.take_noise()) is not None]
        if not found or len(found) < len(self._reducers):
            return None
        return sum(sqr for sqr, _ in found), sum(var for _, var in found)

    def set_rate(self, factor: float) -> None:
        self._rate = factor
        for reducer in self._reducers:
            reducer.rate = factor

    def discard(self) -> None:
        self._backward.discard()
        for reducer in self._reducers:
            reducer.discard()

    # -------------------------------------------------------------------------------------- what is the state

    def _compared(self, more: Sequence[tuple[str, Any]] = ()) -> Iterator[tuple[str, Any]]:
        """Name what is compared. Buffers are not: batch norm's differ from worker to worker between two changes of the
        ring. What an optimizer trains that is not wrapped is compared, unless the script has registered it (`more`),
        and so is what the script trains by hand.
        """
        of = [f" of optimizer {number}" if len(self._optimizers) > 1 else "" for number in range(len(self._optimizers))]
        for optimizer, which in zip(self._optimizers, of, strict=True):  # first: what differs here, makes the rest
            yield from named_hyper_parameters(optimizer, which)
        buffers = self.buffers()
        learned = {id(tensor): (name, tensor) for name, tensor in self.tensors() if id(tensor) not in buffers}
        alone = {id(one): (f"{word}, which", one) for one, word in self.unwrapped.trained(self._backward.owners)}
        for name, tensor in learned.values():
            if not is_lazy(tensor):
                yield (f"{name}, {alone[id(tensor)][0]} {WRAP_IT}" if id(tensor) in alone else name), tensor
        for optimizer, which in zip(self._optimizers, of, strict=True):
            parameters = [learned[id(parameter)][0] for parameter in parameters_of(optimizer)]
            for key, state in states(optimizer).items():
                name = parameters[key] if isinstance(key, int) else key
                yield from leaves(state, f"state{which} of {name}")
        known = {leaf.data_ptr() for _, leaf in more if isinstance(leaf, torch.Tensor)}
        for word, tensor in alone.values():
            if id(tensor) not in learned and not is_lazy(tensor) and tensor.data_ptr() not in known:
                yield f"{word} {WRAP_IT}", tensor
        if self._processes > 1:  # what FSDP2 gathers, or a stage of a pipeline receives, is no tensor of the script's
            return
        others = {id(one) for one in (*self._backward.owners, *self.unwrapped.all_trained())}
        for word, tensor in self.unwrapped.by_hand.find({*learned, *buffers, *others}):
            if tensor.data_ptr() not in known:
                yield word, tensor

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        for number, model in enumerate(self._models):
            for name, tensor in (*self._parameters(number, model), *model.named_buffers()):
                seen.add(id(tensor))
                yield (f"{number}.{name}" if len(self._models) > 1 else name), tensor
        for number, optimizer in enumerate(self._optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in seen:
                        yield f"optimizer.{number}.group.{group_number}.{index}", parameter

    def _parameters(self, number: int, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Name a model's parameters. FSDP2 gathers some for a pass: in their place, name the part that is kept here."""
        for name, parameter in model.named_parameters():
            if is_sharded(parameter):
                self._kept_parts[number, name] = parameter
            kept = self._kept_parts.get((number, name))
            yield name, parameter if kept is None or kept.shape != parameter.shape else kept

    def buffers(self) -> set[int]:
        return {id(buffer) for model in self._models for buffer in model.buffers()}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self._optimizers

    def wrapped(self) -> int:
        return len(self._models) + len(self._optimizers)

    def among(self) -> Among:
        return Among() if self._trainer is None else self._trainer.among


def _tensor(contents: Any) -> torch.Tensor:
    """Return the tensor, or one over the memory of numpy's bytes where these may be written."""
    if not isinstance(contents, np.ndarray):
        return contents  # type: ignore[no-any-return]
    return torch.from_numpy(contents if contents.flags.writeable else contents.copy())  # read-only ones are only sent
