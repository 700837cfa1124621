"""The shared page: what one side writes, the other side reads."""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.core.worker.next_move import NEVER
from edl.errors import ConfigError
from edl.transport.shared_page import SharedPage

WORDS = ("step", "attention_step", "flags")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "page"


@pytest.fixture
def page(path: Path) -> Iterator[SharedPage]:
    page = SharedPage.create(path)
    yield page
    page.close()


def test_a_fresh_page_asks_for_no_attention(page: SharedPage) -> None:
    assert {word: getattr(page, word) for word in WORDS} == {**dict.fromkeys(WORDS, 0), "attention_step": NEVER}


def test_each_word_is_seen_by_the_other_side_and_touches_no_other(page: SharedPage, path: Path) -> None:
    other = SharedPage.open(path)
    page.count().step, page.attention_step, page.flags = 2**40, 2**41, 2**42
    assert [getattr(other, word) for word in WORDS] == [2**40, 2**41, 2**42]
    other.close()


def test_another_process_sees_it_too(page: SharedPage, path: Path) -> None:
    page.attention_step = 41
    program = (
        "import sys; from edl.transport.shared_page import NEVER, SharedPage;"
        "count = SharedPage.open(sys.argv[1]).count();"
        "count.usual_until = NEVER; steps = [count.advance() for _ in range(100)]"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert page.step == 40


def test_the_file_is_for_its_owner_alone(page: SharedPage, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_page_replaces_the_old_one(page: SharedPage, path: Path) -> None:
    page.count().step = 5
    fresh = SharedPage.create(path)
    assert fresh.step == 0
    assert page.step == 5  # a process that still has the old one keeps it
    fresh.close()


def test_the_page_outlives_those_who_use_it(page: SharedPage, path: Path) -> None:
    page.count().step = 5
    page.close()
    page.close()
    again = SharedPage.open(path)
    assert again.step == 5
    again.close()


@pytest.mark.parametrize("content", [b"", b"x" * 4096, b"x" * 5000])
def test_what_is_no_page_is_not_opened(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        SharedPage.open(path)


def test_a_link_is_not_followed(page: SharedPage, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        SharedPage.open(tmp_path / "link")


def test_a_page_of_another_version_is_told_from_ours(page: SharedPage, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")
    with pytest.raises(ConfigError, match="version"):
        SharedPage.open(path)


@pytest.mark.parametrize("statement", ["page.step", "page.attention_step = 5"])
def test_a_word_costs_no_system_call(page: SharedPage, statement: str) -> None:
    """Measured: 0.35 us where an empty statement takes 0.06. The bound is in such units, as machines differ."""
    nothing = min(timeit.repeat("pass", number=2000, repeat=50))
    assert min(timeit.repeat(statement, globals={"page": page}, number=2000, repeat=50)) < 30 * nothing
