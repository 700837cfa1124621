"""edl for Hugging Face's Trainer: `from edl.transformers import EdlTrainer`, in the place of `Trainer`.

docs/huggingface.md says what a script writes, and what becomes of the Trainer's own settings. For Accelerate see
`edl.accelerate`.
"""

from __future__ import annotations

from edl.transformers.hf_trainer import EdlTrainer, EdlTrainerMixin

__all__ = ["EdlTrainer", "EdlTrainerMixin"]
