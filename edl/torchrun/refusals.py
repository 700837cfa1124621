"""Names of torch's that a script cannot use in an elastic job, with what to take instead; and a trial's result.

Owns: the names and the remedies, the result, and what the command line tells a worker by variables, without torch. Does
not own: refusing them (`edl.torchrun.group_names`).
"""

from __future__ import annotations

from typing import Final

import msgspec

ONE_GROUP: Final = "a job of edl has one group, of all workers, which is made anew when workers come and go"
POINT_TO_POINT: Final = "edl has no messages from one worker to another: a worker may be gone, or have another rank"
PARTS: Final = "workers come and go, so there is no part for each rank: take broadcast or all_gather"
REFUSED: Final = {
    **dict.fromkeys(("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"),
                    POINT_TO_POINT),
    **dict.fromkeys(("scatter", "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
                     "all_to_all_single"), PARTS),
    **dict.fromkeys(("new_subgroups", "new_subgroups_by_enumeration", "split_group", "init_device_mesh"), ONE_GROUP),
    "monitored_barrier": "edl finds a worker that hangs by itself (--step-timeout): take barrier",
}  # fmt: skip
"""Functions of `torch.distributed`."""
SPAWN: Final = (
    "the script starts its workers itself, by torch.multiprocessing: edl starts them, so give it a script that trains "
    "as one of them, as torchrun wants it"
)
SYNC_BATCH_NORM: Final = "statistics are each worker's own in edl: leave it away"
COMM_HOOK: Final = "gradients travel as they are: leave it away"
JOIN: Final = "all workers make the same number of steps, and a short last one is weighted: leave it away"
SHARDED: Final = "a worker of edl holds the whole model: take DistributedDataParallel"
WHOLE_STATE: Final = "a worker of edl has the whole state of its optimizer: take its optimizer_class itself"
REFUSED_NAMES: Final = {
    **{f"torch.distributed.{name}": remedy for name, remedy in REFUSED.items()},
    "torch.distributed.device_mesh.init_device_mesh": ONE_GROUP,
    "torch.distributed.algorithms.join.Join": JOIN,
    "torch.distributed.algorithms.Join": JOIN,
    "torch.multiprocessing.spawn": SPAWN,
    "torch.multiprocessing.start_processes": SPAWN,
    ".convert_sync_batchnorm": SYNC_BATCH_NORM,
    ".register_comm_hook": COMM_HOOK,
    **dict.fromkeys((".fully_shard", ".FullyShardedDataParallel", ".FSDP", ".parallelize_module"), SHARDED),
    ".ZeroRedundancyOptimizer": WHOLE_STATE,
    "deepspeed.initialize": SHARDED,
}
"""Remedies of these and more, by the whole name of a call; a name that begins with a dot is of any object."""
REFUSED_KINDS: Final = {"ZeroRedundancyOptimizer": WHOLE_STATE, "FullyShardedDataParallel": SHARDED}
"""Classes of `torch.distributed`."""
LIGHTNING: Final = (
    "Lightning's Trainer counts batches by itself: run the script by `edl run`, with `import edl.lightning` and "
    '`Trainer(strategy="edl")`'
)
LIBRARIES: Final = {
    "accelerate.": "Accelerate shares out the data for a number of workers that stays: run the script by `edl run`, "
    "with `from edl.accelerate import Accelerator`, or with `from edl.transformers import EdlTrainer` for a Trainer",
    "ignite.": "Ignite counts the batches of an epoch for a number of workers that stays: write the loop yourself",
    "lightning.pytorch.": LIGHTNING,
    "pytorch_lightning.": LIGHTNING,
}
"""Whose loaders and loops go by the number of workers at their beginning, by the beginning of a module's name."""


ACCUMULATE: Final = "EDL_TORCHRUN_ACCUMULATE"  # batches of one update
TRIAL: Final = "EDL_TORCHRUN_TRIAL"
"""The variable of a trial's process: the file descriptor for its answer, and the workers that the job begins with."""


class TrialResult(msgspec.Struct, frozen=True):
    batches: int = 0  # of the first update; 0: not from a loader with a DistributedSampler
    refused: str = ""  # the line that says so
    failed: str = ""  # the script's own error, in one line
    ended: bool = False  # without an update
