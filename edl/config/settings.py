"""The settings of one process, read from its keywords, flags and environment, and checked.

Owns: where each setting comes from, how settings agree with one another, how they are handed down to a child, and that
EDL_HOME belongs to the user who runs edl, or to root. Does not own: their names and forms (`edl.config.settings_table`,
`edl.config.value_parsers`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from edl.config.settings_table import MORE_VARIABLES, TABLE, Setting
from edl.config.value_parsers import AUTO
from edl.errors import ConfigError, did_you_mean

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


# Fields that mean nothing to a job without checkpoints.
MOST_VIRTUAL: Final = 256
MOST_PROCESSES: Final = 8
OF_CHECKPOINTS = ("checkpoint_every", "checkpoint_overhead", "keep_checkpoints", "resume")


class Given(msgspec.Struct, frozen=True):
    """The text that was given for a setting, and how to quote it in a message."""

    text: str
    quote: str  # "-np 0", "EDL_NP=0" or "np=0"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process of a job. Build them by `from_environment` or `from_given`, which check them."""

    job: str | None = None  # None: no job at all, which means a job of one worker without a coordinator
    coordinator: str | None = None  # [zookeeper:// or etcd://]host:port[,host:port][/chroot]
    local_coordinator: str | None = None  # None: ZooKeeper, where it can be had
    secret_file: Path | None = None
    np: int = 1
    min_workers: int = 1
    max_workers: int | None = None  # None: no limit
    max_restarts: int = 3
    autoscale: str = ""  # empty: only people change the size
    autoscale_every: int = 10
    stragglers: str = "off"
    ring: str = "auto"  # each worker finds out which library that is (`edl.trainer.which_ring`)
    check_weights: int = 100
    on_divergence: str = "fail"
    batch_policy: str = "fixed-local"
    virtual_workers: int | None = None
    verify_compute: str = ""  # empty: no part is computed again
    processes: int = 1  # of each worker
    checkpoint: str = ""  # empty: the job is not saved
    checkpoint_every: str = AUTO
    checkpoint_overhead: str = "1%"
    keep_checkpoints: int = 2
    resume: str = "auto"
    resume_from: str = ""  # the checkpoint that this life of the job begins with, as its launcher has chosen it
    replay_until: int | None = None  # the step of all lives after whose parts the script ends, as `edl replay` asks
    life: int = 1  # of the job, in the folder of its checkpoints
    policy_file: Path | None = None  # copy of the code of --autoscale policy=FILE.py:CLASS, as of the job's start
    batch_size: int | None = None
    spin_ms: float | None = None
    session_timeout_s: float = 10.0
    step_timeout_s: float = 60.0
    keep_nodes_s: float = 604_800.0
    network_interface: str | None = None  # None: let edl choose
    zookeeper_port: int | None = None
    metrics_port: int | None = None  # None: no metrics are served; 0: on any port
    metrics_address: str = "127.0.0.1"
    output_filename: Path | None = None
    audit: Path | None = None
    tensorboard: Path | None = None
    warm_starts: str = "on"
    log_level: str = "info"
    config: Path | None = None  # file of the settings that neither a flag nor a variable gives
    home: Path = msgspec.field(default_factory=lambda: Path("~/.edl").expanduser())
    slot: int | None = None  # number of the local worker slot under `edl run`
    limb: int = 0  # number of this process among those of its worker
    meeting: Path | None = None  # file by which the processes of one worker find its daemon; None: a single process
    worker_id: str | None = None  # None: make one; an id is never used twice
    stand_in: Path | None = None  # socket of the proxy process that horovodrun takes for this worker
    driver_slot: str | None = None  # host:number at which an elastic horovodrun has started this process

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **keywords: object) -> Settings:
        """Read settings from keywords (None: not given), else from EDL_ variables. Raises ConfigError."""
        unknown = sorted(keywords.keys() - {setting.field for setting in TABLE})
        if unknown:
            raise ConfigError(f"{unknown[0]} is no setting of edl")
        given = {
            field: Given(str(value), f"{field}={value!r}") for field, value in keywords.items() if value is not None
        }
        settings = cls.from_given(given, environ)
        if settings.job is None and settings.coordinator is not None:
            raise ConfigError(f"EDL_COORDINATOR={settings.coordinator} is given without a job: set EDL_JOB too")
        return settings

    @classmethod
    def from_given(cls, given: Mapping[str, Given], environ: Mapping[str, str]) -> Settings:
        """Read settings from explicitly given values, else from the environment, else from the file of --config. Raises
        ConfigError.
        """
        quotes: dict[str, str] = {}
        values: dict[str, Any] = {}
        named = {setting.field: given.get(setting.field) or _from_variables(setting, environ) for setting in TABLE}
        filed = _from_file(Path(file.text).expanduser()) if (file := named["config"]) else {}
        for setting in TABLE:
            source = named[setting.field] or filed.get(setting.field)
            if source is not None:
                values[setting.field] = _parsed(setting, source)
                quotes[setting.field] = source.quote
        values.setdefault("np", values.get("min_workers", 1))
        if "virtual_workers" in values:
            values.setdefault("max_workers", values["virtual_workers"])
        if values.get("processes", 1) > 1 and values.get("ring", AUTO) == AUTO:
            values["ring"] = "torch"
        settings = cls(**values)
        _check_virtual(settings, quotes)
        _check_sizes(settings, quotes)
        _check_timeouts(settings, quotes)
        _check_shares(settings, quotes)
        _check_checkpoints(settings, quotes)
        _check_processes(settings, quotes)
        return settings

    @property
    def job_home(self) -> Path:
        """Return the folder of this job's record on this machine. It need not exist."""
        if self.job is None:
            raise ConfigError("there is no job: give it a name by EDL_JOB")
        return self.home / "jobs" / self.job

    def secret(self) -> bytes:
        """Return the secret that only the job's workers share; empty if the job has none. Raises ConfigError."""
        if self.secret_file is None:
            return b""
        named = f"the secret's file {self.secret_file} (--secret-file or EDL_SECRET_FILE)"
        try:
            with self.secret_file.open("rb") as file:
                status, secret = os.fstat(file.fileno()), file.read().strip()
        except OSError as error:
            raise ConfigError(f"{named} cannot be read: {error.strerror}") from None
        if _is_open_to_others(status):
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                f"{named} can be read by others (mode {mode:04o}), who could speak in the "
                f"job's name; `chmod 600 {self.secret_file}`, and take a fresh secret if it was open for long"
            )
        if not secret:
            raise ConfigError(f"{named} is empty")
        return secret

    def to_environment(self) -> dict[str, str]:
        """Return the variables that hand these settings down to a child."""
        # The other variables have the settings of the file.
        silent = ("config", *(() if self.checkpoint else OF_CHECKPOINTS))
        if self.checkpoint_every != AUTO:
            silent = (*silent, "checkpoint_overhead")
        handed = [setting for setting in TABLE if setting.field not in silent]
        values = {setting.variables[0]: getattr(self, setting.field) for setting in handed}
        return {name: str(value) for name, value in values.items() if value is not None}


