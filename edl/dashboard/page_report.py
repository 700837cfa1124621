"""Pages as one file, which loads nothing else: the page of a job, made from the job's record, and others' frame."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

from edl.dashboard import page_feed, page_html
from edl.dashboard.page_feed import Feed
from edl.dashboard.page_view import REPORT_ROWS

SHIPPED: Final = Path(__file__).with_name("shipped")


def report(feed: Feed) -> str:
    """Make the page. Its policy allows the two scripts and styles in it, by their digests, and no loading."""
    shown = page_feed.view(feed), page_feed.newest(feed, REPORT_ROWS), page_feed.charts(feed)
    styles = [_shipped(name) for name in ("uPlot.min.css", "page.css")]
    scripts = [_shipped(name) for name in ("uPlot.iife.min.js", "page.js")]
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digests(styles)}; script-src {_digests(scripts)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">'
    head += "".join(f"<style>{style}</style>" for style in styles)
    body = page_html.page(*shown, head, live=False)
    tail = "".join(f"<script>{script}</script>" for script in scripts)
    return body.replace("</body>", f"{tail}</body>")


def alone_in_file(title: str, body: str) -> str:
    """Make a file of `body`, which runs no script. `title` and `body` are HTML."""
    style = _shipped("page.css")
    policy = f"default-src 'none'; img-src data:; style-src {_digests([style])}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,"><style>{style}</style></head>
{body}"""


def _shipped(name: str) -> str:
    return (SHIPPED / name).read_text(encoding="utf-8")


def _digests(texts: list[str]) -> str:
    found = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in found)
