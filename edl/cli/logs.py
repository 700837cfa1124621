"""`edl logs`: what the workers of a job have printed, as their wardens have kept it."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from edl.cli.cluster import home_of
from edl.cli.commands import heed_interrupts
from edl.cli.queue import checked
from edl.errors import EdlError, UsageError
from edl.scheduler.client import ClusterClient, opened
from edl.scheduler.places import ClusterHome

LOOK_S = 0.2
PIECE = 65536
WORKER = re.compile(r"[A-Za-z0-9._-]{1,80}")


def logs(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    job = checked(arguments.job)
    folder = home.job_logs(job)
    if arguments.worker is not None and not WORKER.fullmatch(arguments.worker):
        raise UsageError(f"--worker {arguments.worker!r} is no worker's id: `edl describe {job}` lists them")
    try:
        asyncio.run(_show(home, job, Printed(folder, arguments.worker), follow=arguments.follow))
    except asyncio.CancelledError:
        raise EdlError("interrupted") from None
    return 0


async def _show(home: ClusterHome, job: str, printed: Printed, *, follow: bool) -> None:
    heed_interrupts()
    if not follow and printed.files():
        printed.print()
        return
    async with opened(home) as client:
        await client.job(job)
        over = False
        while not over:
            over = not follow or await _is_over(client, job)
            printed.print()
            if not over:
                await asyncio.sleep(LOOK_S)
    if printed.worker is not None and not printed.files():
        raise UsageError(f"job {job} has no log of a worker {printed.worker}")


async def _is_over(client: ClusterClient, job: str) -> bool:
    found = await client.job(job)
    return found.over and not found.workers


class Printed:
    """The logs of one job's workers, each as far as it was shown. Of several workers each line has its worker's id."""

    def __init__(self, folder: Path, worker: str | None) -> None:
        self.worker = worker
        self._folder = folder
        self._shown: dict[Path, tuple[int, int]] = {}  # inode, and bytes of it

    def files(self) -> list[Path]:
        """In the order in which their workers were made."""
        names = f"{self.worker}.log" if self.worker is not None else "*.log"
        found = {path.with_suffix(".log") if path.suffix == ".1" else path for path in self._folder.glob(names)}
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def print(self) -> None:
        files = self.files()
        for path in files:
            for text in self._news(path):
                if self.worker is None and len(files) > 1:
                    mark = f"[{path.stem}] "
                    text = "".join(f"{mark}{line}" for line in text.splitlines(keepends=True))  # noqa: PLW2901
                sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()

    def _news(self, path: Path) -> list[str]:
        """Whole lines only; a file that was put aside meanwhile is read to its end first."""
        found = []
        old = path.with_name(f"{path.name}.1")
        inode, shown = self._shown.get(path, (0, 0))
        if old.exists() and (not inode or old.stat().st_ino == inode):
            found.append(_read(old, shown if inode else 0))
            inode, shown = 0, 0
        if path.exists():
            now = path.stat().st_ino
            text = _read(path, shown if inode in {0, now} else 0)
            found.append(text)
            begun = shown if inode == now else 0
            self._shown[path] = (now, begun + len(text.encode(errors="surrogateescape")))
        return [text for text in found if text]


def _read(path: Path, begin: int) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="surrogateescape")
