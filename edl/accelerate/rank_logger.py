"""Accelerate's logger (`accelerate.logging.get_logger`), by the ranks of the job.

Owns: which worker logs a line, and the rank in it. Does not own: where the line goes.

To Accelerate each worker is alone, so it would let all of them log, and call each of them `[RANK 0]`. Scripts make
their loggers at the top, before there is an Accelerator: so the class is changed, and existing loggers follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any

from accelerate.logging import MultiProcessAdapter


def log_by_rank(is_main: Callable[[], bool], rank: Callable[[], int]) -> None:
    """Let loggers of this process use the job's ranks. Both functions are called at each line."""

    def should_log(main_process_only: bool) -> bool:
        return is_main() or not main_process_only

    def process(
        adapter: logging.LoggerAdapter[Any], message: Any, given: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        message, given = logging.LoggerAdapter.process(adapter, message, given)
        given.setdefault("stacklevel", 2)  # the place in the script, as Accelerate has it
        return f"[RANK {rank()}] {message}", given

    MultiProcessAdapter._should_log = staticmethod(should_log)
    MultiProcessAdapter.process = process
