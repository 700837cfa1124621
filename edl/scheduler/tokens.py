"""Tokens of the HTTP interface: the owner's, in a file private to the owner, and digests of the users'.

Owns: these files. Does not own: what a token opens (`edl.cluster.queue.submission`).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

import msgspec

from edl.cluster.queue.submission import USER, TokenHolder, caller_of, digest
from edl.errors import ConfigError
from edl.file_lock import open_lock, turn
from edl.scheduler.cluster_home import ClusterHome, put, put_once

_BOOK = msgspec.json.Decoder(dict[str, str])


class TokenBook:
    """Tokens of one cluster, read again whenever the file was changed."""

    def __init__(self, home: ClusterHome) -> None:
        self.owners = home.folder / "token"
        self._users = home.folder / "users.json"
        self._lock = home.folder / "users.lock"
        self._read: tuple[tuple[int, ...], str, dict[str, str]] = ((), "", {})

    def make(self) -> None:
        """Make the owner's token, unless there is one."""
        put_once(self.owners, secrets.token_urlsafe(32).encode())

    def users(self) -> dict[str, str]:
        """Return the digest of each user's token. Raises ConfigError."""
        try:
            return _BOOK.decode(self._users.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._users} cannot be read: {error}") from None

    def give(self, user: str) -> str:
        """Return a fresh token; the user's token of before opens nothing any more. Raises ConfigError."""
        if not re.fullmatch(USER, user):
            raise ConfigError(f"{user!r} is no name of a user: 1 to 64 letters, digits, '.', '_', '@' or '-'")
        token = secrets.token_urlsafe(32)
        self._change(user, digest(token))
        return token

    def take(self, user: str) -> None:
        """Raises ConfigError."""
        if user not in self.users():
            raise ConfigError(f"there is no token of a user {user}: `edl cluster token` lists who has one")
        self._change(user, None)

    def _change(self, user: str, value: str | None) -> None:
        with turn(open_lock(self._lock)):
            users = {name: known for name, known in self.users().items() if name != user}
            put(self._users, msgspec.json.encode(users if value is None else {**users, user: value}))

    def caller(self, header: str) -> TokenHolder | None:
        """Return whose request it is; None: the token is no user's. Raises ConfigError."""
        now = tuple(_stamp(path) for path in (self.owners, self._users))
        if now != self._read[0]:
            try:
                owner = digest(self.owners.read_text().strip())
            except OSError as error:
                raise ConfigError(f"{self.owners} cannot be read: {error.strerror}") from None
            self._read = now, owner, self.users()
        return caller_of(header, self._read[1], self._read[2])


def _stamp(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return hash((found.st_ino, found.st_mtime_ns, found.st_size))


def read_token(path: Path) -> str:
    """Read a token from a file that others cannot read. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            mode, token = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(4096).strip()
    except OSError as error:
        raise ConfigError(
            f"--token-file {path}: cannot be read: {error.strerror}; it holds what `edl cluster token` has printed"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"--token-file {path}: others can read it (mode {mode:04o}): `chmod 600 {path}`")
    if not re.fullmatch(rb"[\x21-\x7e]{1,256}", token):
        raise ConfigError(f"--token-file {path}: holds no token: one line, as `edl cluster token` has printed it")
    return token.decode()
