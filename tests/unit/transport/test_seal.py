"""Bounds of the envelope and of what is remembered of senders."""

from __future__ import annotations

import pytest

from edl.errors import ConfigError
from edl.transport.call_errors import Reason, Refusals, Refused, Unauthentic
from edl.transport.seal import MAX_BYTES, VERSION, Request, Seal
from edl.transport.service import ReplayGuard

SEAL = Seal(b"a secret of the job")
REQUEST = Request("job", 1, "10.0.0.1:4", "w1", b"boot", 3, b"body")


def test_a_short_secret_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="15 bytes"):
        Seal(b"fifteen letters"[:15])


def test_the_version_is_told_before_the_seal_is_looked_at() -> None:
    wire = SEAL.seal_request(REQUEST)
    with pytest.raises(Refused) as caught:
        SEAL.open_request(bytes([VERSION + 1]) + wire[1:])
    assert caught.value.reason is Reason.VERSION


def test_too_many_bytes_are_refused_before_anything_is_computed() -> None:
    with pytest.raises(Refused) as caught:
        SEAL.open_request(bytes(MAX_BYTES + 1))
    assert caught.value.reason is Reason.OVERSIZED


def test_a_message_without_room_for_a_seal_is_unauthentic() -> None:
    with pytest.raises(Unauthentic, match="no seal"):
        SEAL.open_request(b"\x01")


def test_a_huge_number_costs_no_memory() -> None:
    guard = ReplayGuard(window=4)
    assert guard.admit(b"boot", 2**62)
    assert not guard.admit(b"boot", 2**62)
    assert guard.admit(b"boot", 2**62 - 3)
    assert not guard.admit(b"boot", 2**62 - 4)


def test_the_sender_that_was_silent_longest_is_forgotten_first() -> None:
    guard = ReplayGuard(boots=2)
    assert guard.admit(b"a", 1)
    assert guard.admit(b"b", 1)
    assert guard.admit(b"a", 2)
    assert guard.admit(b"c", 1)  # b goes
    assert not guard.admit(b"a", 2)
    assert guard.admit(b"b", 1)


def test_refusals_are_counted_by_reason() -> None:
    refusals = Refusals()
    refusals.count(Reason.TERM)
    refusals.count(Reason.TERM)
    refusals.count(Reason.JOB)
    assert refusals.snapshot() == {"term": 2, "job": 1}
