"""The lines that are changed in scripts of other projects."""

from __future__ import annotations

import pytest

from tests.soaks.public_scripts import changed
from tests.soaks.public_scripts_lines import SCRIPTS
from tests.soaks.script_job import difference
from tests.soaks.unchanged_scripts import UNCHANGED


def test_each_line_that_is_to_change_must_be_there() -> None:
    assert changed("a\nb\n", [("a\n", "c\n")]) == "c\nb\n"
    with pytest.raises(ValueError, match="the script has no 'x'"):
        changed("a\nb\n", [("x", "c")])


def test_what_was_changed_is_shown() -> None:
    assert difference("a\nb\n", "a\nc\n") == ["-b", "+c"]


def test_an_unchanged_script_is_unchanged_and_says_what_it_has() -> None:
    assert len({script.name for script in UNCHANGED}) == len(UNCHANGED) >= 20
    assert all(script.is_unchanged and not script.here and script.has for script in UNCHANGED)
    assert all(script.path.startswith(script.room) for script in UNCHANGED)
    assert not any(script.is_unchanged for script in SCRIPTS)


def test_each_script_has_a_name_of_its_own_and_imports_edl() -> None:
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert all(any("edl" in new for _, new in script.lines) for script in SCRIPTS)
