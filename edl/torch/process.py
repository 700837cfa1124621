"""The one framework and the one seat of this process, which all modules of `edl.torch` share."""

from __future__ import annotations

from edl.torch.framework import TorchFramework
from edl.torch.tensor_ring import HOROVOD, TORCH
from edl.trainer.trainer import Trainer

framework = TorchFramework()
trainer = Trainer(framework, (HOROVOD, TORCH))
