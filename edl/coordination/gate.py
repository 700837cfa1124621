"""The gate of a local ZooKeeper, which accepts connections only from processes of its own user and of root.

Owns: finding the compiled gate, and the variable that loads it into a server. Does not own: its code (`_gate.c`).

A client without any access rights can still exhaust a ZooKeeper: any client may have it hold a message of 1 MB until
the rest arrives, or a watch with a name as long, and some hundreds of these fill its memory. ZooKeeper itself can tell
clients apart only once it has read their messages. The gate is compiled if edl is installed with a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PRELOAD = "LD_PRELOAD"


def find_gate() -> Path | None:
    """Return the compiled gate; None if it was not compiled, or if its path has a character that LD_PRELOAD does not
    allow.
    """
    here = Path(__file__).parent
    found = [path for suffix in EXTENSION_SUFFIXES if (path := here / f"_gate{suffix}").exists()]
    return found[0] if found and not re.search(r"[\s:$]", str(found[0])) else None


def gated(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server behind the gate; an unchanged copy if there is no gate."""
    gate, others = find_gate(), environ.get(_PRELOAD)
    if gate is None:
        return dict(environ)
    return {**environ, _PRELOAD: f"{gate}:{others}" if others else str(gate)}
