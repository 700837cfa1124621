"""The lines that are changed in scripts of other projects."""

from __future__ import annotations

import pytest

from tests.soaks.public_scripts import changed
from tests.soaks.public_scripts_lines import SCRIPTS
from tests.soaks.script_job import difference


def test_each_line_that_is_to_change_must_be_there() -> None:
    assert changed("a\nb\n", [("a\n", "c\n")]) == "c\nb\n"
    with pytest.raises(ValueError, match="the script has no 'x'"):
        changed("a\nb\n", [("x", "c")])


def test_what_was_changed_is_shown() -> None:
    assert difference("a\nb\n", "a\nc\n") == ["-b", "+c"]


def test_each_script_has_a_name_of_its_own_and_imports_edl() -> None:
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert all(any("edl" in new for _, new in script.lines) for script in SCRIPTS)
