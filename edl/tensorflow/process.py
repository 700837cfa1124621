"""The one framework and the one seat of this process, which all modules of `edl.tensorflow` share."""

from __future__ import annotations

from edl.runtime.trainer import Trainer
from edl.tensorflow.framework import TensorFlowFramework

framework = TensorFlowFramework()
trainer = Trainer(framework)
