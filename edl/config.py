"""The settings of a job, and where each comes from: a keyword or flag, else the environment, else the default.

Owns: names, forms and defaults of all settings: one table for the command line, the environment and `edl.init`.
Does not own: the settings of a connection to ZooKeeper (`edl.coordination`), what a launcher has left of a job on this
machine (`edl.host.joining`), nor what is started with them.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from edl.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(\d{1,5})")
# Fields that say nothing of a job without any.
OF_CHECKPOINTS = ("checkpoint_every", "checkpoint_overhead", "keep_checkpoints", "resume")
AUTO = "auto"  # the job chooses the interval between its checkpoints

# ------------------------------------------------------------------------------------------------ forms of values
# Each takes the text that was given and returns the value, or raises ValueError with what it should have been.


def _name(text: str) -> str:
    if not NAME.fullmatch(text) or set(text) == {"."}:
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-'")
    return text


def _whole_number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"must be a whole number of at least {least}")
        return int(text)

    return parse


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError("must be a port from 1 to 65535")
    return int(text)


def any_port(text: str) -> int:
    """0: any that is free. Raises ValueError."""
    try:
        return 0 if text == "0" else _port(text)
    except ValueError:
        raise ValueError("must be a port from 1 to 65535, or 0 for any that is free") from None


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError("must be an IPv4 address of this machine, such as 127.0.0.1, or 0.0.0.0 for all") from None


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"must be a number of seconds from {least:g} to {most:g}")
        return value

    return parse


def _coordinator(text: str) -> str:
    kind, named, rest = text.partition("://")
    if named and kind not in {"zookeeper", "etcd"}:
        raise ValueError("begins with zookeeper:// or etcd://, or with HOST:PORT of a ZooKeeper")
    if kind == "etcd" and rest.startswith("/"):
        return text  # the socket of one that `edl run` has started
    hosts, slash, chroot = (rest if named else text).partition("/")
    for address in hosts.split(","):
        match = ADDRESS.fullmatch(address)
        if not match or not 1 <= int(match[2]) <= 65535:
            raise ValueError("must be HOST:PORT, more of them after commas, and perhaps a /path at the end")
    if slash and not all(chroot.split("/")):
        raise ValueError("ends in a /path with an empty part; write it like /training/edl")
    return text


def _path(text: str) -> Path:
    if not text:
        raise ValueError("must be a path")
    return Path(text).expanduser().absolute()


def _autoscale(text: str) -> str:
    """The form only; `edl.policy.choice` reads it."""
    number = r"[0-9]+(\.[0-9]+)?"
    policy = rf"(efficiency={number}|utility=[^,]+|policy=[^,]+)"
    if not re.fullmatch(rf"{policy}(,(stride|batches|cooldown)={number}|,dry-run)*", text):
        raise ValueError("must be efficiency=S, utility=FILE or policy=NAME, with options like stride=2 after commas")
    return text


def _batch_policy(text: str) -> str:
    """The form only; `edl.daemon.policies` reads it. `table=` is what a function said, as `edl run` hands it on."""
    fixed, function = r"fixed-local(,most=[1-9][0-9]*)?|fixed-global", r"function=[^,]+:[A-Za-z_][A-Za-z_0-9]*"
    pair = r"[1-9][0-9]{0,8}:[1-9][0-9]{0,8}"
    if not re.fullmatch(rf"{fixed}|{function}|table={pair}(,{pair})*", text):
        raise ValueError("must be fixed-local, fixed-local,most=N, fixed-global or function=FILE.py:NAME")
    return text


def _place(text: str) -> str:
    """A folder or a URL."""
    if not text:
        raise ValueError("must be a folder or a URL")
    return text if "://" in text or "::" in text else str(Path(text).expanduser().absolute())


def interval(text: str) -> tuple[float, bool]:
    """How much, and whether it is steps. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s|([1-9][0-9]{0,8})steps", text)
    if match is None or (match[1] and float(match[1]) < 1):
        raise ValueError("must be a number of seconds, at least 1, or of steps: 30s or 500steps; or auto")
    return (float(match[1]), False) if match[1] else (float(match[2]), True)


