"""What a process leaves to Python as it ends: `edl.trainer.exit_paths`."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from edl.trainer.exit_paths import TRITON, spare_the_collector


def test_what_lives_is_left_out_of_the_last_collections_unless_triton_would_call_it_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: told.append("frozen"))
    monkeypatch.delitem(sys.modules, TRITON, raising=False)
    spare_the_collector()
    assert told == ["frozen"]
    monkeypatch.setitem(sys.modules, TRITON, ModuleType(TRITON))
    spare_the_collector()
    assert told == ["frozen"]
