"""What it takes to reach a server of either kind: patience, threads that are not waited for, TLS.

Owns: nothing that knows ZooKeeper or etcd. Does not own: connecting to one (`kazoo_client`, `etcd.connection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from typing import TypeVar

from edl.coordination.settings import Tls

RECONNECT_MAX_S = 0.5
"""Between two attempts to connect. kazoo's own bound is an hour, gRPC's two minutes: clients came back half a minute
late."""

STOP_S = 2.0
"""For the end of a session to be taken: a server that does not answer must not hold up the end of a process."""

T = TypeVar("T")


def patience_s(session_timeout_s: float) -> float:
    """How long one attempt to connect may take to be answered, before the next."""
    return max(1.0, session_timeout_s / 4)


async def aside(call: Callable[[], T], *, timeout_s: float) -> T | None:
    """Run a blocking call in a thread that is not waited for beyond the time-out; None if it takes longer.

    The loop's own executor would be waited for at the loop's end, however long the call takes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T) -> None:
        if not done.done():
            done.set_result(result)

    threading.Thread(target=lambda: tell(loop, deliver, call()), name="edl aside", daemon=True).start()
    await asyncio.wait([done], timeout=timeout_s)
    return done.result() if done.done() else None


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call it on the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener any more
        loop.call_soon_threadsafe(call, *args)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Trusts the given authority only. Raises OSError for a file that is missing or no certificate or key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    context.load_verify_locations(tls.cafile)
    if tls.certfile:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context
