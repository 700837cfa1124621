"""What may be changed in a record is what is in it, with the same types."""

from __future__ import annotations

from typing import get_type_hints

from edl.core.job.leader_state import Changes
from edl.protocol.record import Record

KEPT = {"job", "version", "started"}  # said once, or changed with every other change


def test_what_may_change_is_all_of_the_record_but_what_is_said_once() -> None:
    of_the_record = {name: kind for name, kind in get_type_hints(Record).items() if name not in KEPT}
    assert get_type_hints(Changes) == of_the_record
