"""edl for TensorFlow and Keras: `import edl.tensorflow as edl`.

The names here and in `edl.torch` are the same, with the same meaning and the same signatures. A script uses one of the
two; a process has one seat in one job.

A script of Horovod's writes `import edl.tensorflow as hvd`: `hvd.elastic` is there, and so are Horovod's collectives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edl.collectives.horovod_environment import BUILD, has_horovod
from edl.errors import ConfigError

if not has_horovod("tensorflow"):  # before TensorFlow takes its seconds
    raise ConfigError(f"edl.tensorflow averages gradients by Horovod, which is not installed for TensorFlow: {BUILD}")

import keras

import edl
from edl import errors
from edl.errors import UsageError
from edl.policy.learning import Knee, Warmup
from edl.sources.streams.elastic_stream import ElasticStream
from edl.tensorflow import keras_callbacks, keras_names, tf_horovod_names, tf_loading
from edl.tensorflow import tf_elastic as elastic
from edl.tensorflow.dataset import dataset_of, dataset_of_arrays
from edl.tensorflow.keras_fit import ElasticFit, Fits
from edl.tensorflow.tf_framework import is_wrapped
from edl.tensorflow.tf_process import framework as _framework
from edl.tensorflow.tf_process import trainer as _trainer
from edl.tensorflow.tf_reducer import AveragingTape, Voidable
from edl.trainer.data.shards import ShardGenerator
from edl.trainer.exit_paths import Leaving
from edl.trainer.learning_rates import RateTuner
from edl.trainer.module_aliases import alias

AnyOptimizer = TypeVar("AnyOptimizer")

_fits = Fits()

init = _trainer.init
shutdown = _trainer.shutdown
rank = _trainer.rank
size = _trainer.size
local_rank = _trainer.local_rank
step = _trainer.step
epoch = _trainer.epoch
generation = _trainer.generation
group_rank = _trainer.group_rank
group_size = _trainer.group_size
part_weight = _trainer.data.part_weight
own_samples = _trainer.data.own_samples
rehearsing = _trainer.rehearsing
notify_batch_end = _trainer.notify_batch_end
checkpoint = _trainer.checkpoint
resumed = _trainer.resumed
on_resize = _trainer.on_resize
register = _trainer.register
report = _trainer.report
scale_rate = _trainer.rates.scale_rate
measure_noise = _trainer.rates.measure_noise
gradient_noise = _trainer.rates.gradient_noise
schedule_rate = _trainer.rates.schedule_rate
microbatches = bites = _trainer.data.microbatches  # bites: the name of before
elastic_shard_generator = _trainer.data.elastic_shard_generator
evaluate = _trainer.data.evaluate
gather_for_metrics = _trainer.data.gather_for_metrics


class _Wrapped(type):
    """Count wrapped optimizers of any class as instances of `Optimizer`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return is_wrapped(instance)


class Optimizer(keras.optimizers.Optimizer, metaclass=_Wrapped):  # type: ignore[misc] # mypy knows no types of Keras
    """Make `optimizer` average gradients over all workers, weighted by their samples, before it applies them.

    Returns the same object, still an instance of its class, and of `edl.Optimizer`, too.

    Args:
        optimizer: any optimizer of Keras 3, for `fit` and for loops with `tf.GradientTape`, eagerly or inside a
            `tf.function`; or one of `tf.compat.v1.train`, for graphs.
        model: the Keras model or `tf.Module` that it trains. All its weights (batch-norm statistics, ...) then reach
            newcomers; without it only the variables that the optimizer updates do. Not needed in graphs.

    When a peer is lost in the middle of a step, the variables are left alone. Eagerly and in `fit` the step then just
    returns and `notify_batch_end()` returns False; a `tf.function` or a session of your own raises what TensorFlow
    raises, unless it is called inside `with edl.voidable():`.

    >>> layers = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> wrapped = edl.Optimizer(keras.optimizers.SGD(0.1), model=layers)
    >>> isinstance(wrapped, keras.optimizers.SGD)
    True
    """

    def __new__(cls, optimizer: AnyOptimizer, model: Any = None) -> AnyOptimizer:  # type: ignore[misc]
        if not _trainer.seating.imports_only:
            _framework.wrap(_trainer, optimizer, model)
        return optimizer


def local(optimizer: Any) -> None:
    """Say that what `optimizer` trains is each worker's own: nothing of it is averaged, compared, or sent to newcomers.

    Without that, an optimizer that `Optimizer` was not given ends the job once workers differ in what it trains.

    >>> edl.local(keras.optimizers.SGD(0.1))
    """
    _framework.leave_alone(optimizer)


