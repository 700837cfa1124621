"""The variables that Horovod reads once per process, or at each forming, and those that scripts read.

Owns: the names and their values, and what tells an installed Horovod. Does not own: how one library is given its own
(`edl.collectives.library_guard`).
"""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

from edl.collectives.rendezvous import HOROVODS_PORT
from edl.protocol.assignment import Place

BUILD = "build Horovod from a clone of edl, by scripts/setup or, for another environment, scripts/build-horovod"


def has_horovod(framework: str) -> bool:
    """Tell whether Horovod is built for `torch` or `tensorflow`, without importing it; its mere folder does not
    count.
    """
    spec = importlib.util.find_spec("horovod")
    folders = (spec and spec.submodule_search_locations) or ()
    return any(any(Path(folder, framework).glob("mpi_lib*.so")) for folder in folders)


def prepare_environment(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Set what Horovod must find before the user's script touches it.

    With HOROVOD_ELASTIC=1 Horovod looks up sizes when an operation runs instead of when it is traced, and its own
    optimizers keep their hooks in a ring of one: a solo ring would freeze both.
    """
    environ.setdefault("HOROVOD_ELASTIC", "1")
    environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")  # tensors on a GPU go by what Horovod was built with
    environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")  # a broken ring is reported once, by us


def variables(place: Place, timeout_s: float, *, keep_elastic: bool = False) -> dict[str, str | None]:
    """Return the variables of a place while its ring forms; None: must not be set. What users tune (cycle time, …)
    stays.

    HOROVOD_ELASTIC is hidden: with it, a second init() first asks the rendezvous for the rank that we know already, and
    one without a rendezvous (a solo ring) crashes.
    """
    found = place.rendezvous != ""
    elastic: dict[str, str | None] = {} if keep_elastic and found else {"HOROVOD_ELASTIC": None}
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_GLOO_IFACE": place.interface,
        "HOROVOD_HOSTNAME": place.worker,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.rendezvous if found else None,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": HOROVODS_PORT if found else None,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(timeout_s) + 1),  # ours comes first, and says what is missing
        **elastic,
    }


def tell_scripts(place: Place, environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Put ranks and sizes of the current ring into the environment, where horovodrun's processes find theirs."""
    environ.update(
        {
            "HOROVOD_RANK": str(place.rank),
            "HOROVOD_SIZE": str(place.size),
            "HOROVOD_LOCAL_RANK": str(place.local_rank),
            "HOROVOD_LOCAL_SIZE": str(place.local_size),
            "HOROVOD_CROSS_RANK": str(place.cross_rank),
            "HOROVOD_CROSS_SIZE": str(place.cross_size),
        }
    )
