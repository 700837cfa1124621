"""For workers of `edl torchrun`: an unchanged script trains at leisure until a file is there, and tells its weights."""

import os
import sys

if sys.orig_argv[1:4] == ["-u", "-m", "edl.torchrun"]:
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
    atexit.register(tell)
