"""Connection to a coordinator of any kind.

Owns: which implementation goes with which address. Does not own: the implementations; only the one in use is imported.
"""

from __future__ import annotations

import importlib
from typing import Final

from edl.coordination.coordinator_settings import EMBEDDED, ETCD, ZOOKEEPER, Coordinator
from edl.coordination.store import Store

MODULES: Final = {
    ZOOKEEPER: "edl.coordination.zookeeper",
    ETCD: "edl.coordination.etcd.etcd_store",
    EMBEDDED: "edl.coordination.embedded.embedded_store",
}


async def connect(settings: Coordinator, session_timeout_s: float, *, connect_timeout_s: float = 10.0) -> Store:
    """Open a store with a new session. Raises `ConfigError`, `AccessDenied` and others as the implementations do."""
    implementation = importlib.import_module(MODULES[settings.kind])
    store: Store = await implementation.connect(settings, session_timeout_s, connect_timeout_s=connect_timeout_s)
    return store
