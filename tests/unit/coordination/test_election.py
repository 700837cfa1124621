"""The election's shell on the store in memory, where every fault can be placed exactly."""

from __future__ import annotations

import asyncio
import json

import pytest

from edl.coordination.election import Candidate, Elected, Reign, leader_path, read_leader, strike_off, strike_off_first
from edl.coordination.memory_store import MemoryServer
from edl.coordination.store import Create, Link
from edl.errors import Fenced, StoreUnavailable

ROOT = "/jobs/x/election"


class Contender:
    """A candidate, its store, and everything it was told."""

    def __init__(self, server, ident):
        self.server = server
        self.store = server.connect()
        self.ident = ident
        self.told = []
        self.news = asyncio.Queue()
        self.candidate = Candidate(self.store, ROOT, ident, self.changed, retry_s=0.001)

    def changed(self, reign):
        self.told.append(reign)
        self.news.put_nowait(reign)

    async def next(self):
        async with asyncio.timeout(5):
            return await self.news.get()

    async def crown(self):
        self.candidate.stand()
        reign = await self.next()
        assert isinstance(reign, Reign)
        return reign

    async def follow(self):
        """Stand, and wait until that has led to a node."""
        before = await self.store.children(f"{ROOT}/candidates")
        self.candidate.stand()
        await until(lambda: _more_than(self.store, before))


async def _more_than(store, before):
    return len(await store.children(f"{ROOT}/candidates")) > len(before)


async def until(condition):
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110 - the condition is in the store
            await asyncio.sleep(0)