def _is_open_to_others(file: os.stat_result) -> bool:
    """Tell whether other users can read the secret. A group may read a file that root owns, because Kubernetes hands a
    secret to a pod in this way.
    """
    return bool(file.st_mode & (0o027 if file.st_uid == 0 else 0o077))


def scrubbed(environ: Mapping[str, str], *, credentials: bool) -> dict[str, str]:
    """Return the environment without any setting of edl, so that a child gets each from `to_environment` or not at all.

    With `credentials`, EDL_COORDINATOR_... variables are removed too: they belong to another coordinator than the
    child's.
    """
    ours = {name for setting in TABLE for name in setting.variables}
    others = "EDL_COORDINATOR_" if credentials else "\0"
    return {name: value for name, value in environ.items() if name not in ours and not name.startswith(others)}


def mistyped(environ: Mapping[str, str], besides: Iterable[str]) -> list[str]:
    """Return a line for each EDL_ variable that edl does not know and whose name is very near one that it knows.
    `besides`: known ones that are neither settings nor in MORE_VARIABLES.
    """
    from difflib import get_close_matches  # only here: most processes never need it

    known = {*MORE_VARIABLES, *(name for setting in TABLE for name in setting.variables)}
    stems = sorted(name.removeprefix("EDL_") for name in known)
    lines = []
    for name in sorted(environ.keys() - known.union(besides)):
        stem = name.removeprefix("EDL_")
        if stem != name and environ[name] and (near := get_close_matches(stem, stems, n=1, cutoff=0.75)):
            lines.append(f"{name} is no variable of edl: did you mean EDL_{near[0]}?")
    return lines


def _from_variables(setting: Setting, environ: Mapping[str, str]) -> Given | None:
    found = [(name, environ[name]) for name in setting.variables if environ.get(name)]
    if not found:
        return None
    name, text = found[0]
    for other, different in found[1:]:
        if different != text:
            raise ConfigError(f"{name}={text} and {other}={different} contradict each other: unset one of them")
    return Given(text, f"{name}={text}")


