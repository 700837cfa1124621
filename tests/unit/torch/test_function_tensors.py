"""What of PyTorch a function of `edl.run` takes along."""

from __future__ import annotations

import pytest
import torch

from edl.errors import UsageError
from edl.launch.function_files import Call, pickled


class OnGpu(torch.Tensor):
    is_cuda = True  # type: ignore[assignment]


def test_a_tensor_of_a_gpu_stays_where_it_is() -> None:
    tensor = torch.ones(1).as_subclass(OnGpu)
    with pytest.raises(UsageError, match=r"a tensor of this process on cpu, .*: make it inside fn, or hand over its"):
        pickled(Call(lambda: tensor, (), {}))
    assert pickled(Call(lambda values: values, (torch.ones(1),), {}))
