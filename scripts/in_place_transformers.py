"""For pytest: `from edl.transformers import EdlTrainer as Trainer`, in tests that import Transformers' Trainer."""

from __future__ import annotations

import transformers
import transformers.trainer

from edl.transformers import EdlTrainer

transformers.Trainer = transformers.trainer.Trainer = EdlTrainer
