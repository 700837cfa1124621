"""The one framework and the one seat of this process, which all modules of `edl.torch` share."""

from __future__ import annotations

from edl.torch.framework import TorchFramework
from edl.trainer.trainer import Trainer

framework = TorchFramework()
trainer = Trainer(framework)