async def quiet():
    """Let everything that can happen without a timer happen."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.fixture
async def server():
    return MemoryServer()


@pytest.fixture
async def one(server):
    return Contender(server, "one")


@pytest.fixture
async def two(server):
    return Contender(server, "two")


async def test_the_first_to_stand_leads_term_1_and_says_so(one):
    reign = await one.crown()
    assert reign.term == 1
    assert one.candidate.reign == reign
    assert await read_leader(one.store, ROOT) == Elected("one", 1)
    assert (await one.store.read(reign.fence)).owner == one.store.session


async def test_before_the_first_term_there_is_no_leader(one):
    assert await read_leader(one.store, ROOT) is None
    await one.store.create(leader_path(ROOT), b"")
    assert await read_leader(one.store, ROOT) is None


async def test_the_second_waits_and_inherits_at_a_resignation(one, two):
    await one.crown()
    await two.follow()
    await quiet()
    assert two.told == []
    await one.candidate.resign()
    assert one.told[1:] == [None]
    assert (await two.next()).term == 2
    assert await read_leader(one.store, ROOT) == Elected("two", 2)


async def test_step_down_comes_with_the_suspension_itself(server, one):
    await one.crown()
    server.suspend(one.store.session)
    assert one.candidate.reign is None  # not a turn of the loop later
    assert one.told[1:] == [None]


async def test_a_short_suspension_resumes_with_a_new_term_and_fences_the_old_one(server, one, two):
    first = await one.crown()
    await two.follow()
    server.suspend(one.store.session)
    server.resume(one.store.session)
    assert await one.next() is None
    second = await one.next()
    assert second.term == first.term + 1
    assert two.told == []  # the node stayed where it was in the queue
    with pytest.raises(Fenced):
        await one.store.commit([Create("/log")], fence=first.fence)
    await one.store.commit([Create("/log")], fence=second.fence)


async def test_a_renewed_reign_is_a_new_term_and_fences_the_old_one(one, two):
    before = await one.crown()
    await two.follow()
    one.candidate.renew()
    assert one.candidate.reign is None and await one.next() is None
    after = await one.next()
    assert after.term == before.term + 1
    with pytest.raises(Fenced):
        await one.store.commit([Create(f"{ROOT}/late")], fence=before.fence)
    await one.store.commit([Create(f"{ROOT}/in time")], fence=after.fence)
    await quiet()
    assert two.told == []


async def test_an_expired_leader_is_fenced_and_goes_to_the_end_of_the_queue(server, one, two):
    first = await one.crown()
    await two.follow()
    server.expire(one.store.session)
    assert await one.next() is None
    assert (await two.next()).term == 2
    with pytest.raises(Fenced):
        await one.store.commit([Create("/log")], fence=first.fence)
    await two.candidate.resign()
    assert (await one.next()).term == 3


async def test_a_paused_leader_is_fenced_before_it_knows(server, one, two):
    """Its process slept: the session is over and another reigns, and it writes before any news reaches it."""
    first = await one.crown()
    await two.follow()
    server.suspend(one.store.session)
    server.expire(one.store.session)
    assert (await two.next()).term == 2
    paused = server.connect()  # a connection that has not heard of anything, as the paused leader's had not
    with pytest.raises(Fenced):
        await paused.commit([Create("/log")], fence=first.fence)


async def test_a_follower_that_loses_its_session_stands_again(server, one, two):
    await one.crown()
    await two.follow()
    server.expire(two.store.session)
    await until(lambda: _stands(two))
    await one.candidate.resign()
    assert (await two.next()).term == 2


async def _stands(contender):
    store = contender.store
    for name in await store.children(f"{ROOT}/candidates"):
        node = await store.read(f"{ROOT}/candidates/{name}")
        if node and node.owner == store.session:
            return True
    return False


async def test_a_dead_candidate_is_struck_off_and_the_next_one_leads(server, one, two):
    """Its session lives on."""
    first = await one.crown()
    await two.follow()
    server.suspend(one.store.session)  # it does nothing any more
    assert await strike_off(two.store, ROOT, "one")
    assert (await two.next()).term == 2
    with pytest.raises(Fenced):
        await server.connect().commit([Create("/log")], fence=first.fence)
    assert not await strike_off(two.store, ROOT, "one")
    assert two.candidate.reign


async def test_all_that_are_dead_at_the_head_of_the_line_make_way(server, one, two):
    """A leader, and one of its fate; a dead one farther back does not hold up any."""
    three, four = Contender(server, "three"), Contender(server, "four")
    await one.crown()
    for follower in (two, three, four):
        await follower.follow()
    server.suspend(one.store.session)
    server.suspend(two.store.session)
    asked = []

    async def is_dead(ident):
        asked.append(ident)
        return ident in {"one", "two", "four"}

    await strike_off_first(three.store, ROOT, is_dead)
    assert (await three.next()).term == 2
    assert asked == ["one", "two", "three"]
    await strike_off_first(three.store, ROOT, is_dead)
    assert three.candidate.reign
    assert len(await three.store.children(f"{ROOT}/candidates")) == 2


async def test_one_that_lives_and_is_struck_off_stands_again(one, two):
    await one.crown()
    await two.follow()
    await strike_off(two.store, ROOT, "one")
    assert await one.next() is None
    assert (await two.next()).term == 2
    await two.candidate.resign()
    assert (await one.next()).term == 3


async def test_a_leader_whose_node_is_deleted_steps_down_and_stands_again(one):
    first = await one.crown()
    await one.store.delete(first.fence)
    assert await one.next() is None
    assert (await one.next()).term == 2


@pytest.mark.parametrize("change", range(1, 6))
async def test_whichever_answer_is_lost_one_leader_comes_out_with_one_node(server, two, change):
    """The connection breaks after the n-th change of standing: carried out, but not known to be."""
    one = Contender(server, "one")
    dropping = server.connect()
    lose_answer(server, one.store, change)
    one.candidate.stand()
    while one.candidate.reign is None:
        await one.next()
    await two.follow()
    await quiet()
    names = await dropping.children(f"{ROOT}/candidates")
    assert len(names) == 2
    terms = [reign.term for reign in one.told if reign]
    assert terms == sorted(set(terms))
    assert await read_leader(dropping, ROOT) == Elected("one", terms[-1])
    await one.candidate.resign()
    assert (await two.next()).term == terms[-1] + 1


def lose_answer(server, store, change):
    """Let the `change`-th change that this store makes lose its answer."""
    count = 0

    def counting(change_store):
        async def counted(*given, **how):
            nonlocal count
            count += 1
            if count == change:
                server.drop_reply(store.session)
            return await change_store(*given, **how)

        return counted

    store.create, store.write = counting(store.create), counting(store.write)
    store.delete, store.commit = counting(store.delete), counting(store.commit)


async def test_a_term_whose_answer_came_with_bad_news_does_not_begin(server, one):
    """The commit went well, but the link was suspended before the candidate ran again."""
    plain = one.store.commit

    async def commit_then_flicker(ops, *, fence=None):
        results = await plain(ops, fence=fence)
        one.store.commit = plain
        server.suspend(one.store.session)
        server.resume(one.store.session)
        return results

    one.store.commit = commit_then_flicker
    reign = await one.crown()
    assert reign.term == 2
    assert one.told == [reign]


async def test_resigning_while_cut_off_is_quiet_and_the_session_does_the_rest(server, one, two):
    await one.crown()
    await two.follow()
    server.suspend(one.store.session)
    await one.candidate.resign()
    assert one.told[1:] == [None]
    server.expire(one.store.session)
    assert (await two.next()).term == 2


async def test_resigning_without_ever_leading_leaves_no_node_and_tells_nothing(one, two):
    await one.crown()
    await two.follow()
    await two.candidate.resign()
    assert two.told == []
    assert len(await one.store.children(f"{ROOT}/candidates")) == 1


async def test_one_may_resign_twice_and_stand_again(one, two):
    await one.crown()
    await two.follow()
    await one.candidate.resign()
    await one.candidate.resign()
    await two.next()
    await one.follow()
    await two.candidate.resign()
    assert await one.next() is None
    assert (await one.next()).term == 3


async def test_standing_twice_is_standing_once(one):
    one.candidate.stand()
    one.candidate.stand()
    await one.next()
    await quiet()
    assert len(await one.store.children(f"{ROOT}/candidates")) == 1


async def test_a_quiet_leader_asks_nothing_of_the_store(one, two, monkeypatch):
    await one.crown()
    await two.follow()
    await quiet()
    calls = []
    for contender in (one, two):
        monkeypatch.setattr(contender.store, "_reach", lambda: calls.append(1))
    await quiet()
    assert calls == []


async def test_a_crash_of_the_callback_ends_the_reign_and_is_reported(server):
    store = server.connect()
    told, reports = [], []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

    def changed(reign):
        told.append(reign)
        if reign:
            raise RuntimeError("our bug")

    candidate = Candidate(store, ROOT, "one", changed)
    candidate.stand()
    await quiet()
    assert candidate.reign is None
    assert [type(reign) for reign in told] == [Reign, type(None)]
    assert isinstance(reports[0]["exception"], RuntimeError)
    await candidate.resign()
    assert await store.children(f"{ROOT}/candidates") == ()


class StubbornWriter(Contender):
    """As leader it writes until it is refused, and does not heed its own stepping down: only the fence stops it."""

    def __init__(self, server, ident):
        super().__init__(server, ident)
        self.writing = []

    def changed(self, reign):
        super().changed(reign)
        if reign:
            self.writing.append(asyncio.create_task(self._write(reign)))

    async def _write(self, reign):
        record = json.dumps([reign.term, self.ident]).encode()
        while True:
            try:
                await self.store.commit([Create("/log/n-", record, sequence=True)], fence=reign.fence)
            except Fenced:
                return
            except StoreUnavailable:
                await asyncio.sleep(0)


async def plan_faults(server, contenders):
    faults = (server.suspend, server.expire, server.drop_reply)
    for n in range(90):
        await asyncio.sleep(0.002)  # some turns for the writers between two faults
        victim = next((c for c in contenders if c.candidate.reign), contenders[n % 6])
        session = victim.store.session
        faults[n % 3](session)
        if n % 5 == 0:
            server.suspend(session)
        for other in contenders:
            if other.store.link is not Link.CONNECTED and (other is not victim or n % 2):
                server.resume(other.store.session)
    for contender in contenders:
        server.resume(contender.store.session)


async def test_many_contenders_under_planned_faults_write_in_the_order_of_terms(server):
    watcher = server.connect()
    await watcher.create("/log")
    contenders = [StubbornWriter(server, f"c{n}") for n in range(6)]
    for contender in contenders:
        contender.candidate.stand()
    await plan_faults(server, contenders)
    await until(lambda: _settled(watcher, contenders))
    for contender in contenders:
        await contender.candidate.resign()
    await asyncio.gather(*(task for contender in contenders for task in contender.writing))
    log = [json.loads((await watcher.read(f"/log/{name}")).value) for name in await watcher.children("/log")]
    terms = [term for term, _ in log]
    assert terms == sorted(terms)
    writers = {(term, ident) for term, ident in log}
    assert len(set(terms)) == len(writers) > 10


async def _settled(watcher, contenders):
    names = await watcher.children(f"{ROOT}/candidates")
    return len(names) == 6 and sum(c.candidate.reign is not None for c in contenders) == 1
