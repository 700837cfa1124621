"""What `edl.coordination.store.Store` promises, checked on each implementation."""

from __future__ import annotations

import asyncio

import pytest

from edl.coordination.store import (
    MAX_OPS,
    MAX_VALUE_BYTES,
    Check,
    Create,
    Delete,
    Link,
    NodeExists,
    NoNode,
    NotEmpty,
    VersionConflict,
    Write,
)
from edl.errors import Fenced, StoreUnavailable, UsageError


class Wakes:
    """A wake function that counts, and can be waited for."""

    def __init__(self):
        self.count = 0
        self._event = asyncio.Event()

    def __call__(self):
        self.count += 1
        self._event.set()

    async def next(self):
        async with asyncio.timeout(20):
            await self._event.wait()
        self._event.clear()


# ------------------------------------------------------------------------------------------------------ one node


async def test_what_is_not_there_reads_as_nothing(store):
    assert await store.read("/a") is None
    assert await store.children("/a") == ()


async def test_a_created_node_reads_back(store):
    assert await store.create("/a", b"value") == "/a"
    node = await store.read("/a")
    assert (node.value, node.version, node.owner) == (b"value", 0, 0)
    assert await store.children("/") == ("a",)


async def test_the_root_is_there(store):
    assert await store.read("/") is not None
    with pytest.raises(NodeExists):
        await store.create("/")


async def test_created_grows_with_every_later_node(store, other):
    await store.create("/b")
    await other.create("/a")
    await store.create("/c")
    stamps = [(await store.read(path)).created for path in ("/b", "/a", "/c")]
    assert stamps == sorted(set(stamps))


async def test_a_node_is_created_once(store, other):
    await store.create("/a", b"first")
    with pytest.raises(NodeExists) as caught:
        await other.create("/a", b"second")
    assert caught.value.path == "/a"
    assert (await store.read("/a")).value == b"first"


async def test_parents_are_created_on_demand_only(store):
    with pytest.raises(NoNode):
        await store.create("/a/b/c", parents=False)
    assert await store.read("/a") is None
    assert await store.create("/a/b/c", b"deep") == "/a/b/c"
    assert await store.children("/a") == ("b",)


async def test_sessions_that_create_the_same_parents_do_not_collide(store, other):
    paths = [f"/a/b/c/{n}" for n in range(10)]
    await asyncio.gather(*((store, other)[n % 2].create(path) for n, path in enumerate(paths)))
    assert await store.children("/a/b/c") == tuple(map(str, range(10)))


async def test_sequence_nodes_are_numbered_in_the_order_of_their_creation(store, other):
    created = [await (store, other)[n % 2].create("/a/x-", str(n).encode(), sequence=True) for n in range(6)]
    assert created == sorted(set(created))
    assert all(path.startswith("/a/x-") and len(path) == len("/a/x-") + 10 for path in created)
    await store.delete(created[-1])
    assert await store.create("/a/x-", sequence=True) > created[-1]


async def test_a_write_compares_and_sets(store, other):
    await store.create("/a", b"0")
    assert await store.write("/a", b"1", 0) == 1
    with pytest.raises(VersionConflict):
        await other.write("/a", b"2", 0)
    assert await other.write("/a", b"3") == 2
    node = await store.read("/a")
    assert (node.value, node.version) == (b"3", 2)


async def test_a_write_creates_nothing(store):
    with pytest.raises(NoNode):
        await store.write("/a", b"")


async def test_counting_by_compare_and_set_loses_nothing(store, other):
    await store.create("/count", b"0")

    async def add(mine, times):
        while times:
            node = await mine.read("/count")
            try:
                await mine.write("/count", str(int(node.value) + 1).encode(), node.version)
                times -= 1
            except VersionConflict:
                continue

    await asyncio.gather(add(store, 20), add(other, 20))
    assert (await store.read("/count")).value == b"40"


async def test_a_delete_is_as_careful_as_a_write(store):
    with pytest.raises(NoNode):
        await store.delete("/a")
    await store.create("/a/b")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    with pytest.raises(VersionConflict):
        await store.delete("/a/b", 7)
    await store.delete("/a/b", 0)
    await store.delete("/a")
    assert await store.children("/") == ()


