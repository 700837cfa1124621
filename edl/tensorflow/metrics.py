"""Keras's metrics of an epoch, over all workers.

Owns: adding them up. Does not own: when (`edl.tensorflow.callback`).

A ring cannot be asked at the end of Keras's epoch: a newcomer that has entered with the last mini-batch is not at the
end of an epoch, and the others would wait for it. It can be at the end of that mini-batch, before the ring changes: the
leases tell all members alike that it is the last. A member that finds the ring broken goes on with what it has.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from edl.collectives.horovod import HorovodRing


def over_all_workers(model: Any, ring: HorovodRing) -> dict[str, Any] | None:
    """The metrics of `model` by the sums of their variables over the ring; those here stay what they are.

    None: the ring broke meanwhile. All metrics of Keras are made of sums: totals and counts, or confusion matrices.
    """
    variables = [variable for metric in model.metrics for variable in metric.variables]
    mine = [variable.numpy() for variable in variables]
    if ring.size == 1 or not mine:
        return None
    packed = np.concatenate([value.reshape(-1).astype(np.float64) for value in mine])
    try:
        with tf.device("CPU:0"):
            sums = hvd._allreduce(tf.constant(packed), op=hvd.Sum, name="edl_metrics").numpy()
    except tf.errors.OpError as error:
        if not ring.is_failure(error):
            raise
        return None
    places = np.cumsum([value.size for value in mine])[:-1]
    for variable, value, total in zip(variables, mine, np.split(sums, places), strict=True):
        variable.assign(total.astype(value.dtype).reshape(value.shape))
    found = {name: np.asarray(value).tolist() for name, value in model.get_metrics_result().items()}
    for variable, value in zip(variables, mine, strict=True):
        variable.assign(value)
    return found
