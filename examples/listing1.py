"""Listing 1 of the EDL paper (arXiv 1909.11985), in the graphs that it was written for: with `tf.compat.v1` for `tf`.

edl run -np 2 python examples/listing1.py
"""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits" / "digits.csv.gz"
v1 = tf.compat.v1
v1.disable_eager_execution()


def classifier(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Loss and accuracy of a small network, where the paper has a ResNet-50."""
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = tf.gather(table[:, :64] / 16, ids), tf.gather(table[:, 64].astype(np.int64), ids)
    shapes = {"hidden": (64, 64), "shift": (64,), "out": (64, 10)}
    w = {name: v1.get_variable(name, shape) for name, shape in shapes.items()}
    logits = tf.nn.relu(images @ w["hidden"] + w["shift"]) @ w["out"]
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    edl.init(batch_size=options.batch)  # initialize EDL daemon
    # create a generator object
    shards = edl.elastic_shard_generator(1797, epochs=options.epochs, shuffle=True)
    ds = tf.data.Dataset.from_generator(shards, output_signature=tf.TensorSpec([], tf.int64)).batch(options.batch)
    samples = v1.data.make_initializable_iterator(ds)
    loss, accuracy = classifier(samples.get_next())
    # ingest Allreduce into graph within Optimizer
    rate = v1.placeholder(tf.float32, ())
    opt = edl.Optimizer(v1.train.AdamOptimizer(rate))
    # create optimization objective
    obj = opt.minimize(loss)

    with v1.Session() as s:
        s.run([v1.global_variables_initializer(), samples.initializer])
        right: deque[float] = deque(maxlen=20)
        while True:
            try:
                with edl.voidable():  # not in the paper: the session outlives a peer that is killed
                    _, lost, share = s.run([obj, loss, accuracy], feed_dict={rate: 0.005})
            except tf.errors.OutOfRangeError:  # what the paper calls s.Done()
                break
            if edl.notify_batch_end():
                right.append(share)
                if edl.step() % 20 == 0 and edl.rank() == 0:
                    print(f"step {edl.step()} epoch {edl.epoch()} size {edl.size()} loss {lost:.3f}", flush=True)
    if edl.rank() == 0:
        print(f"of the last mini-batches: accuracy {np.mean(right):.3f}", flush=True)


if __name__ == "__main__":
    main()
