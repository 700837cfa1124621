"""`edl prove`: try on this machine what edl promises, and write a report."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from edl.cli import tables
from edl.config import Settings, scrubbed
from edl.errors import ConfigError
from edl.proof import proof_report
from edl.proof.proof_run import QUICK, ProofPlan, prove
from edl.protocol.ring_places import RingKind

DEVICES = ("auto", "cpu", "cuda")
DOES_NOT_HOLD = 1
FREE_MB = 200


def act(arguments: argparse.Namespace) -> int:
    settings = Settings.from_given(arguments.given, os.environ)
    plan = planned(settings, arguments.device, quick=arguments.quick)
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
        found = prove(plan, Path(folder), ProofProgress().say)
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


def planned(settings: Settings, device: str | None, *, quick: bool) -> ProofPlan:
    """Return what is tried here. Raises ConfigError."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("edl prove trains with PyTorch, which is not installed: pip install 'horovod-edl[torch]'")
    if device not in DEVICES:
        raise ConfigError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    ring = settings.ring if settings.ring in set(RingKind) else RingKind.TORCH.value
    workers = settings.np if settings.np > 1 else 2
    plan = ProofPlan(workers, ring, _device(device, workers))
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


class ProofProgress:
    """Lines for people, each with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        sys.stderr.write(f"edl: {time.monotonic() - self._began:4.0f} s  {line}\n")


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
