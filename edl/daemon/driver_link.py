"""A daemon's link to the stand-in of its slot, which alone speaks to horovodrun's driver (`edl.horovodrun`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from edl.protocol.leader_messages import Ask, Word
from edl.transport.call_errors import PipeClosed
from edl.transport.pipe import PipeClient

logger = logging.getLogger("edl")

CONNECT_S = 5.0  # the stand-in listens before it lets its trainer begin


class DriverLink:
    """The daemon's end. The link to a stand-in that is gone is not made again: its slot takes part in no later
    recount.
    """

    def __init__(self, path: Path, hear: Callable[[Word], object]) -> None:
        """Connect. `hear` is called on the running loop."""
        loop = asyncio.get_running_loop()
        self._hear: Callable[[Word], object] = lambda word: loop.call_soon_threadsafe(partial(hear, word))
        self._word = Word()
        self._asked = 0
        self._pipe = PipeClient(path, Word, self._on_word, self._on_gone)
        try:
            self._pipe.connect(CONNECT_S)
            self._pipe.send(Ask(0))  # so that the stand-in sends its state
        except PipeClosed as error:
            logger.warning("no stand-in: %s", error)

    def ask(self, recount: int) -> None:
        """Ask the driver for this recount, once."""
        if recount <= self._asked:
            return
        self._asked = recount
        with contextlib.suppress(PipeClosed):
            self._pipe.send(Ask(recount))

    def close(self) -> None:
        self._pipe.close()

    def _on_word(self, word: Word) -> None:
        self._word = word
        self._hear(word)

    def _on_gone(self) -> None:
        self._hear(msgspec.structs.replace(self._word, gone=True))
        logger.warning("the stand-in of this slot is gone: horovodrun takes the worker for dead")
