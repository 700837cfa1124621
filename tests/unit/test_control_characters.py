"""What others wrote controls no terminal, wherever it is shown."""

from __future__ import annotations

import io
import json
import sys

import pytest

from edl.cli import logs_command, main, tables
from edl.cluster.queue.end_causes import ROOT_LENGTH, EndEvidence, classify
from edl.control_characters import one_line, visible, visible_beside_colours
from edl.errors import EdlError

HARMFUL = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jall is well\x9b2J\x7f\u202e\r"


class Terminal(io.StringIO):
    """Takes what is written to it."""

    def isatty(self) -> bool:
        return True


def is_harmless(text: str) -> bool:
    return not any(one in text for one in "\x1b\x07\x9b\x7f\u202e\r") and "all is well" in text


def test_each_character_that_controls_a_terminal_is_shown() -> None:
    assert visible("a\tb\nc é 漢") == "a\tb\nc é 漢"
    assert visible("\x1b[2J\x9b\u202e\ud800") == r"\u001b[2J\u009b\u202e\ud800"
    assert one_line(" a\n\x1bb ") == r"a \u001bb"


def test_colours_of_a_script_stay_and_nothing_else_of_its_sequences() -> None:
    coloured = "\x1b[1;31mred\x1b[0m 10 %\r20 %\n"
    assert visible_beside_colours(coloured) == coloured
    assert visible_beside_colours("\x1b[2J\x1b]0;title\x07") == r"\u001b[2J\u001b]0;title\u0007"


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_that_is_shown_controls_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, complaints = Terminal() if terminal else io.StringIO(), Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", complaints)
    for act in (
        lambda: tables.say(HARMFUL),
        lambda: tables.table(("job",), [(HARMFUL,)]),
        lambda: tables.complain(HARMFUL),
        lambda: tables.Progress(complaints).show(HARMFUL),
    ):
        shown.truncate(0)
        complaints.truncate(0)
        act()
        told = (shown.getvalue() + complaints.getvalue()).replace("\r\x1b[K", "").replace("\x1b[1m", "")
        assert is_harmless(told.replace("\x1b[0m", "")), ascii(told)


def test_an_event_of_a_job_and_the_end_of_a_command_are_harmless(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ts": 1.0, "kind": "worker_left", "step": 1, "generation": 1, "worker": HARMFUL}
    assert is_harmless(tables.event_line(event))

    def fail(_: object) -> int:
        raise EdlError(HARMFUL)

    monkeypatch.setattr("edl.cli.parse", lambda _: type("Given", (), {"act": staticmethod(fail)}))
    assert main(["status"]) == 1
    assert is_harmless(capsys.readouterr().err)


def test_json_stays_json_and_is_harmless_too(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    tables.say_json({"reason": HARMFUL})
    told = capsysbinary.readouterr().out.decode()
    assert is_harmless(told)
    assert json.loads(told) == {"reason": HARMFUL}


def test_a_log_is_shown_harmless_to_a_terminal_and_as_it_is_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, wanted in ((Terminal(), r"\u001b[2J"), (io.StringIO(), "\x1b[2J")):
        monkeypatch.setattr(sys, "stdout", terminal)
        logs_command._write("\x1b[2J")
        assert terminal.getvalue() == wanted


def test_the_cause_of_an_end_is_short_and_harmless_wherever_it_goes() -> None:
    for known in (
        EndEvidence(code=3, tail=f"hello\n{HARMFUL}\n"),
        EndEvidence(code=1, tail=f"Traceback (most recent call last):\nValueError: {HARMFUL}" + "x" * 9000),
        EndEvidence(refused=f"{HARMFUL}" + "x" * 9000),
        EndEvidence(taken=f"{HARMFUL}" + "x" * 9000),
    ):
        cause = classify(known)
        assert cause is not None and is_harmless(cause.root), cause
        assert len(cause.root) < ROOT_LENGTH + 200
