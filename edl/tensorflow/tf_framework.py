"""TensorFlow behind the runtime's port.

Owns: what the script has wrapped, and TensorFlow's ring. Does not own: the steps (`edl.tensorflow.tf_reducer`), nor
moving state (`edl.tensorflow.tf_state`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from edl.checkpoints.worker_stages import ElementRun
from edl.collectives.horovod_environment import prepare_environment
from edl.collectives.horovod_ring import HorovodRing
from edl.collectives.name_warmup import Named
from edl.errors import RingBroken, UsageError
from edl.protocol.divergence_report import Fingerprint
from edl.tensorflow import keras_optimizer, tf_random_states, v1_optimizer
from edl.tensorflow.graph_values import TensorNoise, TensorRate, TensorShare
from edl.tensorflow.keras_optimizer import CountedUpdates
from edl.tensorflow.kernels import kernels_for
from edl.tensorflow.tf_part_sums import GivenGradients, TensorFlowPartSums, Weight
from edl.tensorflow.tf_random_states import SeededNumbers
from edl.tensorflow.tf_reducer import Averaged, Measures, Reducer
from edl.tensorflow.tf_snapshot import TensorFlowSnapshot, bytes_in, restore
from edl.tensorflow.tf_state import (
    EagerVariables,
    SessionVariables,
    TensorFlowCollectives,
    Variables,
    broadcast_arrays,
    contents,
    read,
    synchronize,
)
from edl.tensorflow.tf_state_split import InParts, TensorFlowApart
from edl.tensorflow.tf_tensors import (
    TensorFlowTensors,
    batch_norm_of,
    behind,
    fingerprints,
    fingerprints_begun,
    fingerprints_of_session,
    has_all,
    metrics_of,
    named,
    statistics_of,
)
from edl.tensorflow.tf_unwrapped import KerasUnwrapped, optimizers_of, word_for
from edl.tensorflow.wait_meter import Waiting
from edl.trainer.first_state import check_same
from edl.trainer.framework_port import Fill, StepPort
from edl.trainer.virtual_steps import PartSums

WORDS_OF_HOROVOD = ("Horovod", "gloo")  # what the message of a failed collective is about


def _failed(error: BaseException) -> bool:
    """Horovod reports a failed collective as one of TensorFlow's errors, which say little; the message says more."""
    kinds = (
        tf.errors.UnknownError,
        tf.errors.AbortedError,
        tf.errors.FailedPreconditionError,
        tf.errors.CancelledError,
    )
    return isinstance(error, kinds) and any(word in str(error) for word in WORDS_OF_HOROVOD)


