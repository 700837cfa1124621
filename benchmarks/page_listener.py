"""One that looks at a job's page: what a browser's script does, without a browser, and when it heard of each event."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from contextlib import closing
from http.cookiejar import CookieJar
from types import TracebackType
from urllib.parse import urlsplit

PATIENCE_S = 30.0


class PageListener:
    """A context: it listens until it is left, or the page tells of the job's end. `heard`: by number, when."""

    def __init__(self, link: str) -> None:
        self._address = urlsplit(link).netloc
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        with opener.open(link, timeout=PATIENCE_S) as page:
            self._place = urlsplit(page.url).path
            self.size = len(page.read())
        self._cookie = "; ".join(f"{one.name}={one.value}" for one in jar)
        self.heard: dict[int, float] = {}
        self.looks = 0
        self.times = 0  # that it connected
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PageListener:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._left.is_set():
            try:
                if self._listen():
                    return
            except (OSError, http.client.HTTPException):  # the page is gone, or its connection broke off
                self._left.wait(0.2)

    def _listen(self) -> bool:
        """Until the connection ends. True: the job is over."""
        with closing(http.client.HTTPConnection(self._address, timeout=PATIENCE_S)) as connection:
            after = max(self.heard, default=0)
            connection.request("GET", f"{self._place}events?after={after}", headers={"Cookie": self._cookie})
            answer = connection.getresponse()
            self.times += answer.status == 200
            kind = ""
            while not self._left.is_set() and (line := answer.readline()):
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif line.startswith(b"data: ") and self._take(kind, json.loads(line[6:])):
                    return True
        return False

    def _take(self, kind: str, told: dict[str, object]) -> bool:
        if kind == "happened":
            number = told["number"]
            assert isinstance(number, int)
            self.heard.setdefault(number, time.time())
            return False
        self.looks += 1
        return bool(told["over"])