def _from_file(path: Path) -> dict[str, Given]:
    """Read the settings in a file, by field. Raises ConfigError."""
    import tomllib  # only here: few processes are given a file

    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe may have no writer
            raise ConfigError(f"--config {path}: is no plain file")
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also for numbers of too many digits and deeply nested lists
        raise ConfigError(f"--config {path}: is no TOML: {error}") from None
    fields = {flag.lstrip("-"): setting.field for setting in TABLE for flag in setting.flags if flag != "--config"}
    given: dict[str, Given] = {}
    for key, value in found.items():
        if (field := fields.get(name := key.replace("_", "-"))) is None:
            near = did_you_mean(name, fields)
            raise ConfigError(f"{key} in {path} is no flag of edl{near or '; `edl help run` lists them'}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ConfigError(f"{key} in {path}: must be one number or text, as after --{name}")
        if field in given:
            raise ConfigError(f"{key} in {path} says once more what {given[field].quote} says: leave one of them away")
        given[field] = Given(str(value), f"{key} = {value} in {path}")
    return given


def _parsed(setting: Setting, given: Given) -> object:
    try:
        return setting.parse(given.text)
    except ValueError as error:
        raise ConfigError(f"{given.quote}: {error}") from None


def _check_shares(settings: Settings, quotes: Mapping[str, str]) -> None:
    if settings.stragglers == "share" and settings.batch_policy == "fixed-local":
        raise ConfigError(
            f"{quotes['stragglers']}: there is no batch to share out; add --batch-policy fixed-global "
            "(EDL_BATCH_POLICY), or choose --stragglers replace"
        )


def _check_checkpoints(settings: Settings, quotes: Mapping[str, str]) -> None:
    for field in OF_CHECKPOINTS:
        if not settings.checkpoint and field in quotes and (field != "resume" or settings.resume != "never"):
            raise ConfigError(f"{quotes[field]}: the job has no folder for checkpoints; add --checkpoint DIR")
    if settings.checkpoint_every != AUTO and "checkpoint_overhead" in quotes:
        raise ConfigError(
            f"{quotes['checkpoint_overhead']}: {quotes['checkpoint_every']} says how often in any case; leave one of "
            "them away, or make it --checkpoint-every auto"
        )


def _check_timeouts(settings: Settings, quotes: Mapping[str, str]) -> None:
    """Refuse a step time-out that is much shorter than the session time-out.

    A ring is given up after a step time-out, and formed anew without the workers whose sessions have ended by then.
    """
    session_s, step_s = settings.session_timeout_s, settings.step_timeout_s
    if step_s < session_s / 2:
        step = quotes.get("step_timeout_s", f"the default --step-timeout of {step_s:g}")
        session = quotes.get("session_timeout_s", f"the default --session-timeout of {session_s:g}")
        raise ConfigError(
            f"{step} is less than half of {session}: rings would be given up long before it is known who is gone; "
            f"make it {session_s / 2:g} or more, or the other one shorter"
        )


def _check_virtual(settings: Settings, quotes: Mapping[str, str]) -> None:
    virtual = settings.virtual_workers
    if virtual is None:
        if settings.verify_compute:
            raise ConfigError(
                f"{quotes['verify_compute']}: only parts of virtual workers can be computed again elsewhere; add "
                "--virtual-workers V (EDL_VIRTUAL_WORKERS), or leave it away"
            )
        return
    quote = quotes["virtual_workers"]
    if virtual > MOST_VIRTUAL:
        raise ConfigError(f"{quote} is more than {MOST_VIRTUAL}: sums of 32 bits would have too few for each part")
    for field in ("min_workers", "np", "max_workers"):
        if (getattr(settings, field) or 0) > virtual:
            raise ConfigError(
                f"{quotes[field]} is more than {quote}, and each worker computes at least one of them: start fewer "
                "workers, or make it more for the whole life of the job"
            )
    if settings.stragglers == "share":
        raise ConfigError(
            f"{quotes['stragglers']}: the parts of virtual workers are of one size; choose --stragglers replace, or "
            f"leave {quote} away"
        )
    if settings.batch_policy.startswith(("function", "table")):
        raise ConfigError(
            f"{quotes['batch_policy']}: with {quote} a step is the same at any size; leave one of them away"
        )


def _check_processes(settings: Settings, quotes: Mapping[str, str]) -> None:
    """Refuse what workers of several processes cannot do yet."""
    if settings.processes == 1:
        return
    quote = quotes["processes"]
    if settings.processes > MOST_PROCESSES:
        raise ConfigError(f"{quote} is more than {MOST_PROCESSES}")
    if settings.ring == "horovod":
        raise ConfigError(
            f"{quotes['ring']}: workers of several processes ({quote}) need --ring torch (EDL_RING=torch)"
        )
    if "virtual_workers" in quotes:
        raise ConfigError(
            f"{quotes['virtual_workers']}: not with workers of several processes yet: leave it or {quote} away"
        )
    if settings.on_divergence == "heal":
        raise ConfigError(
            f"{quotes['on_divergence']}: not with workers of several processes yet; leave it or {quote} away"
        )
    if settings.stand_in is not None:
        raise ConfigError(f"{quote}: horovodrun starts workers of one process each; start the job by `edl run`")


def _check_sizes(settings: Settings, quotes: Mapping[str, str]) -> None:
    fewest, most = settings.min_workers, settings.max_workers

    def quote(field: str, value: int) -> str:
        return quotes.get(field, f"{field} {value}")

    if most is not None and fewest > most:
        raise ConfigError(f"{quote('min_workers', fewest)} is more than {quote('max_workers', most)}")
    if settings.np < fewest:
        raise ConfigError(f"{quote('np', settings.np)} is less than {quote('min_workers', fewest)}")
    if most is not None and settings.np > most:
        raise ConfigError(f"{quote('np', settings.np)} is more than {quote('max_workers', most)}")
