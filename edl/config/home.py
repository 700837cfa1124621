"""A home belongs to the user who runs edl, or to root. Owns: refusing another user's. Does not own: what is kept
there.
"""

from __future__ import annotations

import os
from pathlib import Path

from edl.errors import ConfigError


def check_home(home: Path, *inside: Path) -> None:
    """Raise ConfigError where `home` or one of the paths `inside` is there and another user's, who is not root."""
    for path in (home, *inside):
        try:
            owner = path.stat().st_uid
        except OSError:  # not there, or it cannot be read, as its reader will say
            continue
        if owner not in {os.geteuid(), 0}:
            raise ConfigError(
                f"EDL_HOME={home}: {path} belongs to another user (uid {owner}), who could change what edl keeps "
                "there, its secrets too: set EDL_HOME to a folder of your own"
            )
