"""Election of the leader: the candidates, the leader, and its term.

Owns: the nodes below `root`, drawn in docs/coordination.md, and the candidate's behaviour. Does not own: what a leader
does in its term. It uses only the store port, so it is tested on the in-memory store.

    root/candidates/<uid>-<seq>           a candidate: ephemeral, in the order of <seq>
    root/candidates/<uid>-<seq>-<term>    the same node, renamed by the transaction that began the candidate's term
    root/term                             the newest term, a decimal number
    root/leader                           the leader of that term: {"ident": ..., "term": ...}

Why it is safe (I1). Names are ordered by <seq>, which only grows, so that once no lower node is left, none ever comes:
only the lowest can begin a term, and a term begins in one transaction that renames that node and counts `term` up.
The new name is the fence. It exists exactly as long as the reign: it goes with the session, and it goes when the same
candidate begins another term after a short suspension. A write that checks it can therefore not follow a newer term's
first write, if a leader was paused, partitioned or late in between; nor can a write of a task that missed the news.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl.coordination.store import Create, Delete, Link, NodeExists, NoNode, Op, Store, StoreRefused, Watch, Write
from edl.errors import EdlError, Fenced, StoreUnavailable

logger = logging.getLogger("edl")

LastWords = Callable[[], Awaitable[Sequence[Op]]]
"""The operations of the transaction that ends a term; called again for each retry of that transaction."""

_RESIGN_S = 2.0
"""A silent server must not hold up the end of a process; the session's expiry removes the candidate's node later."""

_NAME = re.compile(r"(?P<uid>[0-9a-f]{32})-(?P<seq>[0-9]{10})(-(?P<term>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class Reign:
    """The right to write as leader in one term. Every leader write is `store.commit(ops, fence=reign.fence)`."""

    term: int
    fence: str


@dataclass(frozen=True, slots=True)
class Elected:
    """The candidate that began the newest term. It may be gone by now: only a write with its fence can tell."""

    ident: str
    term: int


# ------------------------------------------------------------------------------------------------------ decisions


@dataclass(frozen=True, slots=True)
class Stand:
    """Create a node: the candidate has none."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete surplus nodes of the candidate: left by an earlier session, or by a create whose answer was lost."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitBehind:
    """Wait for the nearest of the candidates that are ahead."""

    name: str
    predecessor: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Begin a term, or go on with it: the candidate is first."""

    name: str


Action = Stand | Withdraw | WaitBehind | Lead


def decide(candidates: Iterable[str], mine: Mapping[str, int], session: int) -> Action:
    """`candidates` has all names in the folder. `mine` has the candidate's own nodes that still exist, with the session
    that owns each; an own name that is listed in `candidates` only has vanished since, and the next look will show
    that.
    """
    ours = sorted((name for name, owner in mine.items() if owner == session), key=_seq)
    surplus = tuple(sorted(set(mine) - set(ours[:1])))
    if surplus:
        return Withdraw(surplus)
    if not ours:
        return Stand()
    (name,) = ours
    before = [other for other in candidates if _NAME.fullmatch(other) and _seq(other) < _seq(name)]
    return WaitBehind(name, max(before, key=_seq)) if before else Lead(name)


def _seq(name: str) -> int:
    return int(name.split("-")[1])


# -------------------------------------------------------------------------------------------------- candidate


class Candidate:
    """A candidate in the election. `stand()` enters it, `await resign()` hands over cleanly; then it may enter again.

    `on_change(reign)` is called on the loop when the candidate's term begins, and `on_change(None)` when it ends: at
    the latest when the link is no longer CONNECTED, long before the session can expire. After a short suspension the
    same candidate may become leader again, in a new term.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        ident: str,
        on_change: Callable[[Reign | None], None],
        *,
        retry_s: float = 0.1,
        on_crash: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`on_crash` is called when an unexpected error ends the candidacy; its nodes are gone, or go soon."""
        self._on_crash = on_crash
        self._store = store
        self._folder = f"{root}/candidates"
        self._term_path = f"{root}/term"
        self._leader_path = leader_path(root)
        self._ident = ident
        self._on_change = on_change
        self._retry_s = retry_s
        self._reign: Reign | None = None
        self._uid = ""
        self._task: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[bool] | None = None
        self._wake = asyncio.Event()
        self._link_changes = 0
        self._link_watch: Watch | None = None
        self._watch: Watch | None = None  # on the predecessor's node, or on the leader's own
        self._watched = ""

    @property
    def reign(self) -> Reign | None:
        """Return the candidate's term while it leads, else None."""
        return self._reign

    def stand(self) -> None:
        """Stand for election until `resign`. Call it on the store's loop."""
        if self._task is not None:
            return
        self._uid = uuid.uuid4().hex
        self._link_watch = self._store.watch_link(self._link_changed)
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"candidate {self._ident}")
        self._task.add_done_callback(self._report_crash)

    def renew(self) -> None:
        """End the term, and soon begin another unless a different candidate is first by then. The leader calls this
        when it cannot know whether a write was carried out: if that write is late, the new term's fence refuses it.
        """
        self._step_down()
        asyncio.get_running_loop().call_later(self._retry_s, self._wake.set)

    async def resign(self, last_words: LastWords | None = None, *, insist: bool = False) -> bool:
        """Step down, and remove the candidate's nodes so that the next candidate leads at once. If the store is
        disconnected or silent for two seconds, give up: the session's expiry removes the nodes. Return True if the term
        ended with `last_words`, or was over before.

        With `insist`, retry until no node is left: for a process that lives on, and whose session therefore does not
        expire.
        """
        task, self._task = self._task, None
        if task is None:
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        fence = self._reign.fence if self._reign else None
        self._step_down()
        for watch in (self._link_watch, self._watch):
            if watch is not None:
                watch.close()
        self._watch, self._watched = None, ""
        said = False
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(None if insist else _RESIGN_S):
                try:
                    said = last_words is not None and fence is not None and await self._say(last_words, fence)
                finally:
                    await self._give_way(fence, insist=insist)
        return said

    async def _say(self, last_words: LastWords, fence: str) -> bool:
        """Write the last words and delete the fence in one transaction, so that they are written once. If the term is
        over, they have been written by an earlier try, or come too late.
        """
        while True:
            try:
                await self._store.commit([*await last_words(), Delete(fence)], fence=fence)
                return True
            except Fenced:
                return True
            except StoreUnavailable:
                await asyncio.sleep(self._retry_s)
            except EdlError as error:
                logger.error("the coordinator does not take why this leader resigns: %s", error)
                return False

    async def _give_way(self, fence: str | None, *, insist: bool) -> None:
        while True:
            try:
                if fence is not None:  # first of all, because other candidates wait for its deletion
                    await self._withdraw([fence.rpartition("/")[2]])
                await self._withdraw(await self._own_names())
                return
            except StoreUnavailable:
                if not insist:
                    raise
                await asyncio.sleep(self._retry_s)

    # --------------------------------------------------------------------------------------------------- waking

    def _link_changed(self, link: Link) -> None:
        self._link_changes += 1
        if link is Link.CONNECTED:
            self._wake.set()
        else:
            self._step_down()

    def _step_down(self) -> None:
        if self._reign is not None:
            self._reign = None
            self._on_change(None)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
            except (StoreUnavailable, StoreRefused):
                # The next look at the nodes shows whether the write was carried out.
                asyncio.get_running_loop().call_later(self._retry_s, self._wake.set)

    def _report_crash(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._step_down()
            self._farewell = task.get_loop().create_task(self.resign())
            self._on_crash(error)
            context = {"message": f"{task.get_name()} stands no longer", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    # ------------------------------------------------------------------------------------------------- stepping

    async def _step(self) -> None:
        if self._store.link is not Link.CONNECTED:
            return  # `_link_changed` wakes this task
        seen = self._link_changes
        names = await self._store.children(self._folder)
        mine = await self._owners(names)
        action = decide(names, mine, self._store.session)
        if not (isinstance(action, Lead) and self._reign and self._path(action.name) == self._reign.fence):
            self._step_down()
        match action:
            case Stand():
                await self._enter()
            case Withdraw(surplus):
                await self._withdraw(surplus)
                self._wake.set()
            case WaitBehind(_, predecessor):
                await self._look_after(predecessor)
            case Lead(name):
                if self._reign is None:
                    await self._begin_term(name, seen)

    async def _enter(self) -> None:
        for path, value in ((self._term_path, b"0"), (self._leader_path, b"")):
            with contextlib.suppress(NodeExists):
                await self._store.create(path, value)
        value = self._ident.encode()
        await self._store.create(self._path(f"{self._uid}-"), value, ephemeral=True, sequence=True)
        self._wake.set()

    async def _begin_term(self, name: str, seen: int) -> None:
        newest = await self._store.read(self._term_path)
        if newest is None:
            raise NoNode(self._term_path)
        term = int(newest.value) + 1
        uid, seq = name.split("-")[:2]
        reign = Reign(term, self._path(f"{uid}-{seq}-{term}"))
        record = json.dumps({"ident": self._ident, "term": term}).encode()
        await self._store.commit(
            [
                Delete(self._path(name)),
                Create(reign.fence, self._ident.encode(), ephemeral=True),
                Write(self._term_path, str(term).encode(), newest.version),
                Write(self._leader_path, record),
            ]
        )
        if self._link_changes != seen:  # the link broke before the answer came: this term is over already
            self._wake.set()
            return
        self._reign = reign
        self._on_change(reign)
        await self._look_after(reign.fence.rpartition("/")[2])

    async def _look_after(self, name: str) -> None:
        """Wake when this node is deleted."""
        if name != self._watched:
            if self._watch is not None:
                self._watch.close()
            self._watch, self._watched = self._store.watch(self._path(name), self._wake.set), name
        if await self._store.read(self._path(name)) is None:  # gone before the watch was there
            self._wake.set()

    async def _own_names(self) -> tuple[str, ...]:
        return tuple(name for name in await self._store.children(self._folder) if name.startswith(self._uid))

    async def _owners(self, names: Iterable[str]) -> dict[str, int]:
        nodes = {name: await self._store.read(self._path(name)) for name in names if name.startswith(self._uid)}
        return {name: node.owner for name, node in nodes.items() if node is not None}

    async def _withdraw(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(NoNode):
                await self._store.delete(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def leader_path(root: str) -> str:
    """Return the path of the node to watch for a change of leader."""
    return f"{root}/leader"


async def strike_off(store: Store, root: str, ident: str) -> bool:
    """Remove the nodes of a candidate whose process is known to be dead; return True if there were any.

    If the candidate were alive, this would end its term like the expiry of its session, and it would enter again.
    Raises as `Store.read` does.
    """
    folder, found = f"{root}/candidates", False
    for name in sorted(filter(_NAME.fullmatch, await store.children(folder)), key=_seq):
        path = f"{folder}/{name}"
        node = await store.read(path)
        if node is not None and node.value == ident.encode():
            with contextlib.suppress(NoNode):
                await store.delete(path)
                found = True
    return found


async def strike_off_first(store: Store, root: str, is_dead: Callable[[str], Awaitable[bool]]) -> None:
    """Remove the first candidates in line as long as `is_dead` says of each that its process, known by its `ident`, is
    dead.

    Raises as `Store.read` does.
    """
    folder = f"{root}/candidates"
    for name in sorted(filter(_NAME.fullmatch, await store.children(folder)), key=_seq):
        node = await store.read(f"{folder}/{name}")
        if node is not None:
            if not await is_dead(node.value.decode()):
                return
            with contextlib.suppress(NoNode):
                await store.delete(f"{folder}/{name}")


async def read_leader(store: Store, root: str) -> Elected | None:
    """Return the candidate that began the newest term below `root`; None before the first. Raises
    as `Store.read` does.
    """
    node = await store.read(leader_path(root))
    if node is None or not node.value:
        return None
    record = json.loads(node.value)
    return Elected(ident=record["ident"], term=record["term"])