class TensorFlowFramework:
    """`edl.trainer.framework_port.Framework`, once per process."""

    def __init__(self) -> None:
        prepare_environment()
        self._collectives = TensorFlowCollectives()
        self.ring = HorovodRing("horovod.tensorflow", self._collectives, _failed, self._named)
        self.sort = self.stored_sort = TensorFlowTensors()
        self._share = TensorShare(lambda: self.ring.size)
        self._measures = Measures(Waiting(), TensorNoise())
        self._averaged = Averaged()
        self._rate = TensorRate()
        self._models: list[Any] = []
        self._optimizers: list[Any] = []
        self._reducers: list[Reducer] = []
        self._more_variables: list[Any] = []
        self._kept: list[Callable[[], None]] = []
        self._session: SessionVariables | None = None  # whose variables make up the model
        self._witnessed: list[Any] = []
        self._counted: tuple[int, ...] | None = None  # updates, when `applied` was asked last
        self._tape_reducer: Reducer | None = None
        self._given = GivenGradients()
        self._part_sums: TensorFlowPartSums | None = None
        self.unwrapped = KerasUnwrapped()
        self.updates_due = CountedUpdates()

    def wrap(self, trainer: StepPort, optimizer: Any, model: Any) -> None:
        """Carry out `edl.tensorflow.Optimizer`."""
        if is_wrapped(optimizer):
            raise UsageError("edl.Optimizer: this optimizer is wrapped already; wrap it once")
        late = self._comes_late(trainer)
        known = {variable.ref() for _, variable in self._eager_variables()} if late else set()
        reducer = self._reducer(trainer, len(self._optimizers))
        if keras_optimizer.is_keras(optimizer):
            keras_optimizer.attach(optimizer, reducer, self._rate)
            self.updates_due.add(optimizer, reducer.prefix)
            self.expect_traces()
        elif v1_optimizer.is_v1(optimizer):
            v1_optimizer.attach(optimizer, reducer, self._rate)
        else:
            raise UsageError(
                "edl.Optimizer: optimizer must be a keras.optimizers.Optimizer of Keras 3 or a "
                f"tf.compat.v1.train.Optimizer, not a {type(optimizer).__name__}"
            )
        self.track(optimizer)
        if model is not None:
            self.add_model(model)
        elif trainer.virtual:
            raise UsageError(
                "edl.Optimizer(optimizer): virtual workers add up what forward passes change in the model, too: give "
                "model=, or start the job without --virtual-workers"
            )
        if late:
            self._make_equal(trainer, [pair for pair in self._built_variables() if pair[1].ref() not in known])

    def _comes_late(self, trainer: StepPort) -> bool:
        """Return whether what is wrapped now must be made equal: what was there before the first step is."""
        return self.ring.size > 1 and tf.executing_eagerly() and trainer.committed > 0

    def _make_equal(self, trainer: StepPort, wrapped: list[tuple[str, Any]]) -> None:
        variables = EagerVariables(wrapped)
        parts = [f"{one.name} ({one.dtype}{list(one.shape)})" for one in variables.describe()]
        try:
            check_same(self.ring, parts)
            with self.ring.failing():
                variables.broadcast(0, receive=trainer.rank() != 0)
        except RingBroken as error:
            trainer.void_beside(error)

    def wrap_compiled(self, trainer: StepPort, model: Any) -> None:
        """Wrap all optimizers that a model has, in `fit`, before any of its steps is traced."""
        plain = (one for one in optimizers_of(model) if not keras_optimizer.is_wrapped(one))
        found = [one for one in plain if not self.unwrapped.is_local(one)]
        if not found:
            return
        for optimizer in found:
            self.wrap(trainer, optimizer, model)
        if model.jit_compile and not model.run_eagerly:  # by "auto", which has asked before the model was known here
            model.jit_compile = False
        model.make_train_function(force=True)

    def track(self, optimizer: Any) -> None:
        """Let an optimizer travel to newcomers."""
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
            if keras_optimizer.is_keras(optimizer):
                keras_optimizer.order(optimizer, functools.partial(self._build, optimizer))

    def track_variables(self, variables: Iterable[Any]) -> None:
        """Let these travel too, however they are updated."""
        self._more_variables.extend(variables)

    def tape_reducer(self, trainer: StepPort) -> Reducer:
        """Return the reducer of gradients that are averaged before the script gives them to an optimizer."""
        if self._tape_reducer is None:
            self._tape_reducer = self._reducer(trainer, "tape")
        return self._tape_reducer

    def _named(self) -> list[Named]:
        """Return what a step reduces. Any thread may call this."""
        return [one for reducer in list(self._reducers) for one in reducer.named()]

    def _reducer(self, trainer: StepPort, number: int | str) -> Reducer:
        reducer = Reducer(trainer, self.ring, self._share, self._measures, self._averaged, number)
        self._reducers.append(reducer)
        return reducer

    def expect_traces(self) -> None:
        """Functions will be traced that reduce: one that makes variables is traced twice, and it may make none at all
        if it was traced before without a reduction.
        """
        if tf.executing_eagerly():
            self._share.create()
            self._measures.waiting.create()

    def updates(self) -> tuple[int, ...] | None:
        """Return counts that change with each update, be it one that no worker had samples for.
        None: edl cannot tell.
        """
        counts = self.counts()
        return None if counts is None else (*counts, *(reducer.skipped for reducer in self._reducers))

    def counts(self) -> tuple[int, ...] | None:
        """Return counts that each update changes, be it only the scale of a loss that was not finite."""
        optimizers = [optimizer for optimizer in self._optimizers if keras_optimizer.is_keras(optimizer)]
        if not optimizers or not tf.executing_eagerly():
            return None
        return tuple(count for optimizer in optimizers for count in keras_optimizer.counts(optimizer))

    def add_model(self, model: Any) -> None:
        """Let a model travel to newcomers."""
        if not hasattr(model, "trainable_variables"):
            raise UsageError(f"edl.Optimizer: model must be a Keras model or a tf.Module, not a {type(model).__name__}")
        if not any(model is known for known in self._models):
            self._models.append(model)
        if hasattr(model, "supports_jit"):
            model.supports_jit = False  # compile(jit_compile="auto") would choose XLA, which knows nothing of Horovod's

    # ------------------------------------------------------------------------------------- the runtime's port

    def broadcast(self, contents: Sequence[Any], root: int) -> int:
        place = self.ring.place
        receive = place is not None and place.rank != root
        variables = [(one.name, one) for one in contents if not isinstance(one, np.ndarray)]
        arrays = [one for one in contents if isinstance(one, np.ndarray)]
        with self.ring.failing():
            moved = EagerVariables(variables).broadcast(root, receive)
            received = broadcast_arrays(arrays, root)
        for mine, theirs in zip(arrays, received, strict=True) if receive else ():
            np.copyto(mine, theirs)
        return moved + sum(one.nbytes for one in arrays)

    @property
    def name(self) -> str:
        return "tensorflow"

    def snapshot(self, *, beside: bool = False) -> TensorFlowSnapshot:
        if beside and not tf.executing_eagerly():
            raise UsageError("what a session of TensorFlow 1 has can be copied at the end of a mini-batch alone")
        variables = self._variables()
        graph = not tf.executing_eagerly()
        of_models = len(variables.describe()) if graph else len({one.ref() for _, one in self._of_models()})
        return TensorFlowSnapshot(variables, of_models, beside=beside)

    def witness(self) -> list[Any]:
        """Return the smallest variable that is trained, and the counts of updates; not their contents, which takes
        longer.
        """
        if not self._witnessed and tf.executing_eagerly():
            trained = (one for model in self._models for one in model.trainable_variables)
            smallest = min(trained, key=lambda one: math.prod(one.shape), default=None)
            counted = (one.iterations for one in self._optimizers if keras_optimizer.is_keras(one))
            self._witnessed = [named(one)[1] for one in (smallest, *counted) if one is not None]
        return read(self._witnessed)

    def is_as(self, witness: list[Any]) -> bool:
        return [value.tobytes() for value in contents(self.witness())] == [
            value.tobytes() for value in contents(witness)
        ]

    def restore(self, description: bytes, fill: Fill) -> None:
        restore(self._variables(), description, fill)
        self._counted = self.counts()

    def random_states(self) -> dict[str, bytes]:
        return tf_random_states.taken(self._models)

    def put_random_states(self, states: dict[str, bytes]) -> None:
        tf_random_states.give_back(self._models, states)

    def bytes_of(self, contents: Any) -> bytes:
        value = contents if isinstance(contents, np.ndarray) else contents.numpy()
        return np.ascontiguousarray(value).tobytes()

    def fill_stored(self, contents: Any, fill: Callable[[memoryview, int], None]) -> None:
        of_numpy = isinstance(contents, np.ndarray)
        dtype = contents.dtype if of_numpy else tf.as_dtype(contents.dtype).as_numpy_dtype
        value = np.empty(tuple(contents.shape), dtype)
        if value.nbytes:
            fill(bytes_in(value), 0)
        if of_numpy:
            np.copyto(contents, value)
        else:
            contents.assign(value)

    def held_by(self, contents: Any, processes: int) -> Sequence[Sequence[ElementRun]]:  # noqa: ARG002 - all is whole
        return ()

    @functools.cached_property
    def apart(self) -> TensorFlowApart | None:
        own = kernels_for([])
        return None if own is None else TensorFlowApart(self, own.before_update)

    def state_in_parts(self) -> InParts:
        """Early is what scripts may change by themselves, in a function of theirs too: an average of the model, say."""
        early, late, built = list[tuple[str, Any]](), list[tuple[str, Any]](), self._built_variables()
        updated = (one for optimizer in self._optimizers for one in keras_optimizer.updated(optimizer))
        learned = {named(one)[1].ref() for one in updated}
        for name, variable in built:
            (late if variable.ref() in learned else early).append((name, variable))
        owners = keras_optimizer.owners(self._optimizers, [variable for _, variable in late])
        return InParts(EagerVariables(early), EagerVariables(late), owners)

    def waits_for_state(self) -> bool:
        """Tell whether each update waits for a state that comes. What a script does with the gradients of a tape, and
        to variables that it has given by themselves, does not wait: in a function it may read them before.
        """
        return (
            tf.executing_eagerly()
            and self._tape_reducer is None
            and not self._more_variables
            and bool(self._optimizers)
            and all(isinstance(optimizer, keras_optimizer.Elastic) for optimizer in self._optimizers)
            and all(reducer.asks for reducer in self._reducers)
        )

    def before_update(self) -> bool:
        """Tell the trainer that an update is about to be made; return False where it is void. Any thread may call this:
        a function may be about to make the update.
        """
        return self._reducers[0].goes_on()

    def state_came(self) -> None:
        self._counted = self.counts()  # what came with the model is no update of this worker's

    def copied(self, contents: Sequence[Any]) -> Sequence[Any]:
        return [one.copy() if isinstance(one, np.ndarray) else one.numpy() for one in contents]

    def fill(self, contents: Sequence[Any], copies: Sequence[Any]) -> None:
        for one, copy in zip(contents, copies, strict=True):
            if isinstance(one, np.ndarray):
                np.copyto(one, copy)
            else:
                one.assign(copy)

    @property
    def built(self) -> bool:
        """Tell whether the state can be synchronized yet: models and optimizers may make their variables late."""
        if not tf.executing_eagerly():
            return tf.compat.v1.get_default_session() is not None
        return all(map(has_all, self._models))

    def synchronize(self, root: int) -> int:
        self._note_session()
        moved = synchronize(self._variables(), self.ring, root)
        self.state_came()
        return moved

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None:
        self._note_session()
        place, rest = self.ring.place, list(map(named, self._rest(only_statistics)))
        if place is not None and place.size > 1 and rest:
            with self.ring.failing():
                EagerVariables(rest).broadcast(root, receive=place.rank != root)

    @property
    def knows(self) -> bool:
        wrapped = self._optimizers or self._models or self._more_variables or self._tape_reducer is not None
        return bool(wrapped or self.unwrapped.any_seen)

    def leave_alone(self, optimizer: Any) -> None:
        """Carry out `edl.tensorflow.local`."""
        if not keras_optimizer.is_keras(optimizer) or keras_optimizer.is_wrapped(optimizer):
            kind = f"a {type(optimizer).__name__}"
            if keras_optimizer.is_keras(optimizer):
                kind = "what edl.Optimizer gave"
            raise UsageError(f"edl.local(optimizer): give it a Keras optimizer that is not wrapped, not {kind}")
        self.unwrapped.leave_alone(optimizer)

    def fingerprints(self, more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
        if not tf.executing_eagerly():
            return fingerprints_of_session(self._learned_in_graph(), more)
        return fingerprints(itertools.chain(self._compared(), more))

    def fingerprints_begun(self, more: Iterable[tuple[str, Any]]) -> Callable[[], list[Fingerprint]] | None:
        if not tf.executing_eagerly():
            return None
        return fingerprints_begun(itertools.chain(self._compared(), more))

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        self._share.set(weight, weightless=weightless)

    def part_sums(self, trainer: StepPort) -> PartSums:
        if not tf.executing_eagerly():
            raise UsageError(
                "a graph of TensorFlow 1 cannot compute virtual workers one by one: execute eagerly, or start the job "
                "without --virtual-workers"
            )
        numbers = SeededNumbers(lambda: self._models)
        self._part_sums = TensorFlowPartSums(
            trainer, self.ring, self._reducers, self._changed, numbers.begin_with, self._collectives.sum
        )
        self._given = self._part_sums.given
        return self._part_sums

    def _changed(self) -> Iterator[Weight]:
        """Yield what steps change in the models: what is trained, and what forward passes change."""
        self._built_variables()
        for number, model in enumerate(self._models):
            weights = getattr(model, "weights", None)
            statistics = None if weights is None else {id(one) for one in statistics_of(model)}
            for place, one in enumerate(model.variables if weights is None else weights):
                is_moved = not one.trainable and (statistics is None or id(one) in statistics)
                if one.trainable or is_moved:
                    yield Weight(f"{number}.{place}", one, is_moved)

    def add_gradients(self, trainer: StepPort, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Carry out `edl.tensorflow.add_gradients`."""
        self._given.add(gradients, variables, trainer.step())

    def summed_gradients(self, variables: Sequence[Any]) -> list[Any]:
        """Carry out `edl.tensorflow.summed_gradients`."""
        if self._part_sums is not None:
            return self._part_sums.summed(variables)
        given = self._given.take()
        return [given.get(id(behind(one))) for one in variables]

    def applied(self) -> float | None:
        before, self._counted = self._counted, self.counts()
        if self._counted is None:
            return None
        return 0.0 if self._counted == before else self._share.value

    def keep(self, *, only_statistics: bool) -> None:
        """Keep what is to be put back after a step: of a step that no worker has samples for, all there is, as inside a
        graph nothing else holds updates back.
        """
        if self._session is not None:
            self._kept += [] if only_statistics else [self._session.remember()]
        else:
            batch_norm = (one for model in self._models for one in batch_norm_of(model))
            metrics = (one for model in self._models for one in metrics_of(model))
            learned = () if only_statistics else (variable for _, variable in self._eager_variables())
            self._kept.append(EagerVariables([*map(named, (*batch_norm, *metrics, *learned))]).remember())

    def keep_hyper_parameters(self) -> None:
        hyper_parameters = [named(one) for one in self._hyper_parameters()]
        if hyper_parameters and tf.executing_eagerly():
            self._kept.append(EagerVariables(hyper_parameters).remember())

    def note_living(self) -> None:
        """Do nothing: variables that a script trains by hand are not looked for."""

    def drop_kept(self) -> None:
        self._kept = []

    def put_back(self) -> None:
        kept, self._kept = self._kept, []
        for put_back in reversed(kept):
            put_back()

    def scale_rates(self) -> None:
        self._rate.use()

    def adding_up(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # the script itself adds up what its tapes give

    def measure_noise(self) -> None:
        self._measures.noise.use()

    def expect_noise(self, *, due: bool) -> None:
        self._measures.noise.expect(due)

    def take_noise(self) -> tuple[float, float] | None:
        return self._measures.noise.take(max(1, len(self._optimizers)))

    def set_rate(self, factor: float) -> None:
        self._rate.set(factor)

    def discard(self) -> None:
        """Forget gradients of parts. A call of TensorFlow returns with its collectives done, or failed."""
        self._given.take()

    # -------------------------------------------------------------------------------------- what is the state

    def _variables(self) -> Variables:
        if not tf.executing_eagerly():
            return SessionVariables()
        return EagerVariables(self._built_variables())

    def _built_variables(self) -> list[tuple[str, Any]]:
        if not self.built:
            raise UsageError("edl.Optimizer(model=...): this model has no variables yet; call model.build(...) first")
        return self._eager_variables()

    def _note_session(self) -> None:
        """Note the session around the script's calls of edl: other threads do not see it."""
        if not tf.executing_eagerly() and tf.compat.v1.get_default_session() is not None:
            self._session = SessionVariables()

    def _eager_variables(self) -> list[tuple[str, Any]]:
        known: dict[Any, tuple[str, Any]] = {}
        for name, variable in (*self._of_models(), *self._of_optimizers(), *map(named, self._more_variables)):
            known.setdefault(variable.ref(), (name, variable))
        return list(known.values())

    def _compared(self) -> Iterable[tuple[str, Any]]:
        """Name what is compared among workers, without statistics: batch norm's differ from worker to worker between
        two changes of the ring.

        What a script tracks by itself may be such, too, unless it is trained.
        """
        own = {named(variable)[1].ref() for variable in self._rest(only_statistics=True)}
        of_optimizers = list(self._of_optimizers())  # which builds those that are not built yet
        known: dict[Any, tuple[str, Any]] = {}
        for name, variable in map(named, self._hyper_parameters()):  # first: what differs here, makes the rest
            known[variable.ref()] = (name, variable.numpy())
        for name, variable in (*self._learned(), *of_optimizers):
            if variable.ref() not in own:
                known.setdefault(variable.ref(), (name, variable))
        for variable, word in self.unwrapped.trained(self._optimizers):  # it is not averaged: then that is the cause
            known[behind(variable).ref()] = (word_for(variable, word), behind(variable))
        return known.values()

    def _learned(self) -> Iterable[tuple[str, Any]]:
        for model in self._models:
            yield from map(named, getattr(model, "weights", None) or model.trainable_variables)
        yield from (pair for pair in map(named, self._more_variables) if pair[1].trainable)

    def _learned_in_graph(self) -> list[Any]:
        """Return what is trained, and what the optimizers keep; the graph's other variables may be
        each worker's own.
        """
        session = tf.compat.v1.get_default_session()
        if session is None:
            return []
        trained = session.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        kept = [one for optimizer in self._optimizers if v1_optimizer.is_v1(optimizer) for one in optimizer.variables()]
        known = {variable.ref(): variable for variable in (*trained, *kept) if variable.graph is session.graph}
        return list(known.values())

    def _of_models(self) -> Iterable[tuple[str, Any]]:
        """Yield weights and statistics; not the state of random numbers and of metrics, which is each worker's own."""
        for model in self._models:
            for variable in getattr(model, "weights", None) or model.variables:
                yield named(variable)

    def _rest(self, only_statistics: bool) -> Iterable[Any]:
        """Return the variables that are not learned; none in a graph, where nothing tells one from the other."""
        if not tf.executing_eagerly():
            return
        for model in self._models:
            yield from statistics_of(model)
        if not only_statistics:
            yield from self._hyper_parameters()

    def _hyper_parameters(self) -> Iterable[Any]:
        for optimizer in self._optimizers:
            if keras_optimizer.is_keras(optimizer) and optimizer.built:
                yield from keras_optimizer.hyper_parameters(optimizer)

    def _of_optimizers(self) -> Iterable[tuple[str, Any]]:
        for optimizer in self._optimizers:
            if keras_optimizer.is_keras(optimizer):
                self._build(optimizer)
                trained = optimizer._trainable_variables
                yield from map(named, (*trained, *optimizer.variables))
            else:
                yield from map(named, (*optimizer._edl_variables.values(), *optimizer.variables()))

    def _build(self, optimizer: Any, updated: Sequence[Any] = ()) -> None:
        """Slots come into being with the first update; a newcomer's rehearsal had it, and the root may not yet. So they
        are those of all that can be trained, and of what is `updated` besides.
        """
        if optimizer.built or len(self._optimizers) != 1:
            return
        variables = [variable for model in self._models for variable in model.trainable_variables]
        known = set(map(id, variables))
        if variables:
            with _outside_functions():
                optimizer.build([*variables, *(one for one in updated if id(one) not in known)])


@contextlib.contextmanager
def _outside_functions() -> Iterator[None]:
    """Variables made here are not those of a function that is being traced: it would be traced twice. A graph that is
    the default one for nothing else hides what watches for them.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        yield
        return
    with tf.Graph().as_default(), context.eager_mode():
        yield


def is_wrapped(optimizer: object) -> bool:
    """Tell whether `edl.tensorflow.Optimizer` was given `optimizer`."""
    return isinstance(optimizer, (keras_optimizer.Elastic, v1_optimizer.Elastic))
