"""Each transcript says what the machine of a job does: replayed, it does the same.

A transcript is read by people, each time that it changes, or a rule by which it does. `pytest tests/transcripts
--rewrite-transcripts` writes what follows anew; the difference is part of the change, to be looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_player import Player
from scenario_text import BadTranscript, command, read, write

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
LEAST = 25


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_machine_does_what_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    blocks, player = read(path.read_text()), Player()
    for block in blocks:
        if block.lines:
            block.follows = player.play(block, path.name)
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(write(blocks))
    assert path.read_text() == write(blocks)


def test_there_are_many_and_each_begins_with_what_it_shows() -> None:
    assert len(TRANSCRIPTS) >= LEAST
    for path in TRANSCRIPTS:
        assert path.read_text().startswith("# "), path.name


def test_each_has_a_number_of_its_own_and_contributing_says_how_many_there_are() -> None:
    assert sorted(int(path.name.split("-")[0]) for path in TRANSCRIPTS) == list(range(1, len(TRANSCRIPTS) + 1))
    page = Path(__file__).parents[2] / "CONTRIBUTING.md"
    assert f"`tests/transcripts/` has {len(TRANSCRIPTS)} " in page.read_text()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("dance w0", "there is no command dance"),
        ("register w0 slowly", "register does not know slowly"),
        ("report w0 asleep", "asleep"),
        ("meet", "no worker is called"),
        ("vanish", "needs 1 words"),
    ],
)
def test_a_wrong_command_is_told_with_its_place(line: str, what: str) -> None:
    block, *_ = read(f"# x\n\n{line}\n----\n")
    with pytest.raises(BadTranscript, match=f"x.txt:3: .*{what}"):
        Player().play(block, "x.txt")


def test_what_is_read_is_written_as_it_was() -> None:
    text = "# What it shows.\n\nregister w0 host=a\n----\n(nothing follows)\n\n# The end.\n"
    assert write(read(text)) == text
    assert command("report w0,w1 training step=3", "x:1").options == {"step": "3"}
