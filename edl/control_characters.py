"""Text that others wrote, made fit for a terminal.

Owns: which characters control a terminal, and what is shown in their place. Does not own: where text is printed.
"""

from __future__ import annotations

import re
from typing import Final

# Of a terminal: C0 but for the line feed and the tab, DEL, C1. Of the order of letters: marks by which a line reads
# otherwise than it is written. Halves of letters, which no UTF-8 can hold.
_CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_HARMFUL: Final = re.compile(_CONTROL)
_HARMFUL_BESIDE_COLOURS: Final = re.compile(rf"(\x1b\[[0-9;:]{{0,32}}m|\r)|{_CONTROL}")


def visible(text: str) -> str:
    r"""Show each character that controls a terminal as JSON writes it, such as `\u001b`; lines and tabs stay."""
    return _HARMFUL.sub(_written, text)


def one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def visible_beside_colours(text: str) -> str:
    """Show what a script prints in the same way, but its colours stay, and a line may be written over itself."""
    return _HARMFUL_BESIDE_COLOURS.sub(lambda found: found[1] or _written(found), text)


def _written(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
