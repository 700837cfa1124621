"""The page that a trainer and its daemon share: the hot path writes and reads it, and touches no socket.

A memory-mapped file in the worker's private folder, of aligned 8-byte words. Every word has one writer, and CPython
moves such a word with one store or load, so nobody takes a lock. Each word stands alone: no reader may conclude from
one word that another, written before it, has arrived. What must travel together goes through the pipe.

    offset   0  magic, version                                              whoever creates the page
            64  step, generation, batches, batch_end_ns, samples            the trainer
           128  attention_step, flags                                       the daemon

The two writers' words lie in cache lines of their own. Put the file in memory (/dev/shm, $XDG_RUNTIME_DIR) where
possible: on a disk, the kernel may hold up a write to the page while it is being written back.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Final

from edl.errors import ConfigError

NEVER: Final = 2**63 - 1  # attention_step: nothing is going to happen

_MAGIC: Final = int.from_bytes(b"edl page", "little")
_VERSION: Final = 1
_BYTES: Final = 4096

_AT_MAGIC: Final = 0
_AT_VERSION: Final = 1
AT_STEP: Final = 8
_AT_GENERATION: Final = 9
_AT_BATCHES: Final = 10
_AT_BATCH_END_NS: Final = 11
_AT_SAMPLES: Final = 12
AT_ATTENTION_STEP: Final = 16
_AT_FLAGS: Final = 17


class Page:
    """One worker's page. Both sides hold one of these; a reader sees a word as soon as it is written."""

    __slots__ = ("_mapping", "_words")

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._words = memoryview(mapping).cast("q")

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Page:
        """A fresh page that asks for no attention. Replaces an older one: it appears whole, or not at all."""
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            page = cls(mmap.mmap(descriptor, _BYTES))
        finally:
            os.close(descriptor)
        page._words[AT_ATTENTION_STEP] = NEVER
        page._words[_AT_VERSION] = _VERSION
        page._words[_AT_MAGIC] = _MAGIC
        draft.rename(target)
        return page

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Page:
        """The page that the other side created. Raises ConfigError for anything else."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != _BYTES or facts.st_uid != os.geteuid():
                raise ConfigError(f"{os.fspath(path)} is no page of ours")
            page = cls(mmap.mmap(descriptor, _BYTES))
        finally:
            os.close(descriptor)
        if (page._words[_AT_MAGIC], page._words[_AT_VERSION]) != (_MAGIC, _VERSION):
            page.close()
            raise ConfigError(f"{os.fspath(path)} is no page of this version of edl: restart the worker")
        return page

    def close(self) -> None:
        """Unmaps the page; the file stays. Harmless twice."""
        self._words.release()
        self._mapping.close()

    @property
    def words(self) -> memoryview:
        """The words themselves, for the hot path: it indexes them by AT_STEP and AT_ATTENTION_STEP."""
        return self._words

    # ------------------------------------------------------------------------------------ the trainer's words

    @property
    def step(self) -> int:
        """The newest step that this worker has applied (I5)."""
        return self._words[AT_STEP]

    @step.setter
    def step(self, value: int) -> None:
        self._words[AT_STEP] = value

    @property
    def generation(self) -> int:
        """The ring that the worker sits in, 0 = alone."""
        return self._words[_AT_GENERATION]

    @generation.setter
    def generation(self, value: int) -> None:
        self._words[_AT_GENERATION] = value

    @property
    def batches(self) -> int:
        """Ends of mini-batches so far, void ones and rehearsals too: the trainer's heartbeat."""
        return self._words[_AT_BATCHES]

    @batches.setter
    def batches(self, value: int) -> None:
        self._words[_AT_BATCHES] = value

    @property
    def batch_end_ns(self) -> int:
        """`time.monotonic_ns()` at the end of the newest mini-batch; one clock for all processes of a host."""
        return self._words[_AT_BATCH_END_NS]

    @batch_end_ns.setter
    def batch_end_ns(self, value: int) -> None:
        self._words[_AT_BATCH_END_NS] = value

    @property
    def samples(self) -> int:
        """Samples that this worker has trained in committed steps."""
        return self._words[_AT_SAMPLES]

    @samples.setter
    def samples(self, value: int) -> None:
        self._words[_AT_SAMPLES] = value

    # ------------------------------------------------------------------------------------- the daemon's words

    @property
    def attention_step(self) -> int:
        """The step after which the trainer must look into its orders; 0 = at once, NEVER = go on."""
        return self._words[AT_ATTENTION_STEP]

    @attention_step.setter
    def attention_step(self, value: int) -> None:
        self._words[AT_ATTENTION_STEP] = value

    @property
    def flags(self) -> int:
        """Bits that the daemon sets; the runtime names them."""
        return self._words[_AT_FLAGS]

    @flags.setter
    def flags(self, value: int) -> None:
        self._words[_AT_FLAGS] = value
