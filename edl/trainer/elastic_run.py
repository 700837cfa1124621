"""Horovod's elastic scripts: a training function over a state, called anew whenever the workers change.

Owns: `run`, where a mini-batch of such a script ends, and the plain values of its states. Does not own: models,
optimizers and samplers (`edl.torch.elastic`, `edl.tensorflow.tf_elastic`), nor the change itself
(`edl.trainer.trainer`).

Nothing is rolled back but plain values. A function that goes on after a change would go on with what it has worked out
from the old size and the old state, in local variables that a newcomer does not share; learning rates would come to
differ, and with them the models. So all workers call it anew, the newcomer after its rehearsal too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from edl.errors import RingBroken, UsageError
from edl.trainer.registered_state import RegisteredValues, check_registrable

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="State")


class Changed(BaseException):
    """End a call of the training function, which another follows. Not an Exception, so that no script swallows it."""


class Failing(Protocol):
    """A ring that knows the errors of its broken collectives."""

    def is_failure(self, error: BaseException) -> bool: ...


class SeatPort(Protocol):
    """The part of the trainer that a run needs."""

    @property
    def voided(self) -> bool: ...

    def void(self, error: BaseException) -> None: ...

    def rehearsing(self) -> bool: ...

    def generation(self) -> int: ...

    def step(self) -> int: ...

    def begin_batch(self) -> None: ...

    def expect_restarts(self) -> None: ...

    def begin_anew(self) -> None: ...

    def notify_batch_end(self, samples: int | None = None) -> bool: ...

    def register(self, **values: Any) -> RegisteredValues: ...

    def on_resize(self, callback: Callable[[int, int], object]) -> None: ...


class Run:
    """The training functions of this process, and where their mini-batches end."""

    def __init__(self, trainer: SeatPort, ring: Failing, updates: Callable[[], object]) -> None:
        """`updates()` changes when an optimizer has updated the model; None if that is not known."""
        self._trainer = trainer
        self._ring = ring
        self._updates = updates
        self._states: list[State] = []
        self._running = False
        self._updated: object = None  # what `updates()` was when the last mini-batch ended
        self._step = 0  # the mini-batch after that one

    def __call__(self, function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        """Carry out `elastic.run`."""

        @functools.wraps(function)
        def running(state: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not isinstance(state, State):
                raise UsageError(
                    f"elastic.run: {function.__name__}() got a {type(state).__name__} as its first argument; "
                    "pass the state: TorchState(...), TensorFlowState(...) or TensorFlowKerasState(...)"
                )
            for one in self._states:
                one._give()
            self._trainer.begin_batch()
            for one in self._states:
                one._take()
            self._note_end()
            self._trainer.expect_restarts()
            self._running = True
            try:
                return self._until_it_returns(functools.partial(function, state, *args, **kwargs))
            finally:
                self._running = False

        return running

    def new_state(self, state: State) -> str:
        """Add a state of this process. Return the name under which its values travel."""
        self._states.append(state)
        return f"elastic.{len(self._states)}"

    def register(self, values: dict[str, dict[str, Any]]) -> RegisteredValues:
        return self._trainer.register(**values)

    def on_resize(self, callback: Callable[[], object]) -> None:
        self._trainer.on_resize(lambda _old, _new: callback())

    def end_batch_if_updated(self, call: str = "state.commit()") -> None:
        """End, at a `call`, the mini-batch whose update was made, or failed, since the last end.

        Before the first update, outside of a training function too, values are kept and nothing ends.
        """
        if not self._running and self._updates() == 0:
            self._keep()
            return
        self._check_running(call)
        if self._trainer.voided or self._has_updated(unseen=True):
            self._end()
        else:
            self._keep()

    def end_batch(self, step: int) -> None:
        """End the mini-batch of `step`, as the script asks for another one, unless a `commit()` ended it."""
        if self._trainer.step() == step:
            self._end()

    def end_batch_of_loop(self) -> None:
        """End a mini-batch of a loop that is not the script's, such as Keras' `fit`, and go on whatever has changed."""
        if self._running:
            self._end_and_keep()
        else:
            self._trainer.notify_batch_end()

    def check_undone(self, call: str) -> None:
        """Check a `call` that undoes what was done since the last end. Raises UsageError if that is an update."""
        if self._updated is not None and self._has_updated(unseen=False):
            raise UsageError(
                f"{call}: the model was updated since the last commit(), and edl undoes no update: leave it away, or "
                "keep a copy of model.state_dict() and load that"
            )

    def _until_it_returns(self, call: Callable[[], R]) -> R:
        self._keep()
        while True:
            try:
                result = call()
                if self._trainer.voided or self._has_updated(unseen=False):
                    self._end()
                    if self._trainer.rehearsing():
                        continue  # what it trained from is thrown away
                return result
            except Changed:
                pass
            except Exception as error:
                if not self._ring.is_failure(error):
                    raise
                self._end_broken(error)

    def _end_broken(self, error: Exception) -> None:
        # A collective of the script's own failed. If the update was made before it, the mini-batch counts (I5).
        if not self._has_updated(unseen=False):
            self._trainer.void(RingBroken(f"a collective of the training function failed: {error}"))
        with contextlib.suppress(Changed):
            self._end()
        self._trainer.begin_anew()

    def _end(self) -> None:
        if self._trainer.voided:
            self._trainer.begin_anew()  # instead of handing it out again
        generation = self._trainer.generation()
        self._end_and_keep()
        if self._trainer.generation() != generation:
            self._trainer.begin_anew()
            raise Changed

    def _end_and_keep(self) -> None:
        for state in self._states if self._trainer.voided else ():
            state._restore()
        for state in self._states:
            state._give()
        self._trainer.notify_batch_end()
        self._note_end()
        for state in self._states:
            state._take()
        self._keep()

    def _keep(self) -> None:
        for state in self._states:
            state._keep()

    def _note_end(self) -> None:
        self._updated, self._step = self._updates(), self._trainer.step()

    def _has_updated(self, *, unseen: bool) -> bool:
        """Tell whether the model was updated since the last end; `unseen` if that is not known."""
        if self._trainer.step() != self._step:  # the script ends mini-batches by itself, too, or a Keras callback does
            self._note_end()
        now = self._updates()
        return unseen if now is None else now != self._updated

    def _check_running(self, call: str) -> None:
        if not self._running:
            raise UsageError(
                f"{call} outside the training function: put @hvd.elastic.run on the function that trains, "
                "which is left and called anew when workers come or go"
            )


class RunPart(Protocol):
    """A part of a state with plain values of its own: a sampler, a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class State:
    """State of a training function: values as attributes, the same on all workers after each change.

    `commit()` keeps them. When a mini-batch is void they become again what they were at the last `commit()` or at the
    end of the last mini-batch, whichever was later; nothing else is ever rolled back.
    """

    _names: frozenset[str] = frozenset()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, run: Run, values: Mapping[str, Any], parts: Mapping[str, RunPart]) -> None:
        self._parts = dict(parts)
        self.__dict__.update(values)
        self.__dict__.update(parts)
        self._names = frozenset(values)
        self._run = run
        self._key = run.new_state(self)
        self._kept: dict[str, Any] = {}
        self._shared = run.register({self._key: {}})
        self._give()
        self._keep()
        run.on_resize(self._take)  # before callbacks of the script

    def commit(self) -> None:
        """Keep the values, and end the mini-batch if its update has been made since the last end.

        Unlike Horovod's it copies no model: an update that was made is never undone. Here, or where the next mini-batch
        is asked for, the workers may change; then the training function is left and called anew.
        """
        self._run.end_batch_if_updated()

    def check_host_updates(self) -> None:
        """Do the same as `commit()`: looking is free."""
        self._run.end_batch_if_updated()

    def save(self) -> None:
        """Keep the values, for `restore()`; a mini-batch does not end."""
        self._keep()

    def restore(self) -> None:
        """Restore values and samplers as of the last `commit()`. Models and optimizers stay, as edl undoes no update.

        Raises `errors.UsageError` if an update was made since.
        """
        self._run.check_undone("state.restore()")
        self._restore()

    def sync(self) -> None:
        """Take over what rank 0 has: models, optimizers, samplers and values. Call it on all workers.

        A training function of `elastic.run` needs no call: all workers have the same when it is called.
        """
        self._become(self._of_first(self._values()))
        self._give()
        self._keep()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Call these on every worker after each change of size, before the training function is called anew."""
        for callback in callbacks:
            self._run.on_resize(callback)

    def _of_first(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return rank 0's values. Models and optimizers become rank 0's in place."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------- what a run does with it

    def _give(self) -> None:
        # Registered values are what members receive at a change.
        values = self._values()
        for name, value in values.items():
            check_registrable(self._shared, f"{type(self).__name__}({name}=...)", value)
        setattr(self._shared, self._key, values)

    def _take(self) -> None:
        self._become(getattr(self._shared, self._key))

    def _keep(self) -> None:
        self._kept = copy.deepcopy(self._values())

    def _restore(self) -> None:
        self._become(copy.deepcopy(self._kept))

    def _values(self) -> dict[str, Any]:
        plain = {name: self.__dict__[name] for name in self._names}
        return plain | {name: part.state_dict() for name, part in self._parts.items()}

    def _become(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name in self._parts:
                self._parts[name].load_state_dict(value)
            else:
                self.__dict__[name] = value
