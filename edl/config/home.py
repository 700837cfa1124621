"""The check that EDL_HOME belongs to the user who runs edl, or to root.

Owns: refusing another user's folder. Does not own: what is kept in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from edl.errors import ConfigError

OWN_HOME: Final = "set EDL_HOME to a folder of your own"


def check_home(home: Path, *inside: Path) -> None:
    """Raise ConfigError if `home` or one of the paths `inside` belongs to another user than this one or root."""
    for path in (home, *inside):
        try:
            owner = path.stat().st_uid
        except OSError:  # the path is missing or unreadable: the code that reads it raises the error
            continue
        if owner not in {os.geteuid(), 0}:
            raise ConfigError(
                f"EDL_HOME={home}: {path} belongs to another user (uid {owner}), who could change what edl keeps "
                f"there, its secrets too: {OWN_HOME}"
            )
