"""Write Lightning's checkpoints by the rules of edl's own.

Owns: writing them. Does not own: their content, nor reading and removing them, which are Lightning's; nor the
checkpoints that a job resumes from (`edl.checkpoints`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem

from edl.checkpoints.local_folders import put


class EdlCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning's checkpoint files, written whole and flushed before a file gets its name."""

    # `ModelCheckpoint` removes the best checkpoint so far after this: after a power cut the new file must be whole.
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the file; Lightning calls this on the first worker alone. Raises CheckpointError if it cannot be
        written.
        """
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # an object is whole or absent by itself
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        put(Path(get_filesystem(path)._strip_protocol(str(path))), content.getvalue())
