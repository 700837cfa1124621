"""Debian's chromium over a page: what it shows, what it asks for, and what it complains of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.chrome.options import Options

from benchmarks.page_browser import BrowserMissing, chromium


class Browser:
    """One window. Use it as a context. `detour`: from one port of this machine, in any address, to another."""

    def __init__(
        self,
        width: int,
        *,
        dark: bool = False,
        scripts: bool = True,
        height: int = 1200,
        detour: tuple[int, int] | None = None,
    ) -> None:
        self.width, self.dark = width, dark
        options = Options()
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if detour:
            options.add_argument(f"--host-resolver-rules=MAP 127.0.0.1:{detour[0]} 127.0.0.1:{detour[1]}")
        if not scripts:
            settings = {"profile.managed_default_content_settings.javascript": 2}
            options.add_experimental_option("prefs", settings)
        try:
            self.driver = chromium(options, width, height)
        except BrowserMissing:
            pytest.fail("chromium is missing: source scripts/parts and call bring_what_looks, as scripts/test does")
        self.look(dark=dark)
        self._shape(height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def _shape(self, height: int) -> None:
        shape = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)

    def resize(self, width: int, height: int = 1200) -> None:
        self.width = width
        self._shape(height)

    def look(self, *, dark: bool) -> None:
        """As it does for a reader who likes it so."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def expect_to_fit_dark_and_light(self) -> None:
        """Ends as it began."""
        grounds = []
        for dark in (not self.dark, self.dark):
            self.look(dark=dark)
            grounds.append(self.driver.find_element("css selector", "body").value_of_css_property("background-color"))
            assert self.fits(), (self.width, dark)
        bright, dim = map(brightness, grounds if self.dark else grounds[::-1])
        assert bright > 200
        assert dim < 50

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
        """No reader has to scroll sideways."""
        return bool(self.run("return document.documentElement.scrollWidth <= innerWidth"))


def brightness(colour: str) -> float:
    """Of what CSS says of a colour: 0 to 255."""
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 3
