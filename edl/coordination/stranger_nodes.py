"""Removal of nodes that strangers made in a local ZooKeeper of an earlier edl, which was open until its first client
closed it.

Owns: finding and wiping these nodes, once for each folder. Does not own: which folders need it (`server`).
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.security import ACL, Id, make_digest_acl_credential

from edl.coordination import kazoo_client
from edl.coordination.coordinator_settings import Coordinator, Digest
from edl.coordination.first_snapshot import RESERVED, Rights
from edl.coordination.kazoo_errors import KAZOO_ERRORS
from edl.errors import ConfigError

_CONNECT_S = 60.0
_SESSION_S = 10.0
_SUPER = "super"  # ZooKeeper's name for the superuser, whom no ACL stops


class Wiper:
    """The superuser of one start of a server, with a password of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._password = secrets.token_hex(32)

    @property
    def flag(self) -> str:
        """The flag for Java that names the superuser: a digest, from which the password does not follow."""
        credential = make_digest_acl_credential(_SUPER, self._password)
        return f"-Dzookeeper.DigestAuthenticationProvider.superDigest={credential}"

    async def wipe(self, server: Coordinator, owner: Rights) -> list[str]:
        """Remove all nodes that `owner` did not make; return their paths.

        Raises `ConfigError` if the root does not belong to `owner`, or the server fails.
        """
        coordinator = Coordinator(server.hosts, Digest(_SUPER, self._password))
        client = kazoo_client.make_client(coordinator, session_timeout_s=_SESSION_S)
        acl = ACL(owner.permissions, Id(owner.scheme, owner.identity))
        try:
            await kazoo_client.start(client, timeout_s=_CONNECT_S)
            if await _acls(client, "/") != [acl]:
                raise ConfigError(f"{self._folder} was used with other credentials: use another folder")
            for path in RESERVED:
                await kazoo_client.settle(client.set_acls_async(path, [acl]))
            return await _wiped(client, "/", acl)
        except (TimeoutError, *KAZOO_ERRORS) as error:
            raise ConfigError(f"the ZooKeeper in {self._folder} cannot be closed to other users: {error!r}") from error
        finally:
            await kazoo_client.stop(client, timeout_s=2.0)


async def _wiped(client: KazooClient, path: str, acl: ACL) -> list[str]:
    found = []
    for name in await kazoo_client.settle(client.get_children_async(path)):
        below = f"{path.rstrip('/')}/{name}"
        with contextlib.suppress(NoNodeError):  # the node's session has ended
            if await _acls(client, below) == [acl]:
                found += await _wiped(client, below, acl)
            else:
                await _remove(client, below, acl)
                found.append(below)
    return found


async def _remove(client: KazooClient, path: str, acl: ACL) -> None:
    """Close the node, then remove it: until it is closed, its maker may still add children."""
    await kazoo_client.settle(client.set_acls_async(path, [acl]))
    while True:
        for name in await kazoo_client.settle(client.get_children_async(path)):
            await _remove(client, f"{path}/{name}", acl)
        with contextlib.suppress(NotEmptyError):
            await kazoo_client.settle(client.delete_async(path))
            return


async def _acls(client: KazooClient, path: str) -> list[ACL]:
    acls, _ = await kazoo_client.settle(client.get_acls_async(path))
    return list(acls)
