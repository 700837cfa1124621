"""The queue in the coordinator: what is submitted is durable, and only who leads may change it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from edl.cluster.queue.end_causes import TAIL_BYTES, Domain, EndCause, EndEvidence
from edl.cluster.queue.job_lifecycle import MOST_EXITS
from edl.cluster.queue.queue_entries import (
    DeviceHeld,
    JobEntry,
    JobPhase,
    NodeReport,
    QueueEvent,
    Submission,
    WorkerEntry,
    WorkerExit,
    WorkerSeen,
    orders_of,
    within,
)
from edl.cluster.queue.queue_ownership import AgentHere, QueueOwner
from edl.cluster.queue.queue_state import KEPT_EVENTS, KEPT_HELD, KEPT_REASON
from edl.cluster.queue.scheduler_inputs import Resolved
from edl.cluster.queue.submission import ENTRY_BYTES, ENVIRON_BYTES, PATH_BYTES, WORKERS
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import MAX_VALUE_BYTES, VersionConflict
from edl.errors import ConfigError, EdlError, Fenced, UsageError
from edl.host.host_processes import process_start_time
from edl.scheduler import queue_store
from edl.scheduler.cluster_home import NodeGiven
from edl.scheduler.cluster_start import MOST_SLOTS, check_slots
from edl.scheduler.environ_files import EnvironFiles
from edl.scheduler.queue_store import JOBS, QueueRefused, QueueStore

FENCE = "/fence"


def asked(name: str, at: float = 1.0) -> Submission:
    return Submission(name, ("train",), "/", "ann", at)


async def queue_of(server: MemoryServer, environs: EnvironFiles | None = None) -> QueueStore:
    queue = QueueStore(server.connect(), environs)
    await queue.prepare()
    return queue


async def led(server: MemoryServer) -> QueueStore:
    queue = await queue_of(server)
    await queue.store.create(FENCE)
    return queue


async def test_a_submission_is_durable_without_any_scheduler(tmp_path: Path) -> None:
    server, environs = MemoryServer(), EnvironFiles(tmp_path)
    owner = await queue_of(server, environs)
    await owner.submit(asked("a"), {"X": "1"})
    await owner.store.close()
    other = await queue_of(server, EnvironFiles(tmp_path))
    [job] = await other.jobs()
    assert (job.asked, job.phase, other.environ(job)) == (asked("a"), JobPhase.QUEUED, {"X": "1"})


async def test_a_name_is_given_once_and_the_other_submissions_variables_are_not_kept(tmp_path: Path) -> None:
    environs = EnvironFiles(tmp_path)
    queue = await queue_of(MemoryServer(), environs)
    await queue.submit(asked("a"), {"X": "1"})
    with pytest.raises(UsageError, match="there is a job a already"):
        await queue.submit(asked("a"), {"X": "2"})
    [job] = await queue.jobs()
    assert environs.names() == {job.environ}
    assert queue.environ(job) == {"X": "1"}


async def test_an_environment_without_bound_is_refused(tmp_path: Path) -> None:
    environs = EnvironFiles(tmp_path)
    queue = await queue_of(MemoryServer(), environs)
    with pytest.raises(UsageError, match="unset some variables"):
        await queue.submit(asked("a"), {"X": "y" * ENVIRON_BYTES})
    assert (await queue.names(), environs.names()) == ((), frozenset())


async def test_who_has_no_folder_for_variables_submits_no_job_with_some() -> None:
    queue = await queue_of(MemoryServer())
    with pytest.raises(UsageError, match="no folder for the job's variables"):
        await queue.submit(asked("a"), {"X": "1"})


async def test_the_coordinator_holds_nothing_of_the_variables(tmp_path: Path) -> None:
    queue = await queue_of(MemoryServer(), EnvironFiles(tmp_path))
    await queue.submit(asked("a"), {"PASSWORD": "hush" * 90_000})
    node = await queue.store.read(f"{JOBS}/a")
    assert node is not None and b"hush" not in node.value and len(node.value) < 1000


async def test_a_job_without_the_file_of_its_variables_is_not_started_with_none(tmp_path: Path) -> None:
    queue = await queue_of(MemoryServer(), EnvironFiles(tmp_path))
    await queue.submit(asked("a"), {"X": "1"})
    [job] = await queue.jobs()
    with pytest.raises(EdlError, match="submitted by another version of edl: submit it again"):
        queue.environ(msgspec.structs.replace(job, environ=""))


async def test_variables_that_an_earlier_edl_kept_in_the_coordinator_move_into_files(tmp_path: Path) -> None:
    server, environs = MemoryServer(), EnvironFiles(tmp_path)
    queue = QueueStore((await led(server)).store, environs)
    for name in ("waits", "over"):
        await QueueStore(queue.store).submit(asked(name), {})
    for name in ("waits", "over", "forgotten"):
        await queue.store.create(f"{queue_store.OLD_ENVIRONS}/{name}", b'{"PASSWORD": "hush"}')
    jobs = {job.name: job for job in await queue.jobs()}
    over = msgspec.structs.replace(jobs["over"], phase=JobPhase.CANCELLED)
    await queue.keep(Resolved({"over": over}), jobs, (), FENCE)
    found = {job.name: job for job in await queue.adopt_environs(await queue.jobs(), FENCE)}
    assert await queue.store.children(queue_store.OLD_ENVIRONS) == ()
    assert environs.names() == {found["waits"].environ} and found["over"].environ == ""
    assert queue.environ(found["waits"]) == {"PASSWORD": "hush"}
    assert {job.name: job for job in await queue.jobs()} == found
    await queue.keep(Resolved({"waits": found["waits"]}), found, (), FENCE)  # it knows the version
    assert await queue.adopt_environs([], FENCE) == []


async def test_who_leads_no_more_changes_nothing() -> None:
    server = MemoryServer()
    queue = await led(server)
    await queue.submit(asked("a"), {})
    [job] = await queue.jobs()
    await queue.store.delete(FENCE)
    over = msgspec.structs.replace(job, phase=JobPhase.CANCELLED)
    with pytest.raises(Fenced):
        await queue.keep(Resolved({"a": over}), {"a": over}, ("n",), FENCE)
    assert await (await queue_of(server)).jobs() == [job]


async def test_a_write_on_what_another_has_written_is_refused() -> None:
    server = MemoryServer()
    queue, other = await led(server), await queue_of(server)
    await queue.submit(asked("a"), {})
    [job] = await queue.jobs()
    await other.jobs()
    await queue.keep(Resolved({"a": job}), {"a": job}, (), FENCE)
    with pytest.raises(VersionConflict):
        await other.keep(Resolved({"a": job}), {"a": job}, (), FENCE)


async def test_orders_go_with_the_decision_and_only_where_they_change() -> None:
    queue = await led(MemoryServer())
    await queue.submit(asked("a"), {})
    [job] = await queue.jobs()
    worker = WorkerEntry("a-1", 1, "n", 0, 1, 0.0, 0.0)
    job = msgspec.structs.replace(job, workers=(worker,), ready=True, phase=JobPhase.STARTING)
    await queue.keep(Resolved({"a": job}), {"a": job}, ("n", "m"), FENCE)
    orders = await queue.orders("n")
    assert orders is not None
    assert [(order.id, order.device) for order in orders] == [("a-1", 0)]
    assert await queue.orders("m") == ()
    before = await queue.store.read(f"{queue_store.ORDERS}/n")
    await queue.keep(Resolved({"a": job}), {"a": job}, ("n", "m"), FENCE)
    assert await queue.store.read(f"{queue_store.ORDERS}/n") == before


@pytest.mark.parametrize(("jobs", "at_once"), [(30, 2000), (100, queue_store.AT_ONCE_BYTES)])
async def test_many_changes_at_once_are_cut_into_what_the_coordinator_takes(
    monkeypatch: pytest.MonkeyPatch, jobs: int, at_once: int
) -> None:
    """Bytes, and operations."""
    monkeypatch.setattr(queue_store, "AT_ONCE_BYTES", at_once)
    queue = await led(MemoryServer())
    for number in range(jobs):
        await queue.submit(asked(f"j{number}", number), {})
    seen = {job.name: msgspec.structs.replace(job, reason="seen") for job in await queue.jobs()}
    await queue.keep(Resolved(seen), seen, (), FENCE)
    assert {job.reason for job in await queue.jobs()} == {"seen"}


async def test_a_node_is_forgotten_once_nothing_of_it_is_on_record() -> None:
    queue = await led(MemoryServer())
    await queue.tell(NodeReport("old", (0,)))
    await queue.tell(NodeReport("new", (0,)))
    worker = WorkerEntry("a-1", 1, "old", 0, 1, 0.0, 0.0)
    job = JobEntry(asked("a"), workers=(worker,))
    await queue.keep(Resolved({"a": job}), {"a": job}, (), FENCE)
    with pytest.raises(ConfigError, match="node old still has worker a-1"):
        await queue.keep_nodes({"new": (0,)})
    free = msgspec.structs.replace(job, workers=())
    await queue.keep(Resolved({"a": free}), {"a": free}, (), FENCE)
    await queue.keep_nodes({"new": (0,)})
    assert [report.node for report in await queue.reports()] == ["new"]


OWNER, OTHERS = QueueOwner("1", "/home/ann", "h1"), QueueOwner("2", "/home/bob", "h2")
HERE = AgentHere("h1", os.getpid(), process_start_time(os.getpid()) or 0, "space")


async def test_an_agent_is_there_as_long_as_its_session() -> None:
    server = MemoryServer()
    queue = await queue_of(server)
    assert await queue.appear("n", HERE, OWNER, instead=False)
    assert await queue.appear("n", HERE, OWNER, instead=False)
    assert await queue.agents() == ("n",)
    server.expire(queue.store.session)
    assert await (await queue_of(server)).agents() == ()
    assert await queue.appear("n", HERE, OWNER, instead=False)
    assert await queue.agents() == ("n",)


@pytest.mark.parametrize(
    ("other", "instead", "appears"),
    [
        (msgspec.structs.replace(HERE, pid=1, started=process_start_time(1) or 0), False, False),  # it lives
        (msgspec.structs.replace(HERE, pid=1, started=7), False, True),  # it has ended, and its session has not yet
        (msgspec.structs.replace(HERE, space="of another machine"), False, False),
        (msgspec.structs.replace(HERE, space="of another machine"), True, True),  # it does not act any more
    ],
)
async def test_of_two_agents_of_a_node_one_acts(other: AgentHere, *, instead: bool, appears: bool) -> None:
    server = MemoryServer()
    first, second = await queue_of(server), await queue_of(server)
    assert await first.appear("n", other, OWNER, instead=False)
    assert await second.appear("n", HERE, OWNER, instead=instead) is appears
    server.expire(first.store.session)
    assert await second.appear("n", HERE, OWNER, instead=False)


async def test_a_queue_is_one_clusters_while_it_has_a_process_or_a_worker() -> None:
    server = MemoryServer()
    ours, theirs = await led(server), await queue_of(server)
    assert await ours.appear("n", HERE, OWNER, instead=False)
    await ours.own(OWNER)
    with pytest.raises(QueueRefused, match="the cluster of EDL_HOME=/home/ann on h1: give this one a place"):
        await theirs.own(OTHERS, take=True)
    with pytest.raises(QueueRefused):
        await theirs.appear("n-2", HERE, OTHERS, instead=True)
    server.expire(ours.store.session)
    job = JobEntry(asked("a"), workers=(WorkerEntry("a-1", 1, "n", 0, 1, 0.0, 0.0),))
    await ours.keep(Resolved({"a": job}), {"a": job}, (), FENCE)
    with pytest.raises(QueueRefused):  # its agent may only be paused
        await theirs.own(OTHERS, take=True)
    free = msgspec.structs.replace(job, workers=())
    await ours.keep(Resolved({"a": free}), {"a": free}, (), FENCE)
    await theirs.own(OTHERS, take=True)
    with pytest.raises(QueueRefused):  # it goes on after its pause
        await ours.appear("n", HERE, OWNER, instead=False)
    assert await ours.agents() == ()


async def test_a_queue_whose_jobs_variables_lie_in_another_home_is_not_taken(tmp_path: Path) -> None:
    server, files = MemoryServer(), [EnvironFiles(tmp_path / name) for name in ("ours", "theirs")]
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = [await queue_of(server, found) for found in files]
    await ours.own(OWNER)
    await ours.submit(asked("a"), {"X": "1"})
    with pytest.raises(QueueRefused, match="or cancel that one's jobs"):
        await theirs.own(OTHERS, take=True)
    await QueueStore(server.connect(), files[0]).own(OTHERS, take=True)  # another secret in the same home
    await server.connect().delete(f"{JOBS}/a")
    await theirs.own(OWNER, take=True)


async def test_who_does_not_own_a_queue_neither_reads_nor_changes_it(tmp_path: Path) -> None:
    queue = await queue_of(MemoryServer())
    await queue.check_owner(OTHERS)  # it is nobody's
    await queue.own(OWNER)
    await queue.check_owner(OWNER)
    with pytest.raises(QueueRefused, match="the queue of the cluster of EDL_HOME=/home/ann on h1"):
        await queue.check_owner(OTHERS)


async def test_a_device_that_a_worker_holds_is_not_given_on_under_another_nodes_name() -> None:
    queue = await led(MemoryServer())
    job = JobEntry(asked("a"), workers=(WorkerEntry("a-1", 1, "n", 5, 1, 0.0, 0.0),))
    await queue.keep(Resolved({"a": job}), {"a": job}, (), FENCE)
    with pytest.raises(ConfigError, match="a-1 still has device 5 of node n: give --nodes as they were"):
        await queue.keep_nodes({"n": range(4), "n-2": range(4, 8)})
    await queue.keep_nodes({"n": range(8)})


async def test_a_command_that_an_entry_has_no_room_for_is_refused() -> None:
    queue = await queue_of(MemoryServer())
    long = msgspec.structs.replace(asked("a"), command=("train", "y" * ENTRY_BYTES))
    with pytest.raises(UsageError, match=r"the command has .* bytes: put it into a file"):
        await queue.submit(long, {})
    assert await queue.names() == ()


@pytest.mark.parametrize("text", ["tail", "refused", "taken"])
async def test_a_report_of_many_workers_of_which_much_is_told_is_cut_to_what_the_coordinator_takes(text: str) -> None:
    queue = await queue_of(MemoryServer())
    ends = {
        "tail": EndEvidence(code=1, tail="\x01" * 8000 + "end"),
        "refused": EndEvidence(refused="no" + "\x01" * 8000),
        "taken": EndEvidence(taken="no" + "\x01" * 8000),
    }[text]
    workers = tuple(WorkerSeen(f"a-{n}", True, ends) for n in range(64))
    await queue.tell(NodeReport("n", (0,), workers))
    found = await queue.report("n")
    assert found is not None
    assert len(msgspec.json.encode(found)) <= queue_store.AT_ONCE_BYTES
    for one in found.workers:
        assert one.evidence is not None
        assert getattr(one.evidence, text).strip("\x01") == ("end" if text == "tail" else "no")
        assert len(getattr(one.evidence, text)) > 100
    small = NodeReport("n", (0,), workers[:2])
    assert within(small, queue_store.AT_ONCE_BYTES) == small


async def test_orders_that_who_led_before_did_not_write_are_written() -> None:
    server = MemoryServer()
    before = await led(server)
    job = JobEntry(asked("a"), workers=(WorkerEntry("a-1", 1, "n", 0, 1, 0.0, 0.0),), ready=True)
    await before.keep(Resolved({"a": job}), {"a": job}, (), FENCE)  # and died before the orders
    queue = await queue_of(server)
    [job] = await queue.jobs()
    await queue.keep(Resolved(), {"a": job}, ("n",), FENCE)
    orders = await queue.orders("n")
    assert orders is not None
    assert [order.id for order in orders] == ["a-1"]


async def test_a_job_is_forgotten_by_who_leads() -> None:
    queue = await led(MemoryServer())
    await queue.submit(asked("a"), {})
    await queue.store.delete(FENCE)
    with pytest.raises(Fenced):
        await queue.forget("a", FENCE)
    assert await queue.names() == ("a",)
    await queue.store.create(FENCE)
    await queue.forget("a", FENCE)
    assert await queue.names() == ()


async def test_of_jobs_that_are_over_so_many_and_so_many_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await led(MemoryServer())
    for number in range(6):
        long = msgspec.structs.replace(asked(f"j{number}"), command=("x" * (40_000 if number == 2 else 10),))
        await queue.submit(long, {})
    over = [msgspec.structs.replace(job, ended=float(job.name[1:])) for job in await queue.jobs()]
    assert queue.beyond(over) == []
    monkeypatch.setattr(queue_store, "KEPT_OVER", 4)
    assert [job.name for job in queue.beyond(over)] == ["j1", "j0"]
    monkeypatch.setattr(queue_store, "KEPT_OVER_BYTES", 30_000)
    assert [job.name for job in queue.beyond(over)] == ["j2", "j1", "j0"]


def test_what_is_at_its_bounds_fits_into_a_value_of_the_coordinators() -> None:
    node, name, path = "n" * 63, "j" * 48, '"' * (PATH_BYTES // 2) + "/0001-000001-000000000001"
    workers = tuple(WorkerEntry(f"{name}-{n}", n, node, n, 99, 1e9 + 0.123456, 1e9 + 0.123456) for n in range(WORKERS))
    held = tuple(DeviceHeld(one.id, node, one.device, one.began, one.began) for one in workers[:KEPT_HELD])
    story = (QueueEvent(1e9 + 0.123456, "job_preempted", name, "é" * KEPT_REASON),) * KEPT_EVENTS
    cause = EndCause("exit", Domain.WORKLOAD, retry=True, words="w" * 100, root="\\" * 1200)
    exits = (WorkerExit(f"{name}-1", 1, 1e9 + 0.123456, cause, 1),) * MOST_EXITS
    asked = Submission(name, ("x" * ENTRY_BYTES,), path, "u" * 64, 1e9 + 0.123456, checkpoint=path)
    job = JobEntry(asked, workers=workers, held=held, story=story, exits=exits, resume_from=path, ready=True)
    assert len(msgspec.json.encode(job)) <= MAX_VALUE_BYTES
    few = msgspec.structs.replace(job, workers=workers[:MOST_SLOTS])
    assert len(msgspec.json.encode(orders_of(node, {name: few}))) <= MAX_VALUE_BYTES
    end = EndEvidence(1, "\x01" * TAIL_BYTES, refused="\x01" * TAIL_BYTES, taken="\x01" * TAIL_BYTES)
    report = NodeReport(node, tuple(range(MOST_SLOTS)), tuple(WorkerSeen(one.id, True, end) for one in few.workers))
    assert len(msgspec.json.encode(within(report, queue_store.AT_ONCE_BYTES))) <= queue_store.AT_ONCE_BYTES


def test_a_node_has_so_many_slots_at_most() -> None:
    check_slots([NodeGiven("n", tuple(range(MOST_SLOTS)))])
    with pytest.raises(ConfigError, match="node n has 641 slots, and 640 are allowed: name fewer in --nodes"):
        check_slots([NodeGiven("n", tuple(range(MOST_SLOTS + 1)))])
