"""Choice of the variables of its owner's shell that a job of a cluster gets.

Owns: what is left out. Does not own: what each life is given besides (`edl.scheduler.agent_process`).
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.config import TABLE
from edl.errors import ConfigError

# Settings that are the cluster's to give to each life of a job, whatever this shell has, or the worker that this is.
OF_THE_LIFE = frozenset(
    ("job", "secret_file", "np", "min_workers", "max_workers", "resume_from", "life", "batch_size", "stand_in",
     "driver_slot")
)  # fmt: skip
KEPT_OUT = frozenset(("EDL_HOME", "EDL_WORKER_ID", "EDL_LAUNCH", "EDL_SLOT", "EDL_CLUSTER_OWN")) | {
    name for setting in TABLE if setting.field in OF_THE_LIFE for name in setting.variables
}
OF_SUBMIT = (
    "EDL_NAME", "EDL_USER", "EDL_PRIORITY", "EDL_DEADLINE", "EDL_BATCH_RANGE", "EDL_JSON", "EDL_SPREAD", "EDL_CLUSTER",
    "EDL_TOKEN_FILE", "EDL_CA_FILE", "EDL_FOLDER", "EDL_ENV",
)  # fmt: skip


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the owner's variables that a job gets. Raises ConfigError."""
    left_out = KEPT_OUT | set(OF_SUBMIT)
    handed = {}
    for name, value in environ.items():
        if name in left_out or name.startswith("EDL_COORDINATOR"):
            continue
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the variable {ascii(name)[1:-1]} is not UTF-8: unset it") from None
        handed[name] = value
    return handed
