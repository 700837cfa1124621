"""Lightning's checkpoints, on disk by the rules of edl's own.

Owns: writing them. Does not own: what is in them, nor reading and removing them, which are Lightning's; nor the
checkpoints that a job goes on from (`edl.checkpoints`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem

from edl.checkpoints.local import put


class EdlCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning's own file, whole and flushed before it has its name: what `ModelCheckpoint` removes after it, the best
    one of before, is then not the only one that a power cut leaves.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """On the first worker alone. Raises CheckpointError where the file cannot be written."""
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # an object is whole or absent by itself
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        put(Path(get_filesystem(path)._strip_protocol(str(path))), content.getvalue())
