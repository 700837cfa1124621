"""Means to connect to servers of every kind: time-outs, blocking calls in threads, TLS.

Owns: code that knows neither ZooKeeper nor etcd. Does not own: connecting (`kazoo_client`, `etcd.connection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from typing import TypeVar

from edl.coordination.coordinator_settings import Tls

RECONNECT_MAX_S = 0.5
"""Between two attempts to connect. kazoo's own bound is an hour, gRPC's two minutes: clients came back half a minute
late."""

STOP_S = 2.0
"""How long to wait for a session's end to be answered: a silent server must not hold up the end of a process."""

T = TypeVar("T")


def patience_s(session_timeout_s: float) -> float:
    """Return how long one attempt to connect may wait for an answer before the next attempt."""
    return max(1.0, session_timeout_s / 4)


async def run_in_thread(call: Callable[[], T], *, timeout_s: float) -> T | None:
    """Run a blocking call in a daemon thread; return None if it takes longer than the time-out.

    The loop's own executor would be joined at the loop's end, however long the call takes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T) -> None:
        if not done.done():
            done.set_result(result)

    threading.Thread(target=lambda: tell(loop, deliver, call()), name="edl dialing", daemon=True).start()
    await asyncio.wait([done], timeout=timeout_s)
    return done.result() if done.done() else None


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call `call` on the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits for the call
        loop.call_soon_threadsafe(call, *args)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Make a TLS context that trusts only the given authority. Raises OSError for a missing or malformed file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    context.load_verify_locations(tls.cafile)
    if tls.certfile:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context
