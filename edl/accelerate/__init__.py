"""edl for Hugging Face Accelerate: `from edl.accelerate import Accelerator`, in the place of Accelerate's.

docs/huggingface.md says what a script writes, and what becomes of what Accelerate offers.
"""

from __future__ import annotations

from edl.accelerate.accelerator import EdlAccelerator as Accelerator

__all__ = ["Accelerator"]
