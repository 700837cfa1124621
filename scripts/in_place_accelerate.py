"""For pytest: `from edl.accelerate import Accelerator` in the place of Accelerate's, in tests that import theirs."""

from __future__ import annotations

import accelerate
import accelerate.accelerator

from edl.accelerate import Accelerator

accelerate.Accelerator = accelerate.accelerator.Accelerator = Accelerator
