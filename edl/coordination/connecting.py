"""Connection to a coordinator of any kind.

Owns: which implementation goes with which address. Does not own: the implementations; only the one in use is imported.
"""

from __future__ import annotations

from edl.coordination.settings import EMBEDDED, ETCD, Coordinator
from edl.coordination.store import Store


async def connect(settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0) -> Store:
    """Open a store with a new session. Raises `ConfigError`, `AccessDenied` and others as the implementations do."""
    if settings.kind == ETCD:
        from edl.coordination.etcd import store as etcd

        return await etcd.connect(settings, session_timeout_s, connect_timeout_s=connect_timeout_s)
    if settings.kind == EMBEDDED:
        from edl.coordination.embedded import embedded_store

        return await embedded_store.connect(settings, session_timeout_s, connect_timeout_s=connect_timeout_s)
    from edl.coordination import zookeeper

    return await zookeeper.connect(settings, session_timeout_s, connect_timeout_s=connect_timeout_s)
