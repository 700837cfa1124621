"""One model in each of TensorFlow's ways of training, by workers that come and go."""

import contextlib
import os
import zlib
from typing import Any

import hanging
import keras
import path
import task
import tensorflow as tf

options = path.parser.parse_args()
if options.way == "graph":
    tf.compat.v1.disable_eager_execution()

import edl.tensorflow as edl  # noqa: E402 - as in a script that was written long before edl

tf.config.threading.set_intra_op_parallelism_threads(1)
options.out.mkdir(parents=True, exist_ok=True)
edl.init(batch_size=task.BATCH)
keras.utils.set_random_seed(os.getpid())  # every worker begins with another model, and must be given the job's
inputs, targets = tf.constant(task.INPUTS), tf.constant(task.TARGETS)
shards = edl.elastic_shard_generator(
    task.SAMPLES, epochs=options.epochs if options.way != "fit" else None, shuffle=True
)
extra = edl.register(batches=0)
traces: list[bool] = []  # each time Python runs what TensorFlow traces: is it the rehearsal?
result: dict[str, Any] = {"newcomer": edl.rehearsing()}


def mean_square(wanted: Any, found: Any) -> Any:
    traces.append(edl.rehearsing())
    return tf.reduce_mean(tf.square(wanted - found))


batches: list[int] = []  # checksums of their ids, as the script has them in its hands


def note(ids: Any) -> Any:
    batches.append(zlib.crc32(ids))
    return ids


def alone() -> None:
    """A collective that no other worker comes to."""
    edl.allreduce(tf.ones(1), name="mine_alone")


def caught() -> None:
    """The same in a script that goes on after the error."""
    with contextlib.suppress(tf.errors.OpError):
        alone()


def load() -> None:
    """From a pipeline that never gives anything."""
    stuck = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(hanging.asleep, [number], tf.int64))
    next(iter(stuck))


def before_end() -> None:
    path.pause(options)
    hanging.here(options.out, collective=alone, astray=caught, loader=load)
    extra.batches += 1


def end_batch() -> None:
    before_end()
    edl.notify_batch_end()


def go_on() -> bool:
    return shards.epochs_done < path.epochs_wanted(options)


def small_model(*more: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, "tanh"), *more, keras.layers.Dense(1)])


def values(*holders: Any) -> list[Any]:
    return [variable.numpy() for holder in holders for variable in holder]


def trained_values(model: keras.Model, optimizer: Any, average: keras.Model) -> list[Any]:
    """Without statistics of batch norm, which are each survivor's own."""
    return values(model.trainable_variables, optimizer.variables, average.trainable_variables)


class Averaged:
    """A moving average of a model, as the script keeps it: a second model, which is registered."""

    def __init__(self, model: keras.Model) -> None:
        self.model, self.ema = model, keras.models.clone_model(model)
        edl.register(ema=self.ema)

    def update(self) -> None:
        for mine, theirs in zip(self.ema.weights, self.model.weights, strict=True):
            mine.assign(0.9 * mine + 0.1 * theirs)


def follow() -> path.Slowing:
    """The rates, the batch and the samples trained."""
    edl.scale_rate("sqrt", base_batch=2 * task.BATCH)
    slowing = path.Slowing()
    edl.schedule_rate(slowing, epochs=slowing.EPOCHS)
    return slowing


def expect_counted(slowing: path.Slowing) -> None:
    slowing.expect_each_sample_counted_once(edl.size() * task.BATCH, task.SAMPLES, shards.epochs_done)


def tried(model: keras.Model, multipliers: tuple[float, ...]) -> list[float]:
    """The losses after steps on samples of this worker's own."""
    ids = tf.range(8) + 8 * edl.rank()
    weights = model.trainable_variables
    before = values(weights)

    def loss() -> Any:
        return tf.reduce_mean(tf.square(tf.gather(targets, ids) - model(tf.gather(inputs, ids), training=False)))

    with tf.GradientTape() as recorded:
        lost = loss()
    slopes = recorded.gradient(lost, [weight.value for weight in weights])
    losses = []
    for multiplier in multipliers:
        for weight, value, slope in zip(weights, before, slopes, strict=True):
            weight.assign(value - 0.01 * multiplier * slope)
        own = multiplier - 0.99 - edl.rank() / 100  # alone, each worker would go elsewhere
        losses.append(float(loss()) + 100 * own**2)
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)
    return losses


