"""Gradients of one optimizer, averaged over the ring as backward computes them, and all of them when it returns.

Owns: the collectives of a backward pass, from the first gradient to the last. Does not own: its end
(`edl.torch.backward`), applying the update (`edl.torch.optimizer`), nor what a failure leads to
(`edl.trainer.trainer`).

How gradients travel is the ring's matter (`edl.torch.tensor_ring.Averaging`): by name, as with Horovod's own optimizer,
or in buckets, as with DistributedDataParallel. Whichever it is, backward returns with averaged gradients, so that a
script may look at them and clip them (not where Horovod's `backward_passes_per_step` is more than 1: there
`synchronize()` or `step()` does); a ring of one needs no collective, a worker's share of the samples counts, and a
failed collective voids the mini-batch (I8) instead of raising in the middle of backward.

Gradients may be averaged again once more has been added to them: shares sum up to one, so what was averaged before
stays what it was.

A parameter that several optimizers have is averaged by the first of them; the others see that it was, before their
step. A parameter that got no gradient on any worker has none afterwards (`edl.torch.absence`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from edl.collectives.name_warmup import Named
from edl.collectives.ring_port import GradientWeight, is_fault
from edl.errors import RingBroken, RingFault, UsageError
from edl.policy.learning import of_step
from edl.torch.absence import are_absent, blank, takes_gradients
from edl.torch.backward import Backward, Reduction, finish, task_id
from edl.torch.sharded import is_sharded, local_of
from edl.torch.tensor_ring import TensorRing, check_kind
from edl.torch.within_worker import average_within
from edl.trainer.framework_port import StepPort
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.virtual_steps import TAKE_PARTS
from edl.trainer.void_batches import CUT


class Manner(NamedTuple):
    """The manner in which an optimizer wants its gradients."""

    passes: int = 1  # of backward, before a gradient is averaged
    zeros: bool = False  # for parameters that no worker has used, as with Horovod


USUAL: Final = Manner()
ADDED_UP: Final = (
    "its gradients are a sum over mini-batches, and no newcomer gets what earlier ones have added to it: call "
    "edl.notify_batch_end() once for all that an update is made of, with batches as many times larger, cut by "
    "edl.microbatches(); a batch of hvd.elastic.DataLoader is a whole mini-batch, so give it a larger batch_size"
)
NO_LOSS = (
    "step(closure) has a loss that virtual workers do not add up: call step() after edl.microbatches(), or start the "
    "job without --virtual-workers"
)


class Reducer:
    """Averaging of one optimizer's gradients. A reduction begins with the first gradient, or at `step()` where backward
    gave none.
    """

    def __init__(
        self,
        trainer: StepPort,
        ring: TensorRing,
        share: GradientWeight,
        backward: Backward,
        names: dict[torch.Tensor, str],
        manner: Manner = USUAL,
    ) -> None:
        self._trainer = trainer
        self._ring = ring
        self._averaging = ring.averaging()
        self._share = share
        self._backward = backward
        self._names: dict[torch.Tensor, str] = {}
        self._others: dict[Reduction, None] = {}  # of which each averages a parameter that this optimizer has, too
        self._lazy: dict[torch.Tensor, str] = {}  # without a hook yet
        self._sent: set[str] = set()  # the names of those whose gradients are on their way
        self._task = -1  # the backward pass whose end is waited for
        self._straight = -1  # the same, where each of its gradients may go to the ring as it comes, with no more ado
        self.begun = False  # a reduction
        self._reducing = False  # it needs collectives, and none has failed yet
        self._averaged = False  # nothing was added to the gradients since
        self._left_in = 0  # the mini-batch of the newest gradients here, if they were neither used nor dropped
        self._left: tuple[torch.Tensor, int] | None = None  # the gradient that comes first, and its version, as left
        self._first: torch.Tensor | None = None  # the parameter whose gradient came first in the newest pass
        self._added_up = False  # gradients of an earlier mini-batch are in these
        self._step = 0  # the mini-batch of the newest reduction
        self._updated_in = 0  # the mini-batch of the newest update
        self._number = 0  # of it, among those whose gradients were not yet used or dropped
        self._factor = 1.0  # what a gradient is multiplied with, so that the average over the ring is the weighted sum
        self._paused = False
        self._used: dict[int, torch.Tensor] = {}  # gradients that were added up, until the parameter's next is there
        self._in_parts = False  # all gradients are those of a part of a step, which `edl.torch.part_sums` takes
        self._passes, self._zeros = manner
        self._lacking: list[torch.Tensor] = []  # got no gradient here in the reduction under way
        self._learns = self._passes == 1  # how often each gets a gradient in one pass: until the next one is over
        self._handles: dict[str, Any] = {}  # of hooks
        self._several: set[str] = set()  # names of those that get theirs in parts, so they go at the end of backward
        self._passed: Counter[torch.Tensor] = Counter()
        self._applied = 0.0  # the weight in the newest update
        self.whole_in = 0  # the mini-batch in which all gradients were averaged last, if nothing was added since
        self.nests = False  # another optimizer, inside of its own, makes the updates
        self.steps = False  # its optimizer is in its own step()
        self.updates = 0  # made since the script began, or left out as no worker had samples
        self.processes = 1  # of this worker
        self.by_fsdp: dict[torch.Tensor, frozenset[int]] = {}  # over which of them FSDP2 averages each gradient
        self.number = 0  # of its optimizer: workers wrap theirs in the same order
        self.due = UpdatesDue()  # what is expected of all optimizers
        self.measures = False  # the gradient noise, in the coming step
        self._own: list[torch.Tensor] | None = None  # norms of this worker's own gradients, where it is measured
        self._noise: tuple[float, float] | None = None
        self._expected: list[frozenset[int]] = []  # groups of parameters that the script may add, and are here
        self.rate = 1.0  # what learning rates are multiplied by in the coming step
        for parameter, name in names.items():
            self.add(parameter, name)

    def expect_sparse(self, parameters: Iterable[torch.Tensor]) -> None:
        """Expect sparse gradients of these: a worker that has got none yet does not see that they are sparse."""
        for parameter in parameters:
            self._averaging.know_sparse(parameter)

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Average this parameter's gradient, unless another reducer does. It may be frozen, and thawed later."""
        if parameter.requires_grad:
            check_kind(parameter, name)
        owner = self._backward.owners.setdefault(parameter, self)
        if owner is not self:
            self._others[owner] = None
            return
        self._names[parameter] = name
        self._learns = self._passes == 1
        if is_lazy(parameter):
            self._lazy[parameter] = name
        elif takes_gradients(parameter):  # without a hook: reduced at the end of backward
            hook = functools.partial(self._arrived, name=name) if is_sharded(parameter) else self._hook(name)
            self._listen(parameter, name, hook)

    def _listen(self, parameter: torch.Tensor, name: str, hook: Callable[[torch.Tensor], None]) -> None:
        """Register a hook. It wants a parameter that requires a gradient, and stays when that is frozen."""
        frozen = not parameter.requires_grad
        if frozen:
            parameter.requires_grad_(True)
        self._handles[name] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        if frozen:
            parameter.requires_grad_(False)

    def named(self) -> list[Named]:
        """Return the gradients in main memory that are reduced. Any thread may call this."""
        return [
            Named(name, tuple(one.shape), str(one.dtype).removeprefix("torch."), one.element_size())
            for one, name in list(self._names.items())
            if one.requires_grad and not is_lazy(one) and one.device.type == "cpu"
        ]

    def expect_again(self, parameters: Iterable[torch.Tensor]) -> None:
        """Expect that the script adds these, which are here already."""
        self._expected.append(frozenset(map(id, parameters)))

    def takes_again(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Tell whether the script adds parameters that were expected again; each expectation holds once."""
        added = frozenset(map(id, parameters))
        if added not in self._expected:
            return False
        self._expected.remove(added)
        return True

    @property
    def moot(self) -> bool:
        """Tell whether there is nothing to update by: a void mini-batch (I8), or one without samples (I13)."""
        return self._trainer.voided or self._share.weightless

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let gradients add up here without averaging them, inside the context."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def release(self) -> None:
        """Average nothing any more: gradients stay this process's own."""
        self._paused, self._straight = True, -1

    def average(self) -> None:
        """Average what backward has not, as it was paused, or gave no gradient here. The caller asks `voided`."""
        step = self._trainer.step()
        if self._trainer.virtual and not (self._averaged and self._step == step):
            if self._trainer.voided:
                return  # a library's loop leaves out the parts of a mini-batch that is void before them
            raise UsageError(TAKE_PARTS)
        self._check_sum(step)
        due = [one for one in self._others if one.whole_in != step]
        if not (self._averaged and self._step == step):
            due.append(self)
        if due:
            finish(sorted(due, key=lambda one: one.number))

    def check_closure(self, *, once: bool) -> None:
        """Raise UsageError where a closure's loss would depend on who computes it. `once`: the closure is called, and
        nothing depends on what it returns.
        """
        if self._trainer.virtual and not (once and self._averaged and self._step == self._trainer.step()):
            raise UsageError(NO_LOSS)

    def begin_parts(self, used: dict[int, torch.Tensor]) -> None:
        """Drop what is left from before: parts of a step begin, which `edl.torch.part_sums` adds up.

        `used`: gradients of parts before, by the identity of parameters. Each goes as the next one comes: of all at
        once the memory would return to the system, and each of its pages would be mapped anew.
        """
        may_be_sum = self._added_up or self._left_in not in {0, self._trainer.step(), self._updated_in}
        added_up = may_be_sum and self._could_update()
        self._used = used
        for parameter in self._names:
            parameter.grad = None
        self._averaged, self._number, self.whole_in = False, 0, 0
        self._leave(0)
        self._in_parts, self._added_up = True, added_up

    def note_summed(self) -> None:
        """Note that the gradients are those of all parts of this step, or blank where it is void."""
        self._in_parts = False
        self._step = self.whole_in = self._trainer.step()
        self._averaged, self._number, self._factor = True, 1, self._share.factor(self._ring.size)
        self._leave(self._step)

    def before_update(self) -> None:
        """Tell the trainer that the update is about to be made: a state may have to go or come before it."""
        self._trainer.before_update()

    def use(self) -> None:
        """Note that `step()` is made, or left out."""
        self.updates += not self._trainer.voided
        self._updated_in = self._trainer.step()
        self.due.note(self.number, self._trainer.step())
        if not self.moot:
            self._applied = self._factor / self._ring.size if self._ring.size > 1 else 1.0
        self._averaged, self._number = False, 0
        self._leave(0)

    def take_applied(self) -> float:
        """Return the weight in the newest update since the last call; 0.0: there was none."""
        applied, self._applied = self._applied, 0.0
        return applied

    def mean(self, loss: Any) -> Any:
        """Return the loss of the global batch: an optimizer that looks at it must see the same everywhere."""
        if isinstance(loss, torch.Tensor) and self._trainer.virtual:
            raise UsageError(NO_LOSS)
        if not isinstance(loss, torch.Tensor) or self._ring.size <= 1 or self._trainer.voided:
            return loss
        try:
            share = loss.detach() * self._factor if self._factor else torch.zeros_like(loss)
            return self._ring.mean(share, "edl.loss")
        except RingBroken as error:
            self._fail(error)
            return loss

    def settle(self) -> None:
        """The script drops its gradients. If an exception has ended their backward(), those that never came are no
        contribution: the mini-batch is void. Else some may be on their way: let them arrive first, as on all other
        ranks.
        """
        if self._lazy:
            self._hook_lazy()
        if self.begun and self._reducing and self._backward.is_cut:
            self._cut()
        elif self._sent:
            finish([self])
        self._averaged, self._number, self.whole_in = False, 0, 0
        self._leave(0)
        if self.begun or self._passed:
            self._clear()

    def _cut(self) -> None:
        """Void the mini-batch whose backward() an exception has ended, and free the others, which wait for the rest."""
        self._fail(RingBroken(CUT))
        if (place := self._ring.place) is not None:
            self._ring.abort(range(place.generation, place.generation + 1))
        self.wait()

    def discard(self) -> None:
        """Forget the gradients of a void mini-batch, or of a rehearsal, as the ring is left."""
        if self.begun or self._left_in == self._trainer.step():  # what is left of it is no part of what comes again
            self._blank()
            self._leave(0)
        self._averaged, self._number, self._step, self._applied, self.whole_in = False, 0, 0, 0.0, 0
        self._clear()

    # ------------------------------------------------------------------------------------------- one reduction

    def begin(self) -> None:
        if self.begun:
            return
        if self._trainer.virtual:
            raise UsageError(TAKE_PARTS)
        self.begun = True
        if self._lazy:
            self._hook_lazy()
        self._trainer.before_reduce()
        step = self._trainer.step()
        self._number = self._number + 1 if step == self._step else 1
        self._step = step
        size = self._ring.size
        self._reducing = size > 1 and not self._trainer.voided
        self._factor = self._share.factor(size)
        if self._reducing:
            self._try(lambda: self._averaging.expect(self._names))
        self._own, self._noise = ([] if self.measures and self._reducing and self._number == 1 else None), None

    def reduce_missing(self) -> None:
        """Parameters that got no gradient here may have got one on another rank: all take part, with what they have
        from before, or with nothing.
        """
        if len(self._sent) < len(self._names):
            for parameter, name in self._names.items():
                if parameter.requires_grad and name not in self._sent:
                    self._reduce_missing(parameter, name)
        if self._reducing:
            self._try(self._averaging.flush)

    def _reduce_missing(self, parameter: torch.Tensor, name: str) -> None:
        if parameter.grad is None and self._zeros:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad is None and self._reducing:
            parameter.grad = self._nothing(parameter)
            self._lacking.append(parameter)
        if self._reducing:
            self._reduce(parameter, name)

    def _nothing(self, parameter: torch.Tensor) -> torch.Tensor:
        if not is_sharded(parameter):
            return self._averaging.nothing(parameter)
        gradient = torch.zeros_like(parameter, requires_grad=False)
        blank(local_of(gradient))
        return gradient

    def wait(self) -> None:
        began = time.perf_counter_ns()
        self._try(self._averaging.wait)
        self._trainer.waited(time.perf_counter_ns() - began)
        if not self._share.weightless and (self._lacking or (self._reducing and not (self._factor or self._zeros))):
            self._take_away()
        if self._own is not None and self._reducing:
            self._try(lambda: self._measure(self._own or []))
        if self.processes > 1 and self._trainer.among.count > 1:  # also of a void mini-batch: the others wait
            average_within(self._trainer.among, self._names, self.by_fsdp)
        if self.nests:  # what is under way beside this mini-batch comes first: the script may move the weights now
            self._trainer.before_update()
        if self.moot:
            self._blank()
        self._averaged, self.whole_in = True, self._step
        self._leave(self._step)
        if self._learns:
            self._learn()
        self._clear()

    def _take_away(self) -> None:
        """Take the gradient from each parameter that no worker has used: zeros would let momentum and decay go on. A
        worker without samples has used nothing, whatever it computed on. Where a parameter has no elements no sum can
        tell: each goes by its own script there.
        """
        if self._reducing:
            lacking = self._lacking
            if not self._factor:
                some = {one: local_of(one).numel() for one in self._names}
                lacking = [*(one for one in lacking if not some[one]), *(one for one in self._names if some[one])]
                lacking = [one for one in lacking if one.grad is not None]
            absent = are_absent([local_of(one.grad) for one in lacking if one.grad is not None])
            lacking = [one for one, is_absent in zip(lacking, absent, strict=True) if is_absent]
        else:  # a collective has failed
            lacking = self._lacking
        for parameter in lacking:
            parameter.grad = None
        self._lacking = []

    def _learn(self) -> None:
        """Learn from the first pass, in which no gradient went before its end, which parameters get theirs in parts, as
        those do that several checkpointed parts share. Their gradients go at the end of later passes, too.
        """
        self._learns = False
        for parameter, times in self._passed.items():
            name = self._names[parameter]
            if times > 1 and name not in self._several:
                self._several.add(name)
                self._handles[name].remove()
                self._listen(parameter, name, functools.partial(self._arrived, name=name))

    def take_noise(self) -> tuple[float, float] | None:
        found, self._noise = self._noise, None
        return found

    def _measure(self, own: list[torch.Tensor]) -> None:
        """Measure the norms before gradients were averaged, and after. A worker without samples has none of its own.

        All hear the same numbers, also where their devices round otherwise: the learning rate may follow them.
        """
        share = self._factor / self._ring.size
        whole = [_norm(parameter.grad) for parameter in self._names if parameter.grad is not None]
        device = whole[0].device if whole else None
        squares = [torch.stack(norms).double().square().sum() if norms else torch.zeros(()) for norms in (own, whole)]
        mine = torch.zeros(4, dtype=torch.float64, device=device)
        if share:
            mine[0], mine[1], mine[2] = squares[0], 1 / share, 1.0
        mine[3] = squares[1]
        of_own, inverse, having, of_whole = self._ring.mean(mine, f"edl.noise.{self.number}").tolist()
        if having:
            self._noise = of_step(of_own / having, inverse / having, of_whole)

    def _clear(self) -> None:
        self._sent.clear()
        self._averaging.drop()
        self._passed.clear()
        self._lacking = []
        self.begun, self._task, self._straight = False, -1, -1

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        begin, sent = self._averaging.begin, self._sent

        def ready(parameter: torch.Tensor) -> None:
            # Between two layers, where caches are cold: what is called and looked up in here takes three times as long.
            if self._in_parts:
                self._used.pop(id(parameter), None)
                return
            if task_id() != self._straight or name in sent:
                self._arrived(parameter, name)
                return
            sent.add(name)
            try:
                begin(parameter, parameter.grad, name, self._factor)  # type: ignore[arg-type] # autograd has put it there
            except Exception as error:
                _check_there(parameter, name)
                if not self._voids(error):
                    raise

        return ready

    def _arrived(self, parameter: torch.Tensor, name: str) -> None:
        """Take a gradient: the first of a backward pass, or one that may not go straight to the ring."""
        _check_there(parameter, name)
        if self._left_in and (self._added_up or self._left_in != self._trainer.step()):
            self._added_up, self._left_in = self._is_left(parameter), self._trainer.step()
        if self._paused or (self._passes > 1 and not self._is_last_pass(parameter)):
            self._averaged, self.whole_in = False, 0
            self._used.pop(id(parameter), None)
            if not self._left_in:
                self._first = parameter
            if parameter is self._first:
                self._leave(self._trainer.step())
            return
        if (task := task_id()) != self._task:
            self._task, self._first = task, parameter
            self._reach(task)
            usual = self._reducing and self._number == 1 and self._own is None and self._passes == 1
            self._straight = task if usual and not (self._learns or torch.is_grad_enabled()) else -1
        if self._learns:
            self._passed[parameter] += 1
            return
        if not self._reducing or name in self._several:
            return
        if name in self._sent:  # its gradient is on its way, and was just added to
            raise UsageError(
                f"edl.Optimizer: {name} got a gradient twice in one backward(): as a parameter does that several "
                "checkpointed parts share; use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            )
        self._reduce(parameter, name)

    def _leave(self, step: int) -> None:
        """Note that the gradients that are here now are of mini-batch `step`; 0: they were used, or dropped."""
        first = self._first
        self._left_in, self._left = step, None
        if not step:
            self._added_up = False
        elif first is not None and first.grad is not None:
            self._left = local_of(first.grad), local_of(first.grad)._version

    def _is_left(self, parameter: torch.Tensor | None) -> bool:
        """Tell whether gradients of an earlier mini-batch are still here: a script may have dropped them in ways of
        which its optimizer hears nothing. `parameter`: its gradient was just added to, and the others' tell.
        """
        others = [one.grad for one in self._names if one is not parameter and one.grad is not None]
        if others or parameter is None:
            return any(bool(_norm(one)) for one in others)
        gradient, left = None if parameter.grad is None else local_of(parameter.grad), self._left
        return gradient is not None and left is not None and gradient is left[0] and gradient._version == left[1] + 1

    def _could_update(self) -> bool:
        """Tell whether gradients are here that an update could be made by: none of a void mini-batch, which are
        zeros, nor of one that a GradScaler leaves out.
        """
        norms = [float(_norm(one.grad)) for one in self._names if one.grad is not None]
        return any(norms) and all(map(math.isfinite, norms))

    def _check_sum(self, step: int) -> None:
        """Refuse to use gradients that were added up over mini-batches: no newcomer gets those of the earlier ones."""
        if self._left_in not in {0, step}:
            self._added_up, self._left_in = self._is_left(None), step
        if self._added_up:
            raise UsageError(f"step {step}: {ADDED_UP}")

    def _reach(self, task: int) -> None:
        """A backward pass has this optimizer's first gradient that is to be averaged.

        Its end waits for the average, but not where gradients add up over several passes: a worker whose part of the
        mini-batch is short may make fewer of them. It would be at the script's next collective, and the others here.
        """
        if self._passes == 1:
            self._backward.reach(self, task)
        else:
            self.begin()
            self._backward.await_end_of(task)

    def _is_last_pass(self, parameter: torch.Tensor) -> bool:
        self._passed[parameter] += 1
        if self._passed[parameter] > self._passes:
            raise UsageError(
                f"DistributedOptimizer: a parameter got its gradient {self._passed[parameter]} times before step(), "
                f"and backward_passes_per_step is {self._passes}: raise it, or call step() or synchronize() earlier"
            )
        return self._passed[parameter] == self._passes

    def _hook_lazy(self) -> None:
        lazy, self._lazy = self._lazy, {}
        for parameter, name in lazy.items():
            self.add(parameter, name)

    def _reduce(self, parameter: torch.Tensor, name: str) -> None:
        gradient = parameter.grad
        assert gradient is not None  # it was looked for, or we have put it there
        gradient = local_of(gradient)
        if gradient.requires_grad:  # of backward(create_graph=True)
            gradient = gradient.detach()
        self._sent.add(name)
        if self._number > 1:  # so that a worker which calls backward() less often than others is never mistaken
            name = f"{name}#{self._number}"
        if self._own is not None:
            self._own.append(_norm(gradient))
        self._try(lambda: self._averaging.begin(parameter, gradient, name, self._factor))

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            if not self._voids(error):
                raise

    def _blank(self) -> None:
        """Replace the gradients by zeros: a failed collective may have left anything in them, and a script that looks
        at norms must not stumble, nor a GradScaler that finds no gradient. The zeros are new tensors, as something may
        still be written into the old ones.
        """
        for parameter in self._names:
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    def _voids(self, error: Exception) -> bool:
        """Void the mini-batch for an error of its collectives. False: the error is the script's to see."""
        if isinstance(error, RingBroken):
            self._fail(error)
        elif is_fault(self._ring, error):
            self._fail(RingFault.of(error))
        else:
            return False
        return True

    def _fail(self, error: RingBroken) -> None:
        self._reducing, self._straight = False, -1
        self._ring.is_failure(error)  # so that the ring is cut, not left by an agreement that its dead cannot join
        self._trainer.void(RingBroken(f"the gradients were not averaged: {error}"))


def _check_there(parameter: torch.Tensor, name: str) -> None:
    """Raise UsageError where a hook of the script's has used this worker's gradient before."""
    if parameter.grad is None:
        raise UsageError(
            f"edl.Optimizer: the gradient of {name} is gone before it was averaged: a hook that updates in backward() "
            "(register_post_accumulate_grad_hook) must be registered after edl.Optimizer(...)"
        )


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else local_of(gradient)
    kind = torch.float32 if values.dtype.itemsize < torch.float32.itemsize else None
    norm: torch.Tensor = torch.linalg.vector_norm(values.detach(), dtype=kind)
    return norm
