"""Views of a job for the caller of `edl.run`: the workers' lines, its progress, and its page's link.

In a terminal the last line says where the job stands, in a notebook an output of the cell that is changed; elsewhere
there are the lines alone. Owns: these views. Does not own: what is shown (`edl.launch.function_run`).
"""

from __future__ import annotations

import html
import shutil
import sys
from importlib import import_module
from typing import Any, Protocol

from edl.protocol.record import Status

CLEAR = "\r\x1b[K"


class RunView(Protocol):
    lives: bool  # it shows what changes

    def show(self, stream: str, line: str) -> None:
        """Show a line of the job's `stdout` or `stderr`."""

    def progress(self, status: Status) -> None: ...

    def link(self, link: str) -> None:
        """Show the link of the job's page."""

    def end(self) -> None: ...


def fitting_view() -> RunView:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookView()
    return TerminalView() if sys.stderr.isatty() else PlainView()


def words_of(status: Status) -> str:
    size = str(status.size) if status.size == status.target else f"{status.size} of {status.target}"
    parts = [f"job {status.job}: {status.state.value}", f"{size} workers", f"step {status.base + status.step:,}"]
    data, spec = status.data, status.spec
    if data is not None and data.total:
        of = "" if spec is None or spec.open_ended else f" of {spec.epochs}"
        parts.append(f"epoch {data.epoch + 1}{of}, {data.trained / data.total:.0%} of it")
    return ", ".join(parts)


class PlainView:
    """Lines only, for a pipe or a file."""

    lives = False

    def show(self, stream: str, line: str) -> None:
        print(line, end="", file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)

    def progress(self, status: Status) -> None:
        pass

    def link(self, link: str) -> None:
        print(f"edl: the job's page: {link}", file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


class TerminalView(PlainView):
    """A terminal, whose last line shows the progress."""

    lives = True

    def __init__(self) -> None:
        self._last = ""

    def show(self, stream: str, line: str) -> None:
        self._write(CLEAR if self._last else "")
        super().show(stream, line)
        self._write(self._last)

    def progress(self, status: Status) -> None:
        width = shutil.get_terminal_size().columns  # a longer line could not be taken back
        if (words := words_of(status)[: width - 1]) != self._last:
            self._last = words
            self._write(CLEAR + words)

    def link(self, link: str) -> None:
        self.show("stderr", f"edl: the job's page: {link}\n")

    def end(self) -> None:
        self._write(CLEAR if self._last else "")
        self._last = ""

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)


class NotebookView(PlainView):
    """A notebook, where an output above the workers' lines shows the progress."""

    lives = True

    def __init__(self) -> None:
        self._words = self._link = ""
        self._output: Any = None

    def progress(self, status: Status) -> None:
        self._change(words_of(status), self._link)

    def link(self, link: str) -> None:
        self._change(self._words, link)

    def end(self) -> None:
        self._change(self._words, "")  # the page is gone with the job

    def _change(self, words: str, link: str) -> None:
        if (words, link) == (self._words, self._link):
            return
        self._words, self._link = words, link
        plain = f"{words}; its page: {link}" if link else words
        anchor = f' <a href="{html.escape(link)}" target="_blank">its page</a>' if link else ""
        shown = {"text/plain": plain, "text/html": f"<pre>{html.escape(words)}{anchor}</pre>"}
        if self._output is None:
            self._output = import_module("IPython.display").display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)