def noise() -> list[float]:
    """As measured, on all workers alike."""
    found = edl.gradient_noise()
    assert found is not None
    return [found.sqr, found.var]


def tape(traced: bool) -> list[Any]:
    """The custom loop, eagerly or with its step in a tf.function: with clipping, one of Keras's schedules, a moving
    average of the model, dropout, and the statistics of batch norm.

    One of them counts samples for its rate, the other one tunes it.
    """
    slowing = None if traced else follow()
    edl.measure_noise(every=3)
    tuner = edl.RateTuner(lambda multipliers: tried(model, multipliers), every=7)
    if traced:
        edl.schedule_rate(tuner, epochs=1000)
    model = small_model(keras.layers.BatchNormalization(), keras.layers.Dropout(0.2))
    decay = keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=10, decay_rate=0.99)
    optimizer = edl.Optimizer(keras.optimizers.Adam(decay), model=model)  # its variables come with the first step
    averaged = Averaged(model)
    path.tell_of_switches(edl, options.out, lambda: trained_values(model, optimizer, averaged.ema))

    def step(ids: Any) -> None:
        with edl.GradientTape() as recorded:
            loss = mean_square(tf.gather(targets, ids), model(tf.gather(inputs, ids), training=True))
        weights = model.trainable_variables
        gradients, _ = tf.clip_by_global_norm(recorded.gradient(loss, weights), 0.5)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    train = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)]) if traced else step
    while go_on():
        for ids in shards.batches(task.BATCH):
            with edl.voidable():
                train(tf.constant(note(ids)))
            averaged.update()
            end_batch()
    if slowing is not None:
        expect_counted(slowing)
    else:
        assert tuner.at(1.0) != 1.0, "it has found the rate to be exactly right"
    learned = values(model.trainable_variables, averaged.ema.trainable_variables, optimizer.variables)
    return [*learned, [tuner.at(1.0)], noise()]


def dataset() -> list[Any]:
    """A pipeline of tf.data that reads ahead, in batches; eagerly, as a void mini-batch comes again there."""
    model = small_model()
    optimizer = edl.Optimizer(keras.optimizers.Adam(0.01), model=model)
    pipeline = edl.elastic_dataset(shards, task.BATCH)
    pipeline = pipeline.map(lambda ids: (tf.gather(inputs, ids), tf.gather(targets, ids))).prefetch(3)
    while go_on():
        for rows, wanted in shards.in_step(pipeline):
            with tf.GradientTape() as recorded:
                loss = mean_square(wanted, model(rows))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(recorded.gradient(loss, weights), weights, strict=True))
            end_batch()
    return values(model.weights, optimizer.variables)


def horovod() -> list[Any]:
    """As Horovod's elastic examples are written: a tape of its own, a state, a restarted function."""
    import edl.tensorflow as hvd

    model = small_model()
    optimizer = keras.optimizers.Adam(0.01 * hvd.size())
    pipeline = edl.elastic_dataset(shards, task.BATCH)
    pipeline = pipeline.map(lambda ids: (tf.gather(inputs, ids), tf.gather(targets, ids))).prefetch(2)

    def step(rows: Any, wanted: Any, averaged: bool = True) -> Any:
        with tf.GradientTape() as recorded:
            loss = mean_square(wanted, model(rows))
        if averaged:
            recorded = hvd.DistributedGradientTape(recorded)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(recorded.gradient(loss, weights), weights, strict=True))
        return loss

    train_step = tf.function(step, reduce_retracing=True)
    train_step(inputs[:1], targets[:1], averaged=False)  # so that the variables are there
    hvd.broadcast_variables(model.variables, root_rank=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(state.batch)
        while go_on():
            for rows, wanted in pipeline:
                optimizer.learning_rate.assign(0.01 * hvd.size() / (1 + state.batch / 100))
                loss = train_step(rows, wanted)
                state.losses.append(float(hvd.allreduce(loss, name="loss")))
                del state.losses[:-3]
                path.pause(options)
                state.batch += 1
                state.commit()

    calls: list[int] = []
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, losses=[])
    everything = lambda: [*values(model.weights, optimizer.variables), [state.batch], state.losses]  # noqa: E731
    path.tell_of_switches(edl, options.out, everything)
    train(state)
    assert calls == sorted(calls), "a mini-batch was counted again"
    assert edl.step() - 1 - state.batch in {0, 1}, "the killed one may have hit the others between update and count"
    return everything()


