"""Facts of a machine that a report of `edl prove` names."""

from __future__ import annotations

import os
import platform

from edl.proof.proof_report import Machine


def machine(device: str) -> Machine:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if device == "cuda" else []
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory, 1),
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        load=round(os.getloadavg()[0], 1),
    )
