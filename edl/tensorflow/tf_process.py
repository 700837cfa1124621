"""The one framework and the one seat of this process, which all modules of `edl.tensorflow` share."""

from __future__ import annotations

from edl.tensorflow.tf_framework import TensorFlowFramework
from edl.trainer.trainer import Trainer

framework = TensorFlowFramework()
# A function that makes variables, as an optimizer does with its first update, is traced anew at its second call.
framework.unwrapped.watch()
trainer = Trainer(framework, rehearsals=2)
