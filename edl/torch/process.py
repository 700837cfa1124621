"""The one framework and the one seat of this process, which all modules of `edl.torch` share."""

from __future__ import annotations

from edl.runtime.trainer import Trainer
from edl.torch.framework import TorchFramework

framework = TorchFramework()
trainer = Trainer(framework)