class Seen(keras.metrics.Metric):  # type: ignore[misc]
    """How many samples; over all workers, an epoch has each once."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.count = self.add_variable((), "zeros", dtype="float32", name="count")

    def update_state(self, wanted: Any, found: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(wanted)[0], tf.float32))

    def result(self) -> Any:
        return self.count


def fit() -> list[Any]:
    """Keras's own loop in mixed precision, with weights of classes, fed by a pipeline that reads ahead; and as above,
    clipping, a schedule, a moving average, dropout.
    """

    class Before(keras.callbacks.Callback):  # type: ignore[misc]
        rehearsed = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            averaged.update()
            before_end()
            self.rehearsed = edl.rehearsing()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = not go_on()

    class After(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if before.rehearsed:
                result["averaged"] = float(self.model.metrics[0].count.numpy())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            result["epoch"] = {"done": shards.epochs_done, **{name: float(logs[name]) for name in ("loss", "seen")}}

    before = Before()
    edl.measure_noise(every=3)
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = small_model(keras.layers.Activation("linear", dtype="float32"), keras.layers.Dropout(0.2))
    averaged = Averaged(model)
    ids = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(task.BATCH)
    ids = ids.map(lambda i: tf.ensure_shape(tf.numpy_function(note, [i], tf.int64), [None]))
    classes = tf.constant(task.TARGETS > 0, tf.int32)
    dataset = ids.map(lambda i: (tf.gather(inputs, i), tf.gather(classes, i))).prefetch(2)
    decay = keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=10, decay_rate=0.99)
    adam = keras.optimizers.Adam(decay, global_clipnorm=0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0**20, dynamic_growth_steps=7)
    optimizer = edl.Optimizer(optimizer, model=model)
    path.tell_of_switches(edl, options.out, lambda: trained_values(model, optimizer, averaged.ema))
    loss = lambda wanted, found: mean_square(tf.cast(wanted, tf.float32), tf.cast(found, tf.float32))  # noqa: E731
    model.compile(optimizer=optimizer, loss=loss, metrics=[Seen()])
    model.fit(
        dataset,
        epochs=options.epochs or 10**6,
        shuffle=False,
        verbose=0,
        class_weight={0: 1.0, 1: 2.0},
        callbacks=[before, edl.KerasCallback(), After()],
    )
    assert result["epoch"]["seen"] == task.SAMPLES, result["epoch"]
    learned = values(model.weights, averaged.ema.weights, optimizer.variables)
    return [*learned, list(result["epoch"].values()), noise()]


def graph() -> list[Any]:
    """Listing 1 of the paper, and the ids of each batch fetched with its update."""
    v1 = tf.compat.v1
    slowing = follow()
    dataset = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(task.BATCH)
    iterator = v1.data.make_initializable_iterator(dataset)
    ids = iterator.get_next()
    weights = [v1.get_variable(f"w{i}", shape) for i, shape in enumerate([(8, 6), (6,), (6, 1), (1,)])]
    hidden = tf.tanh(tf.gather(inputs, ids) @ weights[0] + weights[1])
    loss = mean_square(tf.gather(targets, ids), hidden @ weights[2] + weights[3])
    opt = edl.Optimizer(v1.train.AdamOptimizer(0.01))
    obj = opt.minimize(loss)
    begin = v1.global_variables_initializer()
    v1.get_default_graph().finalize()  # whatever happens from here on adds nothing to it
    with v1.Session() as s:
        s.run(begin)
        path.tell_of_switches(edl, options.out, lambda: s.run(v1.global_variables()))
        while go_on():
            s.run(iterator.initializer)
            while True:
                try:
                    with edl.voidable():
                        note(s.run([obj, ids])[1])
                except tf.errors.OutOfRangeError:
                    break
                end_batch()
        expect_counted(slowing)
        return s.run(v1.global_variables())


WAYS = {
    "eager": lambda: tape(traced=False),
    "function": lambda: tape(traced=True),
    "fit": fit,
    "graph": graph,
    "dataset": dataset,
    "horovod": horovod,
}
state = WAYS[options.way]()
result |= {"state": path.digest(state), "batches": extra.batches, "traces": traces, "checks": batches}
result |= {"rank": edl.rank(), "step": edl.step()}
path.finish(options.out, result)
