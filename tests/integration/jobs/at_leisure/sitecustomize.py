"""For workers of `edl torchrun` and of one example: an unchanged script trains at leisure until a file is there.

Under `edl torchrun` it tells its weights, too.
"""

import os
import sys

under_torchrun = sys.orig_argv[1:4] == ["-u", "-m", "edl.torchrun"]
if under_torchrun or sys.orig_argv[1:2] == ["examples/torch_language_model.py"]:
    import atexit
    import hashlib
    import time
    from pathlib import Path

    import torch

    compute = torch.nn.functional.cross_entropy

    def at_leisure(*given, **named):
        if not Path(os.environ["EDL_TEST_HURRY"]).exists():
            time.sleep(0.2)
        return compute(*given, **named)

    def tell() -> None:
        from edl.torch.torch_process import trainer
        from edl.torchrun.parallel_model import DistributedDataParallel

        tensors = DistributedDataParallel.known[0].module.state_dict().values()
        found = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
        sys.stdout.write(f"ends with {found} after step {trainer.committed}\n")

    torch.nn.functional.cross_entropy = at_leisure
    if under_torchrun:
        atexit.register(tell)
