"""Rows of a CSV file, and one line for each error in them: file, row, column and remedy."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from edl.errors import ConfigError

LARGEST = 1e30  # largest number that a trace may have


class TraceRow(msgspec.Struct, frozen=True):
    """A row, as text."""

    path: Path
    number: int  # in the file; the head is 1
    cells: dict[str, str]

    def wrong(self, message: str) -> ConfigError:
        return ConfigError(f"{self.path} row {self.number}: {message}")

    def text(self, column: str) -> str:
        """Return a cell's text. Raises ConfigError if it is empty."""
        found = self.cells[column].strip()
        if not found:
            raise self.wrong(f"{column} is empty: fill it in")
        return found

    def number_in(self, column: str, least: float = 0.0, *, above: bool = False) -> float:
        """Return a number of at least `least`; with `above`, more than that. Raises ConfigError."""
        found = self.text(column)
        must = f"must be a number {'above' if above else 'of at least'} {least:g}"
        try:
            value = float(found)
        except ValueError:
            raise self.wrong(f"{column} {found}: {must}") from None
        if not math.isfinite(value) or value > LARGEST or value < least or (above and value == least):
            raise self.wrong(f"{column} {found}: {must}")
        return value

    def count(self, column: str, least: int = 1) -> int:
        """Return a whole number of at least `least`. Raises ConfigError."""
        value = self.number_in(column, least)
        if value != int(value):
            raise self.wrong(f"{column} {self.text(column)}: must be a whole number")
        return int(value)

    def has(self, column: str) -> bool:
        return bool(self.cells.get(column, "").strip())


def rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    """Yield all rows of a file that has at least these columns. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval=None)
            head = [name.strip() for name in reader.fieldnames or ()]
            for name in columns:
                if name not in head:
                    raise ConfigError(f"{path} row 1: column {name} is missing; it needs {', '.join(columns)}")
            for number, cells in enumerate(reader, start=2):
                yield _row(path, number, dict(zip(head, cells.values(), strict=False)), cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as a CSV file: {error}") from None


def _row(path: Path, number: int, named: dict[str, str], cells: dict[str, str]) -> TraceRow:
    if "" in cells or None in cells.values():
        raise ConfigError(f"{path} row {number}: has {'more' if '' in cells else 'fewer'} cells than the head: mend it")
    return TraceRow(path, number, named)


def head_of(path: Path) -> set[str]:
    """Return the names of a file's columns. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return {name.strip() for name in next(csv.reader(file), [])}
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: name a trace in it, a CSV file") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no trace {path}: name a CSV file, see 'edl simulate --help'") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as a CSV file: {error}") from None