def GradientTape(  # noqa: N802 - stands where a class would
    persistent: bool = False, watch_accessed_variables: bool = True
) -> AveragingTape:
    """A `tf.GradientTape` whose `gradient()` averages those of variables over all workers, weighted by their samples.

    So what stands between it and `apply_gradients` is right as it stands: `tf.clip_by_global_norm`, looking at norms,
    skipping a step on nan. With it belongs `edl.Optimizer`, which then averages nothing. Gradients with respect to
    other tensors stay this worker's own, and so do those that a plain `tf.GradientTape` gives; take one for gradients
    that are part of a loss.

    >>> weight = tf.Variable(3.0)
    >>> with edl.GradientTape() as tape:
    ...     loss = weight * weight
    >>> float(tape.gradient(loss, weight))
    6.0
    """
    return AveragingTape(_framework.tape_reducer(_trainer), persistent, watch_accessed_variables)


def add_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Give the gradients of one part of `edl.microbatches(batch)`, which a `tf.GradientTape` has found for `variables`.

    Call it for each part, outside of any `tf.function`; the gradients may come from one.

    >>> weight = tf.Variable(3.0)
    >>> for part, share in edl.microbatches(np.arange(4.0, dtype=np.float32), 2):
    ...     with tf.GradientTape() as tape:
    ...         loss = share * tf.reduce_mean(weight * part)
    ...     edl.add_gradients(tape.gradient(loss, [weight]), [weight])
    >>> [float(gradient) for gradient in edl.summed_gradients([weight])]
    [1.5]
    """
    _framework.add_gradients(_trainer, gradients, variables)


def summed_gradients(variables: Sequence[Any]) -> list[Any]:
    """Return the gradients of all parts that `edl.add_gradients` was given, for these variables, to clip and to apply.

    Call it once after the loop over parts. With virtual workers they are those of all workers, equal to the bit however
    many there are; else this worker's, and the optimizer averages them. None where no part gave any.

    >>> used, unused = tf.Variable(1.0), tf.Variable(1.0)
    >>> for part, share in edl.microbatches(np.arange(4.0, dtype=np.float32), 2):
    ...     with tf.GradientTape() as tape:
    ...         loss = share * tf.reduce_mean(used * part)
    ...     edl.add_gradients(tape.gradient(loss, [used, unused]), [used, unused])
    >>> gradients = edl.summed_gradients([used, unused])
    >>> float(gradients[0]), gradients[1]
    (1.5, None)
    """
    return _framework.summed_gradients(variables)


def elastic_dataset(
    source: Any, batch_size: int, shuffle: bool = False, seed: int = 0, epochs: int | None = None
) -> Any:
    """Make a `tf.data.Dataset` of this worker's samples: one element per step, as from `shards.batches(batch_size)`.

    Args:
        source: arrays or tensors with a row for each sample, nested in tuples and dicts as `fit` takes them, such as
            `(x, y)`; an `edl.ElasticStream`; or what `edl.elastic_shard_generator()` returned.
        batch_size: samples of one step of one worker; the last step of an epoch may have fewer.
        shuffle: each epoch has an order of its own. This and what follows is for arrays alone.
        seed: of that order, the same on all workers.
        epochs: passes in all, where `fit` does not count them.

    Of arrays an element is the same nesting with the rows of a step. Of a generator it is a vector of sample ids; for
    files a vector of strings (text, TFRecord) or a dict of one vector for each column (CSV, JSON Lines, Parquet). Put
    `.map(...)` and `.prefetch(...)` behind it, but neither `.shuffle()` nor `.batch()`.

    Given arrays it joins the job, unless the script has called `edl.init()` before. Under plain `horovodrun` it must.

    >>> for values in edl.elastic_dataset(np.arange(6.0), 4, epochs=1):
    ...     print(values.numpy())
    ...     train_on(range(len(values)))
    ...     committed = edl.notify_batch_end()
    [0. 1. 2. 3.]
    [4. 5.]
    """
    if not isinstance(source, ShardGenerator):
        if not _trainer.began:
            _trainer.init()
        if isinstance(source, ElasticStream):
            return dataset_of(_trainer.data.elastic_shard_generator(source, epochs, shuffle), batch_size)
        generator = partial(_trainer.data.elastic_shard_generator, epochs=epochs, shuffle=shuffle, seed=seed)
        return dataset_of_arrays(source, generator, batch_size)
    if (shuffle, seed, epochs) != (False, 0, None):
        raise UsageError(
            "edl.elastic_dataset(shards, batch_size): say shuffle, seed and epochs to edl.elastic_shard_generator()"
        )
    return dataset_of(source, batch_size)


def voidable() -> Voidable:
    """`with edl.voidable():` around the call of a `tf.function` or `session.run` that trains one mini-batch.

    When a peer is lost meanwhile, the mini-batch is void: the call ends without an exception and without an update,
    and the `notify_batch_end()` that follows returns False. All other errors are raised.

    >>> compiled = tf.function(lambda: train_on(range(2)))
    >>> with edl.voidable():
    ...     compiled()
    >>> edl.notify_batch_end()
    True
    """
    return Voidable(_trainer, _framework.ring)


def KerasCallback() -> ElasticFit:  # noqa: N802 - stands where a class would
    """Make `fit` elastic: `model.fit(dataset, epochs=10, validation_data=..., callbacks=[..., edl.KerasCallback()])`.

    It calls `notify_batch_end()` after each batch. Each pass of all workers over edl's data is an epoch of `fit`, with
    the same number and metrics on all of them; newcomers and resumed jobs come into the epoch that the job is in, with
    what its callbacks have counted. Workers share out the validation, and only rank 0 writes files. A model that was
    compiled with a plain optimizer gets it wrapped, as by `edl.Optimizer(optimizer, model=model)`, and so are all that
    the model has by other names.

    >>> layers = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> layers.compile(keras.optimizers.SGD(0.1), loss="mse")
    >>> dataset = edl.elastic_dataset((np.ones((8, 4)), np.ones((8, 1))), 4)
    >>> history = layers.fit(dataset, epochs=2, verbose=0, callbacks=[edl.KerasCallback()])
    >>> len(history.history["loss"])
    2
    """
    return ElasticFit(
        _trainer, _framework.ring, _fits, elastic.end_batch_of_fit, partial(_framework.wrap_compiled, _trainer)
    )


def load_checkpoint(path: str | os.PathLike[str], model: Any) -> None:
    """Put the weights and statistics of a checkpoint into `model`, outside of any job: to evaluate it, say.

    Args:
        path: a checkpoint, the folder or URL of a job's, or one with those of a single job. Of several the newest that
            is whole counts.
        model: built as the job's was: a Keras model, a `tf.Module`, or a list of all that were given to
            `edl.Optimizer(..., model=model)`, in that order. Its variables keep their devices and dtypes. In a graph of
            TensorFlow 1 a list of variables, which are found by name.

    Raises `errors.UsageError` where the model has another number of variables or other shapes,
    `errors.CheckpointError` where there is nothing whole to load; the model is as it was then.

    >>> try:
    ...     edl.load_checkpoint("checkpoints", keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    ... except edl.errors.EdlError as error:
    ...     print(error)
    there is no checkpoint in checkpoints: name the folder that --checkpoint named
    """
    tf_loading.load(path, model)


if TYPE_CHECKING:
    from edl.launch.function_run import run as run
    from edl.tensorflow.horovod_types import *  # noqa: F403 - the names that `__getattr__` finds
else:

    def __getattr__(name: str) -> Any:
        """Look up Horovod's own names, `hvd.allreduce` and so on, and `edl.run`."""
        return edl.run if name == "run" else tf_horovod_names.lookup(__name__, name)  # what workers need not import


for _module in tf_horovod_names.MODULES:
    alias(f"{__name__}.{_module}", partial(tf_horovod_names.lookup, __name__))
alias(f"{__name__}.keras", keras_names.lookup)
alias(f"{__name__}.keras.callbacks", partial(getattr, keras_callbacks))
sys.modules[f"{__name__}.elastic"] = elastic
alias(f"{__name__}.keras.elastic", keras_names.lookup_elastic)


__all__ = [
    "ElasticStream",
    "GradientTape",
    "KerasCallback",
    "Knee",
    "Leaving",
    "Optimizer",
    "RateTuner",
    "Warmup",
    "add_gradients",
    "bites",
    "checkpoint",
    "elastic_dataset",
    "elastic_shard_generator",
    "epoch",
    "errors",
    "evaluate",
    "gather_for_metrics",
    "generation",
    "gradient_noise",
    "group_rank",
    "group_size",
    "init",
    "load_checkpoint",
    "local",
    "local_rank",
    "measure_noise",
    "microbatches",
    "notify_batch_end",
    "on_resize",
    "own_samples",
    "part_weight",
    "rank",
    "register",
    "rehearsing",
    "report",
    "resumed",
    "run",
    "scale_rate",
    "schedule_rate",
    "shutdown",
    "size",
    "step",
    "summed_gradients",
    "voidable",
]
