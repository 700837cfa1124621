"""The page that a trainer and its daemon share: the hot path writes and reads it, and touches no socket.

A memory-mapped file in the worker's private folder, of aligned 8-byte words. Every word has one writer, and CPython
moves such a word with one store or load, so neither side takes a lock. Each word stands alone: no reader may conclude
from one word that another, written before it, has arrived. Values that must travel together go through the pipe.

    offset   0  magic, version                                              the page's creator
            64  step, waited, loaded                                        the trainer
           128  attention_step, flags                                       the daemon

The two writers' words lie in cache lines of their own. Put the file in memory (/dev/shm, $XDG_RUNTIME_DIR) if possible:
on a disk, the kernel may hold up a write to the page while the page is written back.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Final, final

from edl.core.worker.next_move import NEVER
from edl.errors import ConfigError


@final
class StepCounter:
    """Count the steps that a trainer has committed in its page: all that the end of a usual mini-batch does.

    A counter over two words of a page, which it keeps mapped. `_count.c` is the same in C; `SharedPage.count()` uses it
    if edl was installed with a compiler. A step leaves the caches cold, so that a call which takes 1 us in a row takes
    8 there, most of it for the memory that Python touches.
    """

    __slots__ = ("_attention", "_step", "usual_until")

    def __init__(self, step: memoryview, attention: memoryview, /) -> None:
        """`step` and `attention` are one word each."""
        self._step = step
        self._attention = attention
        self.usual_until = 0  # before this step the end of a mini-batch only needs to be counted

    @property
    def step(self) -> int:
        """Return the newest committed step."""
        return self._step[0]

    @step.setter
    def step(self, step: int) -> None:
        self._step[0] = step

    def advance(self) -> bool:
        """Count a usual mini-batch. Return False, and change nothing, if it is none, or the daemon asks for
        attention.
        """
        step = self._step[0] + 1
        if step >= self.usual_until or step >= self._attention[0]:
            return False
        self._step[0] = step
        return True


try:
    from edl.transport._count import Count as _Counter  # the same in C
except ImportError:  # built without a compiler
    _Counter = StepCounter  # type: ignore[misc]


_MAGIC: Final = int.from_bytes(b"edl page", "little")
_VERSION: Final = 2
_BYTES: Final = 4096

_AT_MAGIC: Final = 0
_AT_VERSION: Final = 1
_AT_STEP: Final = 8
_AT_WAITED: Final = 9
_AT_LOADED: Final = 10
_AT_ATTENTION_STEP: Final = 16
_AT_FLAGS: Final = 17


class SharedPage:
    """The page of one worker. Both sides hold a `SharedPage`; a reader sees a word as soon as it is written."""

    __slots__ = ("_mapping", "_words")

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._words = memoryview(mapping).cast("q")

    @classmethod
    def unshared(cls) -> SharedPage:
        """Return a page without a file, which no other process reads."""
        return cls(mmap.mmap(-1, _BYTES))

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> SharedPage:
        """Create a page that asks for no attention. Replaces an older one: the file appears whole, or not at all."""
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            page = cls(mmap.mmap(descriptor, _BYTES))
        finally:
            os.close(descriptor)
        page._words[_AT_ATTENTION_STEP] = NEVER
        page._words[_AT_VERSION] = _VERSION
        page._words[_AT_MAGIC] = _MAGIC
        draft.rename(target)
        return page

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SharedPage:
        """Open the page that the other side created. Raises ConfigError for anything else."""
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
        """Unmap the page; the file stays. Harmless twice. Raises BufferError while there is a `StepCounter` of it."""
        self._words.release()
        self._mapping.close()

    # ------------------------------------------------------------------------------------ the trainer's words

    @property
    def step(self) -> int:
        """Return the newest step that this worker has applied (I5)."""
        return self._words[_AT_STEP]

    @property
    def waited_ns(self) -> int:
        """Return how long the trainer has waited for its peers to average gradients, in all."""
        return self._words[_AT_WAITED]

    def add_waited(self, nanoseconds: int) -> None:
        self._words[_AT_WAITED] += nanoseconds

    @property
    def loaded_ns(self) -> int:
        """Return how long the trainer has waited for samples, in all."""
        return self._words[_AT_LOADED]

    def add_loaded(self, nanoseconds: int) -> None:
        self._words[_AT_LOADED] += nanoseconds

    def count(self) -> StepCounter:
        """Return the counter that writes `step`."""
        return _Counter(self._words[_AT_STEP : _AT_STEP + 1], self._words[_AT_ATTENTION_STEP : _AT_ATTENTION_STEP + 1])

    # ------------------------------------------------------------------------------------- the daemon's words

    @property
    def attention_step(self) -> int:
        """Return the step after which the trainer must look into its orders; 0 = at once, NEVER = go on."""
        return self._words[_AT_ATTENTION_STEP]

    @attention_step.setter
    def attention_step(self, value: int) -> None:
        self._words[_AT_ATTENTION_STEP] = value

    @property
    def flags(self) -> int:
        """Return the bits that the daemon sets; the runtime names them."""
        return self._words[_AT_FLAGS]

    @flags.setter
    def flags(self, value: int) -> None:
        self._words[_AT_FLAGS] = value
