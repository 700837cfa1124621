"""Authentication of a job's processes to the coordinator and to the other daemons.

One secret per job opens both. If a launcher gives the secret in a file, a digest derived from it closes the job's nodes
to all others. Without such a file, the first worker leaves a fresh secret in the coordinator, and every process that
may read the job's nodes may join the job (docs/security.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

from edl.config import Settings
from edl.coordination.coordinator_settings import Coordinator, Digest, from_environment
from edl.coordination.store import NodeExists, Store
from edl.errors import JobFailed, PeerError
from edl.protocol import node_paths
from edl.protocol.record import OVER, decode_record


def digest_of(secret: bytes) -> Digest:
    """Return the credentials that open the job's nodes. The secret itself never crosses the wire."""
    return Digest("edl", hmac.new(secret, b"coordinator", hashlib.sha256).hexdigest())


def coordinator_of(settings: Settings, env: Mapping[str, str] = os.environ) -> Coordinator | None:
    """Return the coordinator with its credentials, or None for a job of one worker without a coordinator."""
    coordinator = from_environment(env, hosts=settings.coordinator)
    if coordinator is None or coordinator.digest is not None:
        return coordinator
    secret = settings.secret()
    return with_secret(coordinator, secret)


def with_secret(coordinator: Coordinator, secret: bytes) -> Coordinator:
    """Return `coordinator` with the credentials of the job's secret, unless it has credentials of its own."""
    if not secret or coordinator.digest is not None:
        return coordinator
    return Coordinator(coordinator.hosts, digest_of(secret), coordinator.tls)


async def shared_secret(store: Store, job: str, given: bytes) -> bytes:
    """Return the secret given, or else the job's secret in the coordinator; the job's first worker creates it.

    Raises JobFailed when the job is over: then its secret is gone, and must not come back.
    """
    if given:
        return given
    path = node_paths.secret(job)
    while (node := await store.read(path)) is None:
        await _check_goes_on(store, job)
        fresh = secrets.token_hex(32).encode()
        with contextlib.suppress(NodeExists):
            await store.create(path, fresh)
            return fresh
    return node.value


async def known_secret(store: Store, job: str, given: bytes) -> bytes:
    """Return the secret given, or else the job's secret in the coordinator, for a client that is no worker and creates
    nothing. Raises PeerError and JobFailed.
    """
    if given:
        return given
    node = await store.read(node_paths.secret(job))
    if node is None:
        await _check_goes_on(store, job)
        raise PeerError(
            f"job {job} has no secret at its coordinator: give the one it was started with, by EDL_SECRET_FILE"
        )
    return node.value


async def _check_goes_on(store: Store, job: str) -> None:
    node = await store.read(node_paths.record(job))
    record = None if node is None else decode_record(node.value)
    if record is not None and record.state in OVER:
        raise JobFailed(
            f"job {job} is over ({record.reason or record.state.value}): start it under another name, or "
            f"remove what is left of it by `edl clean {job}`"
        )
