"""The training thread's side of a job: what `import edl.torch as edl` and `import edl.tensorflow as edl` stand on.

Owns: the seat of this process in the job, the end of each mini-batch, changing rings. Does not own: what to do next
(`edl.core.seat` decides from the leader's orders), the framework (`edl.runtime.framework`), the data (`shards`, `feed`).
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sized
from types import FrameType, TracebackType
from typing import Any

import msgspec

from edl.config import Settings
from edl.core.seat import NEVER, Enter, Leave, Seat, Stop, next_move
from edl.errors import ConfigError, JobFailed, RingBroken, UsageError
from edl.protocol import link as say
from edl.protocol.assignment import Assignment, Orders
from edl.protocol.data import DataSpec, Lease
from edl.protocol.messages import Pause
from edl.protocol.ring import solo
from edl.runtime import extras
from edl.runtime.extras import Extras
from edl.runtime.feed import LeaseFeed
from edl.runtime.framework import Framework
from edl.runtime.link import DaemonLink
from edl.runtime.shards import ShardGenerator

logger = logging.getLogger("edl")

RANK_BITS = 16  # of the word in which a ring agrees on its newest step and on who has it
RANKS = 2**RANK_BITS - 1


class Leaving(SystemExit):
    """Raised by `notify_batch_end()` in a worker that was told to leave; as a SystemExit it ends the script with 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Trainer:
    """The process's one seat in its job."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._settings: Settings | None = None
        self._link: DaemonLink | None = None
        self._feed = LeaseFeed()
        self._extras = Extras()
        self._shards: ShardGenerator | None = None
        self._thread = 0
        self._on_resize: list[Callable[[int, int], object]] = []
        self._rank, self._size, self._local_rank = 0, 1, 0
        self._generation, self._step, self._epoch = 0, 0, 0
        self._entered_step = 0  # the step that this generation took over after
        self._failed_generation = 0  # a newer one that could not be entered
        self._tainted = False  # a synchronization broke off: this state must not become anybody's
        self._rehearsing = self._rehearsed = False
        self._synchronized = True  # False: the first generation starts, and its models may differ
        self._void: BaseException | None = None
        self._even_until = NEVER  # the weight holds up to this step
        self._failure = ""
        self._opened: DataSpec | None = None
        self._left = False

    # ------------------------------------------------------------------------------------------- begin and end

    def init(
        self,
        *,
        job: str | None = None,
        coordinator: str | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Start the daemon and join the job; return once this process sits in a ring.

        Each keyword defaults to its EDL_ variable. With no job at all: a job of one worker. A newcomer to a running
        job gets a ring of its own, in which the script boots and rehearses while the others train on.
        """
        if self._link is not None:
            raise UsageError("edl.init() was called twice in this process: call it once, before everything else of edl")
        keywords = dict(job=job, coordinator=coordinator, min_workers=min_workers, max_workers=max_workers)
        self._settings = Settings.from_environment(os.environ, **keywords, batch_size=batch_size)
        self._thread = threading.get_ident()
        worker = self._settings.worker_id or f"w{secrets.token_hex(4)}"
        self._link = DaemonLink(self._settings, worker, self._hear)
        self._watch_for_the_end()
        self._link.start(self._story())
        self._take_first_seat(worker)

    def shutdown(self) -> None:
        """Leave the job; implied at exit. Harmless twice."""
        link = self._link
        if link is None or self._left:
            return
        self._left = True
        self._feed.close()
        settings = self._started()
        link.send(say.Ended(self._failure))
        link.wait_noted(settings.session_timeout_s)
        self._framework.ring.leave()
        link.close()

    def _take_first_seat(self, worker: str) -> None:
        link, told = self._linked(), 0.0
        orders: Orders | None = None
        while True:
            orders = link.wait_news(orders)
            self._mind_the_daemon()
            if orders is None:
                continue
            move = next_move(Seat(0, 0, waiting=True), orders)
            if isinstance(move, Enter):
                self._synchronized = move.assignment.newcomers > 0
                self._change_ring()
                return
            if orders.boot_alone:
                self._framework.ring.enter(solo(worker), self._started().step_timeout_s)
                self._framework.set_weight(1.0)
                self._rehearsing = True
                return
            self._obey_endings(move)
            told = self._tell_waiting(orders, told)

    def _tell_waiting(self, orders: Orders, told: float) -> float:
        now = time.monotonic()
        if orders.wanted > orders.present and now - told > 10:
            if told:
                logger.warning("waiting for workers: %d of %d are here", orders.present, orders.wanted)
            return now
        return told

    def _watch_for_the_end(self) -> None:
        """Tell the daemon how the script ends, and leave gracefully on SIGTERM where the script minds it not itself."""
        atexit.register(self.shutdown)
        hook = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failure = self._failure or f"{kind.__name__}: {error}"
            hook(kind, error, trace)

        sys.excepthook = note
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one is not graceful
        link = self._linked()  # on a thread: this one may be inside the link's own lock right now
        threading.Thread(target=link.send, args=(say.LeaveAsked(),), daemon=True, name="edl-leave").start()

    # ------------------------------------------------------------------------------------------------ who and where

    def rank(self) -> int:
        """This worker's place in the roster of the current generation."""
        self._started()
        return self._rank

    def size(self) -> int:
        """Workers in the current generation."""
        self._started()
        return self._size

    def local_rank(self) -> int:
        """Place among the workers of the same host: what pins a device. (`hvd.local_rank()` is always 0 here.)"""
        self._started()
        return self._local_rank

    def generation(self) -> int:
        """Number of the roster that trains now, 0 for a newcomer before its first switch."""
        self._started()
        return self._generation

    def step(self) -> int:
        """Number of the mini-batch being worked on, from 1: committed mini-batches of the job, plus one."""
        self._started()
        return self._step + 1

    def epoch(self) -> int:
        """Pass over the data that the mini-batch being worked on belongs to, from 0."""
        self._started()
        epoch = self._feed.epoch(self._step + 1)
        self._epoch = self._epoch if epoch is None else epoch
        return self._epoch

    def rehearsing(self) -> bool:
        """True during a newcomer's throw-away first mini-batch."""
        return self._rehearsing

    def on_resize(self, callback: Callable[[int, int], object]) -> None:
        """Call `callback(old_size, new_size)` on every worker after each switch."""
        if not callable(callback):
            raise UsageError(f"edl.on_resize(callback) takes a function of (old_size, new_size), not {callback!r}")
        self._on_resize.append(callback)

    def register(self, **values: Any) -> Extras:
        """More state that a newcomer must receive: plain values, lists, dicts, bytes. Returns an object holding them."""
        return extras.add(self._extras, values)

    def elastic_shard_generator(
        self,
        source: int | Sized,
        epochs: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        format: str | None = None,  # noqa: A002 - the contract's name
    ) -> ShardGenerator:
        """This worker's samples of `source`: every sample of an epoch goes to exactly one worker, at any size.

        `source` is a number of samples or anything with `len()`. Use `.batches(n)` for one numpy array of sample ids
        per step, or iterate (or call) it for one sample at a time. `epochs=None`: each iteration is one more epoch.
        """
        settings = self._started()
        shards = ShardGenerator(
            source,
            self,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            format=format,
            default_batch=settings.batch_size,
        )
        self._shards = shards
        return shards

    # ------------------------------------------------------------------------------------------- the port of the data

    def open(self, spec: DataSpec) -> None:
        """A generator begins: tell the job what is trained on."""
        opened = self._opened
        if opened is not None and msgspec.structs.replace(spec, epochs=0) != msgspec.structs.replace(opened, epochs=0):
            raise UsageError(f"a job trains on one source: {opened} is open already, so {spec} cannot be")
        self._opened = spec
        if self._rehearsing and self._generation == 0:
            self._linked().send(say.RehearsalBegan())
        self._linked().send(say.Opened(spec))
        orders = self._linked().orders
        if orders is not None:
            self._hear(orders)  # another worker may have opened first, so that our share has come already

    def next_lease(self) -> Lease | None:
        """The next lease, None when no more will come."""
        self.begin_batch()
        return self._feed.draw(self._while_waiting)

    def _while_waiting(self) -> None:
        if threading.get_ident() != self._thread:
            return
        self._mind_the_daemon()
        orders = self._linked().orders
        if orders is not None:
            self._obey_endings(next_move(self._seat(), orders))

    # -------------------------------------------------------------------------------------------- the port of steps

    @property
    def voided(self) -> bool:
        return self._void is not None

    def void(self, error: BaseException) -> None:
        """A collective of this mini-batch failed: its update must not be applied (I8)."""
        if self._void is None:
            self._void = error

    def begin_batch(self) -> None:
        """Before the forward pass, where the script lets us know it: start the first generation from equal models."""
        if not self._synchronized and threading.get_ident() == self._thread:
            self._synchronize_first()

    def before_reduce(self) -> None:
        """Before the first collective of a step: its weight must be known."""
        if self._opened is not None and self._step + 1 > self._even_until:
            self._weigh(self._step + 1)

    # ------------------------------------------------------------------------------------------ the end of a batch

    def notify_batch_end(self, samples: int | None = None) -> bool:
        """Call once per mini-batch, after the update. True: committed. False: void, its samples come again.

        Here, and only here, rings change. A worker told to leave comes out by `edl.Leaving`.
        """
        if self._void is not None or self._generation == 0:
            return self._end_unusual_batch()
        step = self._step = self._step + 1
        page = self._page
        page.step = step
        page.batch_end_ns = time.monotonic_ns()
        if step >= page.attention_step:
            self._attend()
        if self._step >= self._even_until or not self._synchronized:
            self._prepare_uneven()
        return True

    def _end_unusual_batch(self) -> bool:
        """A rehearsal, a void batch, or a call before `init()`."""
        self._started()
        if self._generation == 0:
            return self._end_rehearsal()
        error, before = self._void, self._step
        logger.warning("step %d is void on rank %d: %s", before + 1, self._rank, _first_line(error))
        self._say_broken(str(error))
        self._change_ring()
        if self._step > before:
            return True  # a peer had applied it: with that peer's state it is committed here too (I5)
        if self._shards is not None:
            self._shards.redeliver()
        return False

    def _end_rehearsal(self) -> bool:
        self._rehearsed = True
        self._linked().send(say.Rehearsed())
        self._change_ring()
        return False

    def _attend(self) -> None:
        """The daemon asked for attention: see what the orders mean now."""
        self._mind_the_daemon()
        orders = self._linked().orders
        if orders is None:
            return
        move = next_move(self._seat(), orders)
        self._obey_endings(move)
        if isinstance(move, Enter):
            self._change_ring()

    def _obey_endings(self, move: object) -> None:
        if isinstance(move, Leave):
            self._framework.ring.leave()
            raise Leaving
        if isinstance(move, Stop):
            self._framework.ring.leave()
            if move.reason:
                self._failure = move.reason
                sys.exit(f"edl: {move.reason}")
            raise Leaving

    def _prepare_uneven(self) -> None:
        if not self._synchronized:
            self._synchronize_first()
        if self._step + 1 > self._even_until and self._feed.covers(self._step + 1):
            self._weigh(self._step + 1)

    # ----------------------------------------------------------------------------------------------- changing rings

    def _change_ring(self) -> None:
        """Wait for the seat in the next generation, and take it. Comes back only with a ring that stands."""
        link = self._linked()
        began, old = time.monotonic(), self._size
        orders: Orders | None = link.orders
        while True:
            move = None if orders is None else next_move(self._seat(waiting=True), orders)
            self._obey_endings(move)
            if isinstance(move, Enter) and self._enter(move.assignment, began):
                break
            orders = link.wait_news(orders)
            self._mind_the_daemon()
        self._void = None
        self._rehearsing = False
        self._await_share()
        self._linked().page.batch_end_ns = time.monotonic_ns()
        if old != self._size:
            for callback in self._on_resize:
                callback(old, self._size)

    def _enter(self, assignment: Assignment, began: float) -> bool:
        """Leave this ring, enter the assigned one, take over the state of its most advanced member (I5)."""
        ring, place, timeout_s = self._framework.ring, assignment.place, self._started().step_timeout_s
        moments = [time.monotonic()]
        ring.leave()
        self._framework.discard()
        moments.append(time.monotonic())
        try:
            ring.enter(place, timeout_s)
            moments.append(time.monotonic())
            step = self._agree_on_state(assignment)
        except RingBroken as error:
            ring.leave()
            self._failed_generation = place.generation
            self._linked().send(say.Broke(place.generation, self._step, str(error)))
            return False
        moments.append(time.monotonic())
        self._sit(assignment, step)
        self._linked().send(say.Entered(place.generation, step, _pause(began, moments)))
        return True

    def _agree_on_state(self, assignment: Assignment) -> int:
        """The ring's newest step, and the state that belongs to it on everybody."""
        ring, place = self._framework.ring, assignment.place
        if place.size == 1:
            return self._step
        has_state = self._generation > 0 and not self._tainted
        newest = ring.agree(((self._step + 1) << RANK_BITS) + (RANKS - place.rank) if has_state else 0)
        if newest == 0:
            return 0  # the first generation: everybody is new
        step, root = (newest >> RANK_BITS) - 1, RANKS - (newest & RANKS)
        behind = assignment.newcomers > 0
        if assignment.after_step is None or step != assignment.after_step:
            behind = ring.agree(int(not has_state or self._step < step)) > 0
        if behind:
            self._tainted = place.rank != root
            self._synchronize(root, place.rank)
            self._tainted = False
        return step

    def _sit(self, assignment: Assignment, step: int) -> None:
        place, link = assignment.place, self._linked()
        self._rank, self._size, self._local_rank = place.rank, place.size, place.local_rank
        self._entered_step = self._step = step
        self._generation, self._failed_generation = place.generation, 0
        link.page.generation, link.page.step = place.generation, step
        self._page = link.page
        self._even_until = NEVER
        self._framework.set_weight(1.0 / place.size)

    def _await_share(self) -> None:
        """The data of this generation: told with the plan, or after the ring has agreed on its step."""
        self._feed.forget_before(self._step + 1)
        if self._opened is None:
            return
        orders = self._linked().orders
        while orders is None or not self._hear(orders):
            orders = self._linked().wait_news(orders)
            self._mind_the_daemon()
            if orders is not None:
                self._obey_endings(next_move(self._seat(), orders))
        self._even_until = self._step  # so that the next step is weighed
        if self._feed.covers(self._step + 1):
            self._weigh(self._step + 1)

    def _weigh(self, step: int) -> None:
        """Set this worker's weight for `step` and those like it (the averaged gradient is that of all samples)."""
        while not self._feed.covers(step):
            if self._feed.ends_before(step):
                return
            self._while_waiting()
            self._linked().wait_news(self._linked().orders)
        self._framework.set_weight(self._feed.weight(step))
        self._even_until = self._feed.constant_until(step)

    # ------------------------------------------------------------------------------------------------------- state

    def _synchronize_first(self) -> None:
        """The first generation starts from its rank 0, as Horovod users expect from a broadcast."""
        self._synchronized = True
        try:
            if self._size > 1:
                self._synchronize(0, self._rank)
        except RingBroken as error:
            self.void(error)

    def _synchronize(self, root: int, rank: int) -> None:
        self._framework.synchronize(root)
        extras.synchronize(self._extras, self._framework.ring, root, is_root=rank == root)

    # -------------------------------------------------------------------------------------------------- small parts

    def _hear(self, orders: Orders) -> bool:
        """Take the share of this generation, if there is one. On the link's thread too: a generator waits for leases."""
        for share in orders.shares:
            if (share.generation, share.after_step) == (self._generation, self._entered_step):
                self._feed.adopt(share, (orders.term, orders.version))
                return True
        return False

    def _seat(self, waiting: bool = False) -> Seat:
        return Seat(max(self._generation, self._failed_generation), self._step, waiting)

    def _say_broken(self, reason: str) -> None:
        self._linked().send(say.Broke(self._generation, self._step, reason))

    def _mind_the_daemon(self) -> None:
        """A dead daemon is replaced; the ring is not touched."""
        link = self._linked()
        if link.gone and not self._left:
            logger.warning("the daemon of worker %s died: starting another", link.worker)
            link.start(self._story())

    def _story(self) -> list[msgspec.Struct]:
        """What a daemon must know of this trainer, whenever it comes."""
        story: list[msgspec.Struct] = [say.Hello(os.getpid(), self._framework.name)]
        if self._opened is not None:
            story.append(say.Opened(self._opened))
        if self._generation:
            story.append(say.Entered(self._generation, self._step, None))
        elif self._rehearsed:
            story.append(say.Rehearsed())
        return story

    def _linked(self) -> DaemonLink:
        if self._link is None:
            raise UsageError("edl is not initialized: call edl.init() first")
        return self._link

    def _started(self) -> Settings:
        if self._settings is None:
            raise UsageError("edl is not initialized: call edl.init() first")
        return self._settings


def _pause(began: float, moments: list[float]) -> Pause:
    """Milliseconds; `total` runs from the end of the last batch, waiting for orders included."""
    start, left, entered, done = moments
    parts = [round(1000 * seconds, 2) for seconds in (left - start, entered - left, done - entered, done - began)]
    return Pause(*parts)


def _first_line(error: BaseException | None) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


__all__ = ["ConfigError", "JobFailed", "Leaving", "Trainer"]