def _interval(text: str) -> str:
    if text != AUTO:
        interval(text)
    return text


def share(text: str) -> float:
    """Of 1. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if match is None or not 0.01 <= float(match[1]) <= 100:
        raise ValueError("must be a percentage from 0.01% to 100%, such as 1%")
    return float(match[1]) / 100


def _share(text: str) -> str:
    share(text)
    return text


def _resume(text: str) -> str:
    return text if text in ("auto", "never", "must") else _place(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def _driver_slot(text: str) -> str:
    if not re.fullmatch(r"[^\s:]+:[0-9]+", text):
        raise ValueError("must be HOST:NUMBER")
    return text


def _interface(text: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    if text not in names:
        raise ValueError(f"is no network interface of this machine; it has {', '.join(names)}")
    return text


# ------------------------------------------------------------------------------------------------------ the table


class Setting(msgspec.Struct, frozen=True):
    """One setting: its field, how its text is read, and what it is called outside."""

    field: str
    parse: Callable[[str], object]
    variables: tuple[str, ...]  # the first is the one handed down to workers
    flags: tuple[str, ...] = ()  # none: only for scripts and the environment
    metavar: str = ""
    help: str = ""


TABLE: tuple[Setting, ...] = (
    Setting("job", _name, ("EDL_JOB",), ("--job",), "NAME", "name of the job (default: a new one like brisk-otter-42)"),
    Setting(
        "coordinator",
        _coordinator,
        ("EDL_COORDINATOR",),
        ("--coordinator",),
        "[etcd://]HOST:PORT[,...][/chroot]",
        "the ZooKeeper, or with etcd:// the etcd, that coordinates the job (default: a local one that lives as long as "
        "the job)",
    ),
    Setting(
        "local_coordinator",
        _one_of("zookeeper", "etcd"),
        ("EDL_LOCAL_COORDINATOR",),
        ("--local-coordinator",),
        "zookeeper|etcd",
        "what a local coordinator is (default: zookeeper; where there is no Java but an etcd, etcd)",
    ),
    Setting(
        "secret_file",
        _path,
        ("EDL_SECRET_FILE",),
        ("--secret-file",),
        "FILE",
        "file with the secret that the workers of the job share (default: the one in the job's record here)",
    ),
    Setting(
        "np",
        _whole_number(1),
        ("EDL_NP", "EDL_NUM_PROC"),
        ("-np", "--num-proc"),
        "N",
        "workers to start with (default: the smallest number allowed, 1)",
    ),
    Setting(
        "min_workers",
        _whole_number(1),
        ("EDL_MIN_WORKERS", "EDL_MIN_NP", "EDL_MIN_NUM_PROC"),
        ("--min-np", "--min-num-proc"),
        "A",
        "fewest workers the job may go on with (default: 1)",
    ),
    Setting(
        "max_workers",
        _whole_number(1),
        ("EDL_MAX_WORKERS", "EDL_MAX_NP", "EDL_MAX_NUM_PROC"),
        ("--max-np", "--max-num-proc"),
        "B",
        "most workers the job may have (default: no limit)",
    ),
    Setting(
        "max_restarts",
        _whole_number(0),
        ("EDL_MAX_RESTARTS",),
        ("--max-restarts",),
        "R",
        "how often in all a crashed worker is replaced, or a saved job that has died is begun again (default: 3)",
    ),
    Setting(
        "autoscale",
        _autoscale,
        ("EDL_AUTOSCALE",),
        ("--autoscale",),
        "POLICY",
        "choose the number of workers between --min-np and --max-np by efficiency=S, utility=FILE or policy=NAME; "
        "after a comma stride=N, batches=N, cooldown=SECONDS, dry-run (default: only people change it)",
    ),
    Setting(
        "autoscale_every",
        _whole_number(1),
        ("EDL_AUTOSCALE_EVERY",),
        ("--autoscale-every",),
        "STEPS",
        "steps from one look of --autoscale and --stragglers to the next (default: 10)",
    ),
    Setting(
        "stragglers",
        _one_of("off", "tell", "replace", "share"),
        ("EDL_STRAGGLERS",),
        ("--stragglers",),
        "off|tell|replace|share",
        "what becomes of a worker that holds up the others: share gives it fewer samples of a batch that "
        "--batch-policy fixes (default: off)",
    ),
    Setting(
        "ring",
        _one_of("horovod", "torch"),
        ("EDL_RING",),
        ("--ring",),
        "horovod|torch",
        "what PyTorch's gradients are averaged by: Horovod, or torch's own process groups, which need no build of "
        "Horovod; TensorFlow's always by Horovod (default: horovod)",
    ),
    Setting(
        "check_weights",
        _whole_number(0),
        ("EDL_CHECK_WEIGHTS",),
        ("--check-weights",),
        "STEPS",
        "steps from one comparison of all workers' weights and optimizers to the next; there is one after each change "
        "of workers in any case, and 0 means no other (default: 100)",
    ),
    Setting(
        "on_divergence",
        _one_of("fail", "heal"),
        ("EDL_ON_DIVERGENCE",),
        ("--on-divergence",),
        "fail|heal",
        "what becomes of a job whose workers are found to differ: it fails, or the majority's state becomes "
        "that of all (default: fail)",
    ),
    Setting(
        "batch_policy",
        _batch_policy,
        ("EDL_BATCH_POLICY",),
        ("--batch-policy",),
        "POLICY",
        "what n in batches(n) means when the number of workers changes: fixed-local, each worker takes n, and with "
        ",most=N never more than N together; fixed-global, all together take n; function=FILE.py:NAME says how many "
        "all take together (default: fixed-local)",
    ),
    Setting(
        "checkpoint",
        _place,
        ("EDL_CHECKPOINT",),
        ("--checkpoint",),
        "DIR|URL",
        "save the job there while it trains; started again with the same line, it goes on from the newest checkpoint "
        "(default: it is not saved)",
    ),
    Setting(
        "checkpoint_every",
        _interval,
        ("EDL_CHECKPOINT_EVERY",),
        ("--checkpoint-every",),
        "30s|500steps|auto",
        "from one checkpoint to the next; auto: as what one costs and the faults seen ask for (default: auto)",
    ),
    Setting(
        "checkpoint_overhead",
        _share,
        ("EDL_CHECKPOINT_OVERHEAD",),
        ("--checkpoint-overhead",),
        "PERCENT%",
        "with --checkpoint-every auto: the share of its time that training may lose to checkpoints (default: 1%%)",
    ),
    Setting(
        "keep_checkpoints",
        _whole_number(1),
        ("EDL_KEEP",),
        ("--keep",),
        "N",
        "durable checkpoints that stay, the newest ones (default: 2)",
    ),
    Setting(
        "resume",
        _resume,
        ("EDL_RESUME",),
        ("--resume",),
        "auto|never|must|PATH",
        "auto: go on from the newest checkpoint in the folder of --checkpoint, or begin anew if there is none; must: "
        "do not begin anew; PATH: go on from that one (default: auto)",
    ),
    Setting(
        "output_filename",
        _path,
        ("EDL_OUTPUT_FILENAME",),
        ("--output-filename",),
        "DIR",
        "also write what worker N prints to DIR/rank.N/stdout and DIR/rank.N/stderr",
    ),
    Setting(
        "audit",
        _path,
        ("EDL_AUDIT",),
        ("--audit",),
        "DIR",
        "each worker records in DIR what it trains, for `edl data verify DIR` (default: no record)",
    ),
    Setting(
        "network_interface",
        _interface,
        ("EDL_NETWORK_INTERFACE",),
        ("--network-interface",),
        "NAME",
        "network interface that workers reach each other by (default: chosen for you)",
    ),
    Setting(
        "session_timeout_s",
        _seconds(1, 60),
        ("EDL_SESSION_TIMEOUT",),
        ("--session-timeout",),
        "SECONDS",
        "a worker unheard of for so long is taken for lost (default: 10)",
    ),
    Setting(
        "step_timeout_s",
        _seconds(1, 86_400),
        ("EDL_STEP_TIMEOUT",),
        ("--step-timeout",),
        "SECONDS",
        "a step longer than this is taken for stuck (default: 60)",
    ),
    Setting(
        "keep_nodes_s",
        _seconds(0, 10 * 365 * 86_400),
        ("EDL_KEEP_NODES",),
        ("--keep-nodes",),
        "SECONDS",
        "how long a job that is over can be looked at in a coordinator that outlives it (default: a week, 604800)",
    ),
    Setting(
        "zookeeper_port",
        _port,
        ("EDL_ZOOKEEPER_PORT",),
        ("--zookeeper-port",),
        "PORT",
        "port of the local ZooKeeper or etcd (default: any free one)",
    ),
    Setting(
        "metrics_port",
        any_port,
        ("EDL_METRICS_PORT",),
        ("--metrics-port",),
        "PORT",
        "each worker's daemon serves /metrics for Prometheus on this port or the next free one, 0: on any; "
        "the leader's has the job's (default: none is served)",
    ),
    Setting(
        "metrics_address",
        _ip_address,
        ("EDL_METRICS_ADDRESS",),
        ("--metrics-address",),
        "ADDRESS",
        "address of this machine to serve metrics on; all who reach it can read them (default: 127.0.0.1)",
    ),
    Setting(
        "tensorboard",
        _path,
        ("EDL_TENSORBOARD",),
        ("--tensorboard",),
        "DIR",
        "write the job's size, throughput, what the script gives to edl.report(), and its events to DIR/JOB for "
        "TensorBoard (default: nothing is written)",
    ),
    Setting("home", _path, ("EDL_HOME",), ("--home",), "DIR", "folder of the records of jobs (default: ~/.edl)"),
    Setting("policy_file", _path, ("EDL_POLICY_FILE",)),
    Setting("resume_from", str, ("EDL_RESUME_FROM",)),
    Setting("life", _whole_number(1), ("EDL_LIFE",)),
    Setting("batch_size", _whole_number(1), ("EDL_BATCH_SIZE",)),
    Setting("slot", _whole_number(0), ("EDL_SLOT",)),
    Setting("worker_id", _name, ("EDL_WORKER_ID",)),
    Setting("stand_in", _path, ("EDL_STAND_IN",)),
    Setting("driver_slot", _driver_slot, ("EDL_DRIVER_SLOT",)),
)


class Given(msgspec.Struct, frozen=True):
    """What the caller gave for one setting, and how to quote it back."""

    text: str
    quote: str  # "-np 0", "EDL_NP=0" or "np=0"


# --------------------------------------------------------------------------------------------------- the settings


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that one process is told about its job. Build it by `from_environment` or `from_given`, which check it."""

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
    ring: str = "horovod"
    check_weights: int = 100
    on_divergence: str = "fail"
    batch_policy: str = "fixed-local"
    checkpoint: str = ""  # empty: the job is not saved
    checkpoint_every: str = AUTO
    checkpoint_overhead: str = "1%"
    keep_checkpoints: int = 2
    resume: str = "auto"
    resume_from: str = ""  # the checkpoint that this life of the job begins with, as `edl run` has chosen it
    life: int = 1  # of the job, in the folder of its checkpoints
    policy_file: Path | None = None  # the code of --autoscale policy=FILE.py:CLASS, as it was when that was typed
    batch_size: int | None = None
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
    home: Path = msgspec.field(default_factory=lambda: Path("~/.edl").expanduser())
    slot: int | None = None  # number of the local worker slot under `edl run`
    worker_id: str | None = None  # None: make one; an id is never used twice
    stand_in: Path | None = None  # socket of the process that horovodrun takes for this worker
    driver_slot: str | None = None  # host:number, where an elastic horovodrun has started it

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **keywords: object) -> Settings:
        """Settings from keywords (None: not given), else from EDL_ variables. Raises ConfigError."""
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
        """Settings from what was given explicitly, else from the environment. Raises ConfigError."""
        quotes: dict[str, str] = {}
        values: dict[str, Any] = {}
        for setting in TABLE:
            source = given.get(setting.field) or _from_variables(setting, environ)
            if source is not None:
                values[setting.field] = _parsed(setting, source)
                quotes[setting.field] = source.quote
        values.setdefault("np", values.get("min_workers", 1))
        settings = cls(**values)
        _check_sizes(settings, quotes)
        _check_timeouts(settings, quotes)
        _check_shares(settings, quotes)
        _check_checkpoints(settings, quotes)
        return settings

    @property
    def job_home(self) -> Path:
        """Folder of this job's record on this machine. It need not exist."""
        if self.job is None:
            raise ConfigError("there is no job: give it a name by EDL_JOB")
        return self.home / "jobs" / self.job

    def secret(self) -> bytes:
        """What the workers of the job share and strangers do not know; empty when the job has no secret."""
        if self.secret_file is None:
            return b""
        try:
            with self.secret_file.open("rb") as file:
                status, secret = os.fstat(file.fileno()), file.read().strip()
        except OSError as error:
            raise ConfigError(f"EDL_SECRET_FILE={self.secret_file}: cannot be read: {error.strerror}") from None
        if _is_open_to_others(status):
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                f"EDL_SECRET_FILE={self.secret_file}: others can read it (mode {mode:04o}), and could speak in the "
                f"job's name; `chmod 600 {self.secret_file}`, and take a fresh secret if it was open for long"
            )
        if not secret:
            raise ConfigError(f"EDL_SECRET_FILE={self.secret_file}: is empty")
        return secret

    def to_environment(self) -> dict[str, str]:
        """The variables that hand these settings down to a child."""
        silent = () if self.checkpoint else OF_CHECKPOINTS
        if self.checkpoint_every != AUTO:
            silent = (*silent, "checkpoint_overhead")
        handed = [setting for setting in TABLE if setting.field not in silent]
        values = {setting.variables[0]: getattr(self, setting.field) for setting in handed}
        return {name: str(value) for name, value in values.items() if value is not None}


