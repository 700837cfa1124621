"""Prometheus, as far as a test needs it: reads all daemons of a job, and keeps that no counter shrinks."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

Values = dict[str, float]


class Scraper:
    """Reads all that file_sd of Prometheus would find, and keeps that no counter of the job shrinks."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "jobs" / "s" / "metrics"
        self.highest: Values = {}

    def targets(self) -> list[str]:
        """HOST:PORT of each daemon."""
        found = []
        for file in self.folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # it has ended
                found.append(str(json.loads(file.read_text())[0]["targets"][0]))
        return found

    def scrape(self) -> Values:
        """Of the daemon that leads; empty: none does just now."""
        found: Values = {}
        for target in self.targets():
            try:
                with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
                    values = self._read(answer.read().decode())
            except (urllib.error.URLError, ConnectionError):  # it has ended, or was killed
                continue
            if any(name.startswith("edl_job_size") for name in values):
                found = values
                self._compare(values)
        return found

    @staticmethod
    def _read(text: str) -> Values:
        families = text_string_to_metric_families(text)
        return {
            one.name + "".join(f",{label}={value}" for label, value in sorted(one.labels.items())): one.value
            for family in families
            for one in family.samples
        }

    def _compare(self, values: Values) -> None:
        counters = {name: value for name, value in values.items() if re.match(r"edl_job_\w+_total", name)}
        for name, value in counters.items():
            assert value >= self.highest.get(name, 0.0) - 1e-6, f"{name} shrinks from {self.highest[name]} to {value}"
        self.highest |= counters
