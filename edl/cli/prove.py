"""`edl prove`: try on this machine what edl promises, and write a report."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from edl.cli import tables
from edl.config import Settings, scrubbed
from edl.errors import ConfigError
from edl.launch.host_slots import Host, parse_hosts
from edl.proof import proof_report
from edl.proof.proof_hosts import SSH, HostLink, ProofHosts
from edl.proof.proof_job import ProofPlan
from edl.proof.proof_run import QUICK, prove
from edl.protocol.assignment import RingKind

DEVICES = ("auto", "cpu", "cuda")
DOES_NOT_HOLD = 1
FEWEST = 2  # workers
FREE_MB = 200


def act(arguments: argparse.Namespace) -> int:
    settings = Settings.from_given(arguments.given, os.environ)
    hosts = hosts_of(arguments.hosts)
    plan = planned(settings, arguments.device, hosts, quick=arguments.quick)
    target = Path(arguments.output or ".")
    if not target.is_dir() or not os.access(target, os.W_OK):
        raise ConfigError(f"--output {target}: must be a folder to which you may write")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _interrupted)
    environ = scrubbed(os.environ, credentials=True)
    os.environ.clear()
    os.environ.update(environ)
    with tempfile.TemporaryDirectory(prefix="edl-proof-", ignore_cleanup_errors=True) as folder:
        progress = ProofProgress()
        with contextlib.ExitStack() as stack:
            there = stack.enter_context(ProofHosts(hosts, arguments.ssh or SSH, Path(folder))) if hosts else None
            if there is not None:
                plan = msgspec.structs.replace(plan, device=device_there(arguments.device, there.links))
            found = prove(plan, Path(folder), progress.say, there)
    name = f"edl-proof-{found.date}"
    (target / f"{name}.json").write_bytes(proof_report.as_json(found))
    (target / f"{name}.html").write_text(proof_report.as_page(found), encoding="utf-8")
    if arguments.json:
        sys.stdout.write(proof_report.as_json(found).decode())
    else:
        tables.table(("figure", "value"), proof_report.rows(found))
        faults = found.faults()
        tables.say(f"does not hold: {'; '.join(faults)}" if faults else "all holds", "red" if faults else "green")
        tables.say(f"written: {target / name}.json and .html")
    return DOES_NOT_HOLD if found.faults() else 0


def hosts_of(text: str | None) -> tuple[Host, ...]:
    """Raises ConfigError."""
    if not text:
        return ()
    try:
        hosts = parse_hosts(text)
    except ValueError as error:
        raise ConfigError(f"--hosts {text}: {error}") from None
    if sum(host.slots for host in hosts) < FEWEST + 1:
        raise ConfigError(f"--hosts {text}: must have slots for {FEWEST + 1} workers, of which one joins and leaves")
    return hosts


def planned(settings: Settings, device: str | None, hosts: Sequence[Host], *, quick: bool) -> ProofPlan:
    """Return what is tried, here or on hosts. Raises ConfigError."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("edl prove trains with PyTorch, which is not installed: pip install 'horovod-edl[torch]'")
    if device not in DEVICES:
        raise ConfigError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    ring = settings.ring if settings.ring in set(RingKind) else RingKind.TORCH.value
    slots = sum(host.slots for host in hosts)
    workers = settings.np if settings.np > 1 else max(FEWEST, slots - 1)
    if hosts and workers >= slots:
        raise ConfigError(
            f"-np {workers}: --hosts has {slots} slots, of which one is for a worker that joins and leaves"
        )
    plan = ProofPlan(workers, ring, "cpu" if hosts else _device(device, workers))
    return msgspec.structs.replace(plan, **QUICK) if quick else plan


def _device(wanted: str, workers: int) -> str:
    """Return cpu, or cuda where each of `workers` has a GPU. Raises ConfigError."""
    if wanted == "cpu":
        return wanted
    import torch

    count = torch.cuda.device_count()
    if wanted == "cuda" and count < workers:
        raise ConfigError(
            f"--device cuda: PyTorch finds {count} GPUs for {workers} workers; give a smaller -np, or --device cpu"
        )
    return "cuda" if count >= workers else "cpu"


def device_there(wanted: str, links: Sequence[HostLink]) -> str:
    """Return cpu, or cuda where each host has a GPU for each of its workers. Raises ConfigError."""
    if wanted == "cpu":
        return wanted
    few = [link for link in links if link.machine is None or len(link.machine.gpus) < link.host.slots]
    if wanted == "cuda" and few:
        found = len(few[0].machine.gpus) if few[0].machine else 0
        raise ConfigError(
            f"--device cuda: PyTorch finds {found} GPUs on {few[0].host.name} for {few[0].host.slots} workers; name "
            "fewer slots in --hosts, or give --device cpu"
        )
    return "cpu" if few else "cuda"


class ProofProgress:
    """Lines for people, each with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        sys.stderr.write(f"edl: {time.monotonic() - self._began:4.0f} s  {line}\n")


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
