"""What a request to leave a host is answered, and how many come for those who leave: from the record alone."""

from __future__ import annotations

import msgspec
import pytest

from edl.core.job.leader_inputs import Refuse
from edl.core.job.leader_machine import new_record
from edl.core.resize import host_migration
from edl.protocol.job_policy import Replacing
from edl.protocol.leader_messages import AskMigrate
from edl.protocol.record import DriverCount, Identity, Limits, Member, Migration, Record, Room, WorkerState, changed

TRAINING = WorkerState.TRAINING


def job(*hosts: str, **changes: object) -> Record:
    """It trains, a worker on each of these: w1, w2, ..."""
    members = tuple(
        Member(Identity(f"w{at}", host, f"ip-{host}", 1, 1), TRAINING, at) for at, host in enumerate(hosts, start=1)
    )
    roster = tuple(member.identity.id for member in members)
    record = msgspec.structs.replace(
        new_record("j", 0.0), generation=1, target=len(hosts), members=members, roster=roster, arrivals=len(hosts)
    )
    return changed(record, **changes)


def ask(record: Record, host: str = "a", *to: Room) -> Migration | Refuse:
    return host_migration.answer(AskMigrate("r", host, to), record)


def refusal(record: Record, host: str = "a", *to: Room) -> str:
    answer = ask(record, host, *to)
    assert isinstance(answer, Refuse)
    return answer.reason


@pytest.mark.parametrize(
    ("record", "to", "says", "retry"),
    [
        (job("b"), (), "no worker of the job is on a: they are on b", False),
        (job("a", "a"), (), "all its workers are on a: say where they are to go by --to HOST:SLOTS", False),
        (job("a", "a"), (Room("b", 1),), "2 workers are to leave a, and b:1 has slots for 1: name more", False),
        (job("a"), (Room("a", 1),), "a is to be left, so its workers cannot go there", False),
        (job("a"), (Room("ip-a", 1),), "a is to be left, so its workers cannot go there", False),
        (job("a", limits=Limits(1, 1)), (Room("b", 1),), "use --max-np 2", False),
        (job("a", driver=DriverCount()), (Room("b", 1),), "horovodrun's driver starts workers", False),
        (job("a", generation=0), (Room("b", 1),), "the job is starting", True),
        (job("a", replacing=Replacing("w1", 1)), (Room("b", 1),), "another worker comes in the place of w1", True),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(
    record: Record, to: tuple[Room, ...], says: str, retry: bool
) -> None:
    answer = ask(record, "a", *to)
    assert isinstance(answer, Refuse)
    assert says in answer.reason
    assert answer.retry is retry


def test_the_host_of_a_coordinator_that_lives_with_its_launcher_cannot_be_left() -> None:
    here = Member(Identity("w1", "a", "127.0.0.1", 1, 1), TRAINING, 1)
    says = refusal(job("a", members=(here,)), "a", Room("b", 1))
    assert "lives and dies with `edl run` on a" in says
    assert "--coordinator HOST:PORT" in says


def test_a_second_migration_waits_for_the_first() -> None:
    begun = ask(job("a", "b"), "a", Room("c", 1))
    assert isinstance(begun, Migration)
    assert "its workers are leaving a just now" in refusal(job("a", "b", migration=begun), "b", Room("c", 1))


def test_without_hosts_the_others_of_the_job_take_them_evenly() -> None:
    begun = ask(job("a", "a", "a", "b", "c"))
    assert isinstance(begun, Migration)
    assert begun.to == (Room("b", 2), Room("c", 1))


def test_machines_of_one_name_are_told_apart_by_their_addresses() -> None:
    members = [Member(Identity(f"w{at}", "vm", f"10.0.0.{at}", 1, 1), TRAINING, at) for at in (1, 2, 3)]
    begun = ask(job("x", "x", "x", members=tuple(members)), "10.0.0.1")
    assert isinstance(begun, Migration)
    assert begun.to == (Room("10.0.0.2", 1),)  # and none for w3: one leaves


def test_newcomers_fill_the_hosts_in_order_and_no_more_than_are_needed() -> None:
    moving = Migration(1, "r", "a", (Room("b", 1), Room("c", 5)), 0.0)
    record = job("a", "a", "a", migration=moving)
    assert host_migration.awaited(record) == (Room("b", 1), Room("c", 2))
    assert host_migration.has_room_for(record, Identity("x", "b", "", 1, 1))
    assert not host_migration.has_room_for(record, Identity("x", "d", "", 1, 1))
    smaller = msgspec.structs.replace(record, target=1)
    assert host_migration.awaited(smaller) == (Room("b", 1),)


def test_none_leaves_before_enough_can_come() -> None:
    come = Member(Identity("n1", "b", "ip-b", 1, 1), WorkerState.READY, 3)
    moving = Migration(1, "r", "a", (Room("b", 2),), 0.0, newcomers=("n1",))
    record = job("a", "a", migration=moving)
    record = msgspec.structs.replace(record, members=(*record.members, come))
    assert not host_migration.outgoing(record, {"w1", "w2", "n1"})
    smaller = msgspec.structs.replace(record, target=1)
    assert host_migration.outgoing(smaller, {"w1", "w2", "n1"}) == {"w1", "w2"}
    assert not host_migration.outgoing(smaller, {"w1", "w2"}), "one that the others do not reach does not count"
