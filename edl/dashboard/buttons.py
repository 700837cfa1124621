"""The actions of a page's buttons: those of `edl scale`, `edl checkpoint` and `edl stop`, and no others."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from edl.errors import EdlError
from edl.launch import job_stop
from edl.launch.locate_job import Whereabouts
from edl.outside.job_client import Ack, Retry

STOP_REASON = "stopped from its page"
ASK_S = 10.0


async def press(locate: Callable[[], Whereabouts], what: str) -> str:
    """Carry out the button `what`; return the result in one line."""
    try:
        where = locate()
        match what:
            case "grow":
                async with where.client() as job:
                    return _asked(await job.scale_out(1, timeout_s=ASK_S))
            case "shrink":
                async with where.client() as job:
                    return _asked(await job.scale_in(1, timeout_s=ASK_S))
            case "checkpoint":
                async with where.client() as job:
                    await job.checkpoint(f"page-{secrets.token_hex(8)}", ASK_S)
                return "a checkpoint is asked for"
            case "stop":
                return f"job {where.job} {await job_stop.stop(where, STOP_REASON)}"
            case _:
                return "there is no such button"
    except EdlError as error:
        return str(error)


def _asked(answer: Ack | Retry) -> str:
    if isinstance(answer, Retry):
        return answer.reason
    return "1 worker is asked for" if answer.target == 1 else f"{answer.target} workers are asked for"
