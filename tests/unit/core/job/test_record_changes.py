"""What may be changed in a record is what is in it, with the same types."""

from __future__ import annotations

from typing import get_type_hints

from edl.core.job.leader_state import Changes
from edl.protocol.record import PART_OF, Record

KEPT = {"job", "version", "started"}  # said once, or changed with every other change


def test_what_may_change_is_all_of_the_record_but_what_is_said_once() -> None:
    hints, parts = get_type_hints(Record), set(PART_OF.values())
    of_the_record = {name: kind for name, kind in hints.items() if name not in KEPT and name not in parts}
    for part in parts:
        of_the_record |= get_type_hints(hints[part])
    assert get_type_hints(Changes) == of_the_record
