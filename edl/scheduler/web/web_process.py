"""The process that serves the HTTP interface: `python -m edl.scheduler http`. The keeper starts it again where it dies.

Owns: its life. Does not own: what it answers (`edl.scheduler.web.web_server`).
"""

from __future__ import annotations

import asyncio
import logging
import os

from edl.errors import ConfigError
from edl.host.http_serving import listen, serve
from edl.scheduler.cluster_client import ClusterClient
from edl.scheduler.cluster_home import ClusterHome
from edl.scheduler.cluster_processes import connected, mind_keeper
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import QueueStore
from edl.scheduler.tokens import TokenBook
from edl.scheduler.web.web_server import ClusterServer

logger = logging.getLogger("edl")


async def serve_http(home: ClusterHome) -> None:
    """Serve the HTTP interface until cancelled. Raises ConfigError."""
    config = home.config()
    if config.http is None:
        raise ConfigError("the cluster was started without --http")
    book = TokenBook(home)
    book.make()
    store = await connected(home.coordinator(), config.session_timeout_s)
    queue = QueueStore(store, EnvironFiles(home.environs))
    minding = asyncio.create_task(mind_keeper(home))
    try:
        with listen(config.http.address, config.http.port, "--http") as ear:
            logger.info("listens at %s", config.http.url)
            client = ClusterClient(home, config, queue)
            await serve(
                ClusterServer(client, book, dict(os.environ)).app, ear, config.http.certificate, config.http.key
            )
    finally:
        minding.cancel()
        await asyncio.gather(minding, return_exceptions=True)
        await store.close()
