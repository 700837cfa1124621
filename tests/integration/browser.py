"""Debian's chromium over a page: what it shows, what it asks for, and what it complains of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

QUIET = (
    "--headless=new",
    "--no-sandbox",  # as root, as in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


class Browser:
    """One window. Use it as a context."""

    def __init__(self, width: int, *, dark: bool = False, scripts: bool = True, height: int = 1200) -> None:
        self.width = width
        options = Options()
        options.binary_location = _program("chromium")
        for argument in (*QUIET, f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if not scripts:
            settings = {"profile.managed_default_content_settings.javascript": 2}
            options.add_experimental_option("prefs", settings)
        self.driver = webdriver.Chrome(options=options, service=Service(_program("chromedriver")))
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._shape(height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def _shape(self, height: int) -> None:
        shape = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Of its console, since it was asked last."""
        return [f"{one['level']}: {one['message']}" for one in self.driver.get_log("browser") if one["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """That it has asked for anything, since it was asked last."""
        told = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        sent = [one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in sent if not url.startswith(("data:", "chrome"))}

    def picture(self, path: Path, height: int = 2400) -> None:
        """Of the whole page, as far as that."""
        whole = int(self.run("return document.documentElement.scrollHeight"))
        self._shape(min(whole, height))
        self.driver.save_screenshot(str(path))

    def fits(self) -> bool:
        """Nobody has to scroll sideways."""
        return bool(self.run("return document.documentElement.scrollWidth <= innerWidth"))


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: source scripts/parts and call bring_what_looks, as scripts/test does")
    return found
