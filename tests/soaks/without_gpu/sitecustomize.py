"""For workers of `edl torchrun`: an unchanged script trains at leisure until a file is there, and on the CPU.

With EDL_TEST_CUDA_IS_CPU, CUDA devices that the script names are the CPU, so that it can hard-code them.
"""

import collections.abc
import contextlib
import importlib
import os
import sys
import types
from typing import Any

MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "full", "full_like", "linspace", "load", "ones", "ones_like", "rand",
    "randint", "randn", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip


def have_older_names() -> None:
    """Have names that torch had once, no network, and let torchvision take made-up files for its data sets."""
    import math

    older = types.ModuleType("torch._six")
    vars(older).update(inf=math.inf, container_abcs=collections.abc, string_classes=(str, bytes), int_classes=int)
    sys.modules["torch._six"] = older
    import torch

    torch.hub.list = lambda *_given, **_named: []
    with contextlib.suppress(ImportError):
        cifar = importlib.import_module("torchvision.datasets.cifar")
        vars(cifar)["check_integrity"] = lambda *_given: True


def train_at_leisure(pause_s: float) -> None:
    """Sleep after each update, until the file is there that EDL_TEST_HURRY names."""
    import time
    from pathlib import Path

    from torch.optim.optimizer import register_optimizer_step_post_hook

    hurry = Path(os.environ["EDL_TEST_HURRY"])

    def rest(*_given: Any) -> None:
        if not hurry.exists():
            time.sleep(pause_s)

    register_optimizer_step_post_hook(rest)


def let_cuda_be_the_cpu() -> None:
    """Let torch say that there are GPUs, and put on the CPU what is to be on one."""
    import torch
    import torch.utils.data

    def here(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "cuda" else value
        return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value

    def placed(function: Any, *, by_number: bool = False) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            given = tuple("cpu" if by_number and type(one) is int else here(one) for one in given)
            named = {name: "cpu" if name == "device" and type(one) is int else here(one) for name, one in named.items()}
            return function(*given, **named)

        call.__name__ = function.__name__
        return call

    def same(value: Any, *_given: Any, **_named: Any) -> Any:
        return value

    kinds: tuple[Any, ...] = (torch.Tensor, torch.nn.Module)
    for kind in kinds:
        kind.to, kind.cuda = placed(kind.to, by_number=True), same
    torch.Tensor.pin_memory = same  # type: ignore[assignment, method-assign]
    make = torch.utils.data.DataLoader.__init__
    loaders: Any = torch.utils.data.DataLoader
    loaders.__init__ = lambda *given, **named: make(*given, **{**named, "pin_memory": False})
    for name in MAKERS:
        setattr(torch, name, placed(getattr(torch, name)))
    torch.optim.Optimizer._accelerator_graph_capture_health_check = same  # type: ignore[method-assign, assignment]
    number = int(os.environ.get("LOCAL_RANK", "0"))
    answers = {
        **dict.fromkeys(("is_available", "is_bf16_supported"), True),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(("set_device", "set_device_index", "synchronize", "empty_cache", "reset_peak_memory_stats")),
        "device_count": 8,
        "current_device": number,
        "current_accelerator": torch.device("cuda"),
        "get_device_name": "CPU",
        "get_device_properties": types.SimpleNamespace(total_memory=1 << 34),
        "memory_stats": collections.Counter[str](),
    }
    for module in (torch.cuda, torch.accelerator):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, lambda *_given, _answer=answer, **_named: _answer)


if sys.orig_argv[1:4] == ["-u", "-m", "edl.torchrun"]:
    if os.environ.get("EDL_TEST_CUDA_IS_CPU"):
        let_cuda_be_the_cpu()
    have_older_names()
    train_at_leisure(float(os.environ.get("EDL_TEST_PAUSE_S", "0.2")))
