"""Values as YAML, as far as manifests need it. Texts, of ASCII, are quoted as JSON quotes them, which YAML reads alike.

Owns: this form. It is written here so that printing manifests needs no other package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9./-]{3,}")


def as_yaml(documents: Iterable[Any]) -> str:
    return "---\n".join("\n".join(_lines(one)) + "\n" for one in documents)


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, one in value.items() for line in _under(f"{_key(key)}:", one)]
    if isinstance(value, list) and value:
        return [line for one in value for line in _item(one)]
    return [json.dumps(value, ensure_ascii=False)]


def _under(head: str, value: Any) -> list[str]:
    if isinstance(value, str) and "\n" in value.rstrip("\n") and value.endswith("\n") and not value.startswith(" "):
        return [f"{head} |", *(f"  {line}" if line else "" for line in value.split("\n")[:-1])]
    if isinstance(value, dict | list) and value:
        return [head, *(f"  {line}" for line in _lines(value))]
    return [f"{head} {_lines(value)[0]}"]


def _item(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _key(key: str) -> str:
    """YAML takes a few plain words, such as `no`, for something else."""
    return key if PLAIN.fullmatch(key) and key.lower() not in {"true", "false", "null"} else json.dumps(key)
