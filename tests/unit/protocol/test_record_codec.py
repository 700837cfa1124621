"""The record as bytes: readable while it is small, and small enough for a node when it is not."""

from __future__ import annotations

import msgspec
import pytest

from edl.coordination.store import MAX_VALUE_BYTES
from edl.core.data.ledgers import new_ledger
from edl.core.job.leader_machine import new_record
from edl.protocol.data_nouns import DataSpec
from edl.protocol.record import (
    PART_OF,
    FailedBy,
    Identity,
    Member,
    Plan,
    Record,
    WorkerState,
    changed,
    decode_record,
    encode_record,
)


def record(workers: int, plans: int = 0) -> Record:
    names = tuple(f"w{number:08x}" for number in range(workers))
    ledger = new_ledger(DataSpec(10**9, 3, 32, shuffle=True), names)
    ledger.grant(60)
    ledger.commit(30)
    ledger.grant(90)
    members = tuple(
        Member(Identity(name, f"host-{i // 8}", f"10.0.0.{i // 8}", 7919 * i, 7919 * i + 1), WorkerState.TRAINING, i)
        for i, name in enumerate(names, 1)
    )
    dropped = tuple(Plan(i, names, 40 + i, ledger.snapshot()) for i in range(plans))
    return msgspec.structs.replace(
        new_record("j", 1.7e9), members=members, roster=names, ledger=ledger.snapshot(), superseded=dropped
    )


def test_a_small_record_is_json_that_people_can_read():
    value = encode_record(record(4))
    assert msgspec.json.decode(value)["members"][0]["identity"]["id"] == "w00000000"
    assert decode_record(value) == record(4)


def test_a_thousand_workers_with_plans_that_were_dropped_fit_into_a_node():
    large = record(1000, plans=10)
    value = encode_record(large)
    assert len(msgspec.json.encode(large)) > MAX_VALUE_BYTES > 2 * len(value)
    assert decode_record(value) == large


def test_what_is_no_record_is_refused():
    with pytest.raises(msgspec.MsgspecError):
        decode_record(b"{}")


def test_a_record_of_an_earlier_version_whose_fields_were_in_no_parts_is_read():
    written = changed(record(4), saves=3, failed_by=FailedBy.REFUSAL, shares={"w00000001": 0.5})
    flat = msgspec.json.decode(encode_record(written))
    for part in set(PART_OF.values()):
        flat |= flat.pop(part)
    assert decode_record(msgspec.json.encode(flat)) == written