def _is_open_to_others(file: os.stat_result) -> bool:
    """A file of root's that a group may read is how Kubernetes hands a secret to a pod."""
    return bool(file.st_mode & (0o027 if file.st_uid == 0 else 0o077))


def scrubbed(environ: Mapping[str, str], *, credentials: bool) -> dict[str, str]:
    """The environment without any setting of edl, so that a child gets each from `to_environment` or not at all.

    With `credentials` also without EDL_COORDINATOR_...: they belong to another coordinator than the child's.
    """
    ours = {name for setting in TABLE for name in setting.variables}
    others = "EDL_COORDINATOR_" if credentials else "\0"
    return {name: value for name, value in environ.items() if name not in ours and not name.startswith(others)}


def _from_variables(setting: Setting, environ: Mapping[str, str]) -> Given | None:
    found = [(name, environ[name]) for name in setting.variables if environ.get(name)]
    if not found:
        return None
    name, text = found[0]
    for other, different in found[1:]:
        if different != text:
            raise ConfigError(f"{name}={text} and {other}={different} contradict each other: unset one of them")
    return Given(text, f"{name}={text}")


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
    """A ring is given up after a step time-out, and made anew without the workers whose sessions have ended by then."""
    session_s, step_s = settings.session_timeout_s, settings.step_timeout_s
    if step_s < session_s / 2:
        step = quotes.get("step_timeout_s", f"the default --step-timeout of {step_s:g}")
        session = quotes.get("session_timeout_s", f"the default --session-timeout of {session_s:g}")
        raise ConfigError(
            f"{step} is less than half of {session}: rings would be given up long before it is known who is gone; "
            f"make it {session_s / 2:g} or more, or the other one shorter"
        )


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