async def test_a_value_may_be_large_but_not_too_large(store):
    await store.create("/a", b"x" * MAX_VALUE_BYTES)
    assert len((await store.read("/a")).value) == MAX_VALUE_BYTES
    too_large = b"x" * (MAX_VALUE_BYTES + 1)
    with pytest.raises(UsageError, match="more than a node may hold"):
        await store.write("/a", too_large)
    with pytest.raises(UsageError, match="more than a node may hold"):
        await store.create("/b", too_large)
    with pytest.raises(UsageError, match="more than a node may hold"):
        await store.commit(
            [Create("/b", too_large[: len(too_large) // 2]), Write("/a", too_large[len(too_large) // 2 :])]
        )


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/.", "/a\0"])
async def test_a_malformed_path_is_the_callers_fault(store, path):
    with pytest.raises(UsageError):
        await store.read(path)
    with pytest.raises(UsageError):
        await store.create(path)
    with pytest.raises(UsageError):
        await store.commit([Check(path)])
    with pytest.raises(UsageError):
        store.watch(path, print)


# --------------------------------------------------------------------------------------------------- ephemerals


async def test_an_ephemeral_names_its_owner_and_goes_with_it(store, other, until):
    await store.create("/here", ephemeral=True)
    await other.create("/there", ephemeral=True)
    assert (await other.read("/here")).owner == store.session != other.session
    await store.close()
    await until(lambda: _gone(other, "/here"))
    assert await other.read("/there") is not None


async def test_an_ephemeral_has_no_children(store):
    await store.create("/a", ephemeral=True)
    with pytest.raises(UsageError, match="ephemeral"):
        await store.create("/a/b")
    with pytest.raises(UsageError, match="ephemeral"):
        await store.commit([Create("/a/b")])


# ------------------------------------------------------------------------------------------------- transactions


async def test_a_commit_tells_what_each_operation_did(store):
    await store.create("/a", b"0")
    await store.create("/old")
    ops = [Check("/a", 0), Write("/a", b"1"), Create("/b", b"new"), Create("/x-", sequence=True), Delete("/old")]
    nothing, version, path, numbered, also_nothing = await store.commit(ops)
    assert (nothing, version, path, also_nothing) == (None, 1, "/b", None)
    assert numbered.startswith("/x-")
    assert set(await store.children("/")) == {"a", "b", numbered[1:]}


async def test_a_later_operation_sees_the_earlier_ones(store):
    assert await store.commit([Create("/a"), Create("/a/b"), Write("/a/b", b"1", 0), Delete("/a/b"), Delete("/a")])
    assert await store.children("/") == ()


async def test_an_empty_commit_is_fine(store):
    assert await store.commit([]) == ()


@pytest.mark.parametrize(
    ("culprit", "error"),
    [
        (Write("/missing", b""), NoNode),
        (Write("/a", b"", 5), VersionConflict),
        (Create("/a"), NodeExists),
        (Create("/missing/child"), NoNode),
        (Delete("/full"), NotEmpty),
        (Delete("/missing"), NoNode),
        (Check("/missing"), NoNode),
        (Check("/a", 5), VersionConflict),
    ],
    ids=repr,
)
async def test_a_commit_is_all_or_nothing_and_names_the_culprit(store, culprit, error):
    await store.create("/a", b"0")
    await store.create("/full/child")
    before = await store.read("/a")
    with pytest.raises(error) as caught:
        await store.commit([Write("/a", b"1"), Create("/b"), culprit, Create("/c"), Write("/a", b"2")])
    assert caught.value.op == culprit or isinstance(culprit, Write | Check)  # versions moved by the write before
    assert caught.value.path == culprit.path
    assert await store.read("/a") == before
    assert set(await store.children("/")) == {"a", "full"}


async def test_the_most_operations_of_a_commit_go_through_whatever_they_are(store):
    """On servers as they come."""
    await store.create("/fence", ephemeral=True)
    await store.create("/all")
    parents = [f"/all/{number:02}" for number in range(MAX_OPS)]
    await store.commit([Create(parent) for parent in parents], fence="/fence")
    made = [Create(f"{parent}/x-", sequence=True) for parent in parents]
    for _ in range(2):
        names = await store.commit(made, fence="/fence")
        await store.commit([Delete(name) for name in names], fence="/fence")
    await store.commit([Write(parent, b"1", 0) for parent in parents], fence="/fence")
    await store.commit([Delete(parent) for parent in parents], fence="/fence")
    assert await store.children("/all") == ()


async def test_more_operations_than_a_commit_takes_are_refused_everywhere(store):
    with pytest.raises(UsageError, match=f"{MAX_OPS + 1} operations from /a0 on"):
        await store.commit([Create(f"/a{number}") for number in range(MAX_OPS + 1)])
    assert await store.children("/") == ()


async def test_a_fenced_commit_goes_through_while_the_fence_stands(store):
    await store.create("/fence", ephemeral=True)
    assert await store.commit([Create("/a")], fence="/fence") == ("/a",)
    assert await store.commit([], fence="/fence") == ()
    assert await store.commit([Create("/last"), Delete("/fence")], fence="/fence") == ("/last", None)
    with pytest.raises(Fenced):
        await store.commit([Create("/later")], fence="/fence")
    assert await store.read("/later") is None


async def test_a_fenced_commit_is_refused_once_the_fence_is_gone(store, other, until):
    fence = await store.create("/fence", ephemeral=True)
    await store.close()
    await until(lambda: _gone(other, fence))
    with pytest.raises(Fenced):
        await other.commit([Create("/a")], fence=fence)
    with pytest.raises(Fenced):  # whatever else is wrong
        await other.commit([Write("/missing", b"")], fence=fence)
    assert await other.read("/a") is None


# ------------------------------------------------------------------------------------------------------- watches


async def test_a_watch_wakes_for_value_children_creation_and_deletion(store, other):
    wakes = Wakes()
    store.watch("/a", wakes)
    assert await store.read("/a") is None  # the watch is in place once a later read is answered
    for change in (
        other.create("/a", b"0"),
        other.write("/a", b"1"),
        other.create("/a/b"),
        other.delete("/a/b"),
        other.delete("/a"),
        other.create("/a", b"again"),
        other.create("/a/c"),
    ):
        await change
        await wakes.next()
        await store.read("/a")


async def test_a_watch_does_not_wake_for_others(store, other):
    wakes, sentinel = Wakes(), Wakes()
    await store.create("/a/b/c")
    store.watch("/a", wakes)
    store.watch("/z", sentinel)
    await store.read("/a")
    await other.write("/a/b", b"child's value")
    await other.create("/a/b/d")
    await other.create("/z")
    await sentinel.next()
    assert wakes.count == 0


async def test_no_change_is_missed_by_watching_first_and_reading_afterwards(store, other):
    await store.create("/a", b"0")
    wakes = Wakes()
    store.watch("/a", wakes)
    seen = int((await store.read("/a")).value)

    async def write_all():
        for n in range(1, 101):
            await other.write("/a", str(n).encode())

    writing = asyncio.create_task(write_all())
    while seen < 100:
        await wakes.next()
        seen = int((await store.read("/a")).value)
    await writing
    assert wakes.count <= 200


async def test_a_closed_watch_is_silent(store, other):
    closed, open_ = Wakes(), Wakes()
    watch = store.watch("/a", closed)
    store.watch("/a", open_)
    await store.read("/a")
    watch.close()
    watch.close()
    await other.create("/a")
    await open_.next()
    assert closed.count == 0


async def test_a_watch_may_be_closed_by_its_own_wake(store, other):
    done = asyncio.Event()

    def wake():
        watch.close()
        done.set()

    watch = store.watch("/a", wake)
    await store.read("/a")
    await other.create("/a")
    async with asyncio.timeout(20):
        await done.wait()


async def test_a_watch_wakes_after_a_reconnect_and_goes_on(store, other, world, until):
    wakes = Wakes()
    store.watch("/a", wakes)
    await store.read("/a")
    await world.suspend(store)
    await until(lambda: store.link is Link.SUSPENDED)
    await other.create("/a")
    count = wakes.count
    await world.resume(store)
    await until(lambda: wakes.count > count)
    assert await store.read("/a") is not None
    count = wakes.count
    await other.write("/a", b"new")
    await until(lambda: wakes.count > count)


async def test_a_watch_outlives_the_session(store, other, world, until):
    wakes = Wakes()
    store.watch("/a", wakes)
    session = store.session
    await world.expire(store)
    await until(lambda: store.link is Link.CONNECTED and store.session != session)
    await store.read("/a")
    count = wakes.count
    await other.create("/a")
    await until(lambda: wakes.count > count)


# ------------------------------------------------------------------------------------------------------ the link


async def test_a_cut_suspends_and_a_mended_wire_keeps_the_session(store, other, world, until):
    links = []
    store.watch_link(links.append)
    await store.create("/mine", ephemeral=True)
    session = store.session
    await world.suspend(store)
    await until(lambda: links == [Link.SUSPENDED])
    assert store.link is Link.SUSPENDED
    assert store.session == session
    for call in (
        store.read("/mine"),
        store.children("/"),
        store.create("/b"),
        store.write("/mine", b""),
        store.delete("/mine"),
        store.commit([Check("/mine")]),
    ):
        with pytest.raises(StoreUnavailable):
            await call
    assert await other.read("/mine") is not None
    await world.resume(store)
    await until(lambda: links == [Link.SUSPENDED, Link.CONNECTED])
    assert store.session == session
    assert (await store.read("/mine")).owner == session


async def test_an_expired_session_is_told_and_followed_by_a_new_one(store, other, world, until):
    links = []
    store.watch_link(lambda link: links.append((link, store.session)))
    await store.create("/mine", ephemeral=True)
    session = store.session
    await world.expire(store)
    await until(lambda: links and links[-1][0] is Link.CONNECTED and store.session != session)
    assert links == [(Link.SUSPENDED, session), (Link.LOST, session), (Link.CONNECTED, store.session)]
    assert await other.read("/mine") is None
    assert await store.read("/mine") is None


@pytest.mark.slow
async def test_a_session_that_expires_behind_a_cut_is_lost_when_the_wire_is_mended(store, other, world, until):
    links = []
    await store.create("/mine", ephemeral=True)
    store.watch_link(links.append)
    session = store.session
    await world.suspend(store)
    await until(lambda: links == [Link.SUSPENDED])
    await world.expire(store)
    await until(lambda: _gone(other, "/mine"))
    assert links == [Link.SUSPENDED]
    await world.resume(store)
    await until(lambda: links == [Link.SUSPENDED, Link.LOST, Link.CONNECTED])
    assert store.session != session
    await store.create("/mine", ephemeral=True)


async def test_an_old_sessions_fence_does_not_help_the_new_one(store, world, until):
    await store.create("/fence", ephemeral=True)
    session = store.session
    await world.expire(store)
    await until(lambda: store.link is Link.CONNECTED and store.session != session)
    with pytest.raises(Fenced):
        await store.commit([Create("/a")], fence="/fence")


async def test_a_closed_link_watch_is_silent(store, world, until):
    silent, links = [], []
    watch = store.watch_link(silent.append)
    store.watch_link(links.append)
    watch.close()
    watch.close()
    await world.suspend(store)
    await until(lambda: links == [Link.SUSPENDED])
    assert silent == []


async def test_close_works_twice_and_ends_everything(store, other, until):
    links = []
    store.watch_link(links.append)
    await store.create("/mine", ephemeral=True)
    await store.close()
    await store.close()
    assert store.link is Link.LOST
    assert links[-1] is Link.LOST
    with pytest.raises(StoreUnavailable):
        await store.read("/mine")
    await until(lambda: _gone(other, "/mine"))


async def test_close_works_while_cut_off(store, world, until):
    await world.suspend(store)
    await until(lambda: store.link is Link.SUSPENDED)
    async with asyncio.timeout(10):
        await store.close()


async def test_more_calls_at_once_than_a_wake_up_pipe_takes_are_served(store):
    await store.create("/many")
    await asyncio.gather(*(store.create(f"/many/{n}") for n in range(300)))
    assert len(await store.children("/many")) == 300


async def test_a_cancelled_call_harms_no_other(store):
    calls = [asyncio.create_task(store.create(f"/c/{n}")) for n in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1::2]] == [str] * 10
    assert set(await store.children("/c")) >= {str(n) for n in range(1, 20, 2)}


async def _gone(store, path):
    return await store.read(path) is None
