"""edl for PyTorch Lightning: `import edl.lightning`, and `Trainer(strategy="edl")`.

Lightning 2.6 finds strategies by name only once they are registered, and loads none by an entry point: importing this
package registers ours. docs/lightning.md says what a script writes, and what becomes of Lightning's own settings.
"""

from __future__ import annotations

from lightning.pytorch.strategies import StrategyRegistry

from edl.lightning.strategy import EdlCheckpointIO, EdlStrategy

NAME = "edl"

if NAME not in StrategyRegistry:
    StrategyRegistry.register(NAME, EdlStrategy, description="Elastic training: workers come and go while it trains")

__all__ = ["EdlCheckpointIO", "EdlStrategy"]
