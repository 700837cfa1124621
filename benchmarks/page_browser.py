"""One that looks at a job's page in Debian's chromium, and when each event was in the document that it shows."""

from __future__ import annotations

import shutil
from types import TracebackType

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
WATCH = """window.came = {};
new MutationObserver((changes) => {
  const now = Date.now();
  for (const change of changes) for (const row of change.addedNodes) window.came[row.id.slice(1)] ??= now;
}).observe(document.getElementById("story"), {childList: true});"""


class BrowserMissing(Exception):
    """Or its driver."""


class PageBrowser:
    """A context. `heard`: by number, when the page had it, of those that came while it was open."""

    def __init__(self, link: str) -> None:
        self._driver = chromium(Options(), 1280, 1200)
        self._driver.get(link)
        self._driver.execute_script(WATCH)

    def __enter__(self) -> PageBrowser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.quit()

    @property
    def looks(self) -> bool:
        """It is told as things happen."""
        return bool(self._driver.execute_script("return document.getElementById('link')?.textContent === 'live'"))

    @property
    def heard(self) -> dict[int, float]:
        found: dict[str, int] = self._driver.execute_script("return window.came")
        return {int(number): at_ms / 1000 for number, at_ms in found.items()}


def chromium(options: Options, width: int, height: int) -> webdriver.Chrome:
    """Without a screen. Raises BrowserMissing."""
    options.binary_location = _program("chromium")
    for argument in (*QUIET, f"--window-size={width},{height}"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(_program("chromedriver")))


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BrowserMissing(f"{name} is missing: apt-get install chromium chromium-driver")
    return found
