"""How a process of a job is let in: to the coordinator, and to the other daemons.

One secret per job opens both. A launcher that gives one by file closes the job's nodes to everybody else with a digest
that follows from it; without one, the first worker leaves a fresh secret in the coordinator, and whoever may read the
job's nodes there may join it (docs/security.md).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

from edl.config import Settings
from edl.coordination.settings import Coordinator, Digest, from_environment
from edl.coordination.store import NodeExists, Store
from edl.protocol import tree


def digest_of(secret: bytes) -> Digest:
    """The credentials that open the job's nodes. The secret itself never crosses the wire."""
    return Digest("edl", hmac.new(secret, b"coordinator", hashlib.sha256).hexdigest())


def coordinator_of(settings: Settings, env: Mapping[str, str] = os.environ) -> Coordinator | None:
    """The coordinator with its credentials; None: a job of one worker, without one."""
    coordinator = from_environment(env, hosts=settings.coordinator)
    if coordinator is None or coordinator.digest is not None:
        return coordinator
    secret = settings.secret()
    return with_secret(coordinator, secret)


def with_secret(coordinator: Coordinator, secret: bytes) -> Coordinator:
    """`coordinator`, opened by the job's secret unless it has credentials of its own."""
    if not secret or coordinator.digest is not None:
        return coordinator
    return Coordinator(coordinator.hosts, digest_of(secret), coordinator.tls)


async def shared_secret(store: Store, job: str, given: bytes) -> bytes:
    """The job's secret: the one given, else the one that the job's first worker left in the coordinator."""
    if given:
        return given
    path = tree.secret(job)
    node = await store.read(path)
    if node is None:
        fresh = secrets.token_hex(32).encode()
        try:
            await store.create(path, fresh)
        except NodeExists:
            node = await store.read(path)
        else:
            return fresh
    return node.value if node is not None else await shared_secret(store, job, given)
