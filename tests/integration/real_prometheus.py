"""Debian's Prometheus over the jobs of a test: what it has scraped, asked in its own language."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from edl.coordination.child_server import free_port

SETUP = Path(__file__).parents[2] / ".setup"
EACH_S = 0.5  # from one scrape to the next


class RealPrometheus:
    """A server that finds the daemons of job s as docs/metrics.md says. Use it as a context."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._port = free_port()
        files = [str(home / "jobs" / "s" / "metrics" / "*.json")]
        jobs = [
            {
                "job_name": "edl",
                "honor_labels": True,
                "scrape_interval": f"{EACH_S * 1000:.0f}ms",
                "scrape_timeout": f"{EACH_S * 1000:.0f}ms",
                "file_sd_configs": [{"files": files, "refresh_interval": "1s"}],
            }
        ]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))  # which is YAML, too

    def __enter__(self) -> RealPrometheus:
        program = shutil.which("prometheus") or str(SETUP / "prometheus")
        if not Path(program).exists():
            pytest.fail("prometheus is missing: source scripts/parts and call bring_what_looks, as scripts/soak does")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={self._folder}/prometheus.yml",
                    f"--storage.tsdb.path={self._folder}/data",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def ask(self, query: str) -> list[dict[str, Any]] | None:
        """What an expression is just now; None: it does not answer yet."""
        assert self._process.poll() is None, (self._folder / "log").read_text()
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return None
        return found

    def resets(self) -> dict[str, int]:
        """How often each counter of the job has shrunk, whichever daemon told it."""
        named = self.ask('count by (__name__) (last_over_time({__name__=~"edl_job_.*_total"}[1h]))')
        names = [one["metric"]["__name__"] for one in named or ()]
        found = {}
        for name in names:
            series = self.ask(f"resets(max without (instance) ({name})[1h:{EACH_S * 1000:.0f}ms])")
            found[name] = max(int(one["value"][1]) for one in series or ())
        return found
