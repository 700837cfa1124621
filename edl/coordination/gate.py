"""The gate before a local ZooKeeper: only its user's processes, and root's, come in.

Owns: finding the compiled gate, and the variable that puts it before a server. Does not own: what it does (`_gate.c`).

Whom no ACL lets read or write anything can still end a ZooKeeper: any client may have it keep a message of 1 MB until
its end comes, or a watch with a name as long, and some hundreds of these are all of its memory. ZooKeeper itself can
only tell clients apart once it has read what they sent. The gate is compiled where edl is installed with a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PRELOAD = "LD_PRELOAD"


def find_gate() -> Path | None:
    """Find the compiled gate; None: it was not compiled, or lies where the linker cannot be told of it."""
    here = Path(__file__).parent
    found = [path for suffix in EXTENSION_SUFFIXES if (path := here / f"_gate{suffix}").exists()]
    return found[0] if found and not re.search(r"[\s:$]", str(found[0])) else None


def gated(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server behind the gate; as it is, where there is none."""
    gate, others = find_gate(), environ.get(_PRELOAD)
    if gate is None:
        return dict(environ)
    return {**environ, _PRELOAD: f"{gate}:{others}" if others else str(gate)}
