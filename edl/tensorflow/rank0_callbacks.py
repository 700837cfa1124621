"""Keep Keras's callbacks from writing files, but for those of the worker that has rank 0.

Owns: keeping the others quiet, and making a worker write once it gets rank 0. Does not own: what callbacks count
(`edl.tensorflow.fit_position`): the quiet ones count on, so that each can take over.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl.errors import UsageError

BACKUP = (
    "keras.callbacks.BackupAndRestore goes on from a worker's own file; leave it away: `edl run --checkpoint DIR` "
    "saves the whole job, and fit goes on in the epoch that it was in"
)
LOGGER = (
    "edl.KerasCallback() must stand before CSVLogger in callbacks=[...]: each worker's CSVLogger begins the file anew "
    "unless it was told that another one writes it"
)


def check_callbacks(callbacks: Iterable[Any], mine: Any) -> None:
    """Raise UsageError for callbacks that harm each other."""
    before = True
    for callback in callbacks:
        before = before and callback is not mine
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UsageError(BACKUP)
        if before and isinstance(callback, keras.callbacks.CSVLogger):
            raise UsageError(LOGGER)


class Writers:
    """Callbacks of one `fit` that write files."""

    def __init__(self, callbacks: Iterable[Any], is_first: Callable[[], bool]) -> None:
        self._is_first = is_first
        self._writes = True
        self._writers = list(filter(None, (_writer(callback, is_first) for callback in callbacks)))

    def begin(self, *, wrote: bool) -> None:
        """Begin `fit`. `wrote`: this process has written in an earlier one, so files of its own may be the job's."""
        if not (self.heed_rank() or wrote):
            for writer in self._writers:
                writer.remove_begun()

    def heed_rank(self) -> bool:
        """Tell callbacks whether to write, where ranks may have changed, and return whether this worker writes."""
        writes = self._is_first()
        if writes != self._writes:
            self._writes = writes
            for writer in self._writers:
                writer.write(writes)
        return writes

    def end(self) -> None:
        """Give the callbacks back to the script."""
        for writer in self._writers:
            writer.end()


def _writer(callback: Any, is_first: Callable[[], bool]) -> Any:
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return _Saver(callback, is_first)
    if isinstance(callback, keras.callbacks.TensorBoard):
        return _Board(callback)
    return _Logger(callback) if isinstance(callback, keras.callbacks.CSVLogger) else None


class _SavedByFirst:
    """A model as ModelCheckpoint sees it."""

    def __init__(self, model: Any, is_first: Callable[[], bool]) -> None:
        self._model = model
        self._is_first = is_first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, *arguments: Any, **keywords: Any) -> None:
        if self._is_first():
            self._model.save(*arguments, **keywords)

    def save_weights(self, *arguments: Any, **keywords: Any) -> None:
        if self._is_first():
            self._model.save_weights(*arguments, **keywords)


class _Saver:
    def __init__(self, callback: Any, is_first: Callable[[], bool]) -> None:
        self._callback, self._model = callback, callback.model
        callback.set_model(_SavedByFirst(self._model, is_first))

    def write(self, writes: bool) -> None:
        """Do nothing: the model asks for the rank each time it is saved."""

    def remove_begun(self) -> None:
        """Do nothing: the callback has begun no file."""

    def end(self) -> None:
        self._callback.set_model(self._model)


class _Board:
    """TensorBoard, which has begun a file before edl could tell it not to."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def write(self, writes: bool) -> None:
        board = self._callback
        board._close_writers()
        if writes:
            board._writers = {}  # it opens files when it has something to write
        else:
            board._writers = {name: tf.summary.create_noop_writer() for name in ("train", "val")}

    def remove_begun(self) -> None:
        _remove_own(Path(self._callback._train_dir), Path(self._callback._val_dir))

    def end(self) -> None:
        """Do nothing: TensorBoard closes its files itself."""


def _remove_own(*folders: Path) -> None:
    """Remove files of events that this process has begun: nothing but the model's form is in them."""
    own = f".{socket.gethostname()}.{os.getpid()}."
    for folder in folders:
        for file in folder.glob("events.out.tfevents.*"):
            if own in file.name:
                file.unlink(missing_ok=True)


class _Logger:
    def __init__(self, callback: Any) -> None:
        self._callback, self._filename = callback, callback.filename

    def write(self, writes: bool) -> None:
        logger = self._callback
        logger.filename = self._filename if writes else os.devnull
        logger.append = logger.append or writes  # another worker has written before
        if logger.csv_file is not None:
            logger.on_train_begin()

    def remove_begun(self) -> None:
        """Do nothing: the logger has begun no file, as it stands behind edl's callback."""

    def end(self) -> None:
        self._callback.filename = self._filename
