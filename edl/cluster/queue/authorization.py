"""Decide what the holder of a token may do. Pure.

The owner of the cluster may do everything. A user's token submits in that user's name, and opens that user's jobs; of
other users' jobs it shows that they exist and which devices they hold. This is a rule of the interface: jobs run as the
owner of the cluster, so a user who may submit is trusted as that owner is (docs/security.md).

Owns: these rules, and whose a token is. Does not own: where tokens are kept (`edl.scheduler.tokens`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from edl.cluster.queue.job_view import JobShown, outlined

LONGEST_TOKEN = 256


class TokenHolder(msgspec.Struct, frozen=True):
    """The holder of the token that came with a request. `user` empty: the owner of the cluster."""

    user: str = ""

    @property
    def owner(self) -> bool:
        return not self.user

    def may_open(self, user: str) -> bool:
        """Tell whether the holder may see what that user's jobs are and print, and end them."""
        return self.owner or self.user == user

    def sees(self, job: JobShown) -> JobShown:
        return job if self.may_open(job.user) else outlined(job)


def digest(token: str) -> str:
    """Return the form in which a token is stored."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def caller_of(header: str, owner: str, users: Mapping[str, str]) -> TokenHolder | None:
    """Return the holder of the token in `header`, an Authorization header. `owner`, `users`: digests."""
    # Each digest is compared, and each in constant time.
    kind, _, token = header.partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
        return None
    given = digest(token)
    found = None
    for user, known in (*users.items(), ("", owner)):
        if hmac.compare_digest(given, known):
            found = TokenHolder(user)
    return found
