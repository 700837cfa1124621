"""The ring on Horovod: on two copies of the library of `horovod.torch` or of `horovod.tensorflow`.

Owns: which copy's ring this process sits in, forming the next one in the other, bytes inside the ring. Does not own:
what one copy does (`edl.collectives.horovod_engine`), gradients and models (`edl.torch`, `edl.tensorflow` call Horovod
for those), nor who is in the ring.

Horovod's names for things: its *rendezvous* is the server through which members find each other; its *topology* is flat
here, that is, each worker counts as a host of its own (local size 1). That halves the time to form a ring, because the
meshes per host and across hosts are then trivial. Its price: hierarchical all-reduce is off. What scripts ask of it
(`hvd.local_rank()`, `local_size`, `cross_rank`, `cross_size`) is answered from the place instead.

Horovod has one ring per process. So there are two engines, each around a copy of its library that knows nothing of the
other: while one reduces, the next ring forms in the other, and Horovod's Python part is switched to that one. A ring
that stands polls, so the old one is left at once, in the background: between two changes one engine stands still.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from edl import ownership
from edl.collectives.byte_collectives import ByteCollectives, Bytes, spoken
from edl.collectives.horovod_engine import RingEngine
from edl.collectives.horovod_environment import tell_scripts
from edl.collectives.horovod_libraries import HorovodPython
from edl.collectives.library_guard import plain
from edl.collectives.name_warmup import Named, Sums, go_through
from edl.collectives.ring_port import Pulse, is_fault, never
from edl.errors import RingBroken, RingFault
from edl.protocol.assignment import Place
from edl.protocol.leader_messages import GRADIENTS


class Collectives(Bytes, Sums, Protocol):
    """Collectives of one framework in Horovod's rings, for edl itself."""


class HorovodRing:
    """`edl.collectives.ring_port.Ring` on one of Horovod's libraries."""

    pairs_by_name = True

    def __init__(
        self,
        module: str,
        tensors: Collectives,
        failed: Callable[[BaseException], bool],
        named: Callable[[], Sequence[Named]] = tuple,
    ) -> None:
        """`tensors` moves bytes; `failed` recognizes errors of broken collectives; `named`, from any thread, is what a
        step reduces.
        """
        self._face = HorovodPython(module)
        elastic = self._face.needs_elastic
        self._engines = [RingEngine(library, needs_elastic=elastic) for library in self._face.libraries]
        self._engine = self._engines[0]  # of the moment
        self._spare = self._engines[1] if len(self._engines) > 1 else None
        self._released = 0  # up to this generation, no ring that is prepared will be adopted
        self._words, self._sums = ByteCollectives(tensors), tensors
        self._failed = failed
        self._named = named
        self.on_trial = never
        self.size = 0  # of the ring; 0 outside any. An attribute, because the hot path reads it
        self.reduces = False  # the training thread is in a reduction of gradients whose names are Horovod's own
        ownership.at_exit(self._end)
        ownership.in_children(self._be_inherited)

    @property
    def place(self) -> Place | None:
        return self._engine.place

    def enter(self, place: Place, timeout_s: float) -> None:
        self.release(place.generation)
        self.leave()
        self._engine.form(place, timeout_s)
        self._sit()

    def leave(self) -> None:
        """Leave the ring; a broken one in the background, if the other engine is free to form the next."""
        self.size = 0
        left, spare = self._engine, self._spare
        if spare is None or not spare.free or left.free or left.whole:
            left.leave()
            return
        self._engine, self._spare = spare, left
        _let_go(left)

    # ------------------------------------------------------------------------------ the next ring, beside this one

    @property
    def prepares(self) -> bool:
        return self._spare is not None and not self._spare.spent

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        if self._spare is None or self._spare.spent:
            raise RingBroken(f"ring {place.generation} cannot form beside one that stands")
        spare = self._spare
        spare.form(place, timeout_s, lambda: place.generation > self._released, awaited=not all_prepare)
        if all_prepare and place.size > 1:
            try:
                self._go_through_names(spare, place.generation)
            except RingBroken:
                raise
            except BaseException:  # what stands by now is of no use to the others, who must not wait for us in it
                self.release(place.generation)
                raise

    def _go_through_names(self, spare: RingEngine, generation: int) -> None:
        try:
            go_through(self._sums, spare.library.taker, self._named())
        except Exception as error:
            if not isinstance(error, RingBroken) and not self._failed(error):
                raise
            spare.note_broken(generation)
            raise RingBroken(f"the ring did not form: a member is gone: {plain(str(error))}") from error

    def adopt(self, generation: int) -> None:
        spare = self._spare
        if spare is None or not spare.stands(generation):
            raise RingBroken(f"ring {generation} was not prepared, or has failed since")
        left, self._engine, self._spare = self._engine, spare, self._engine
        self._engine.settle()
        self._sit()
        _let_go(left)

    def release(self, generation: int) -> None:
        self._released = max(self._released, generation)
        spare = self._spare
        if spare is not None and not spare.idle:
            spare.abort(range(generation + 1))
            _let_go(spare, range(generation + 1))

    def _sit(self) -> None:
        """Make the engine's ring the current one."""
        place = self._engine.place
        assert place is not None  # it stands
        self._face.call(self._engine.library)
        self.size = place.size
        tell_scripts(place)

    def _be_inherited(self) -> None:
        """Leave the ring alone in a forked child, at whose end gloo would take down the connections of its parent."""
        self.size = 0
        ownership.skip_destructors()

    def _end(self) -> None:
        """Leave all rings as the process ends: Horovod's threads would find their variables gone."""
        self._released = sys.maxsize
        if self._spare is not None and not self._spare.leaving:  # in a hurry, a healthy ring is not left to its end
            self._spare.abort()
        for engine in self._engines:
            engine.leave()

    # --------------------------------------------------------------------------------------------- bytes inside it

    def broadcast(self, payload: bytes | None, root: int) -> bytes:
        with self.failing():
            return self._words.broadcast(self._seat(), payload, root)

    def largest(self, values: Sequence[int]) -> list[int]:
        with self.failing():
            return self._words.largest(self._seat(), values)

    def same(self, value: int) -> Callable[[], bool]:
        with self.failing():
            answer = self._words.same(self._seat(), value)

        def wait() -> bool:
            with self.failing():
                return answer()

        return wait

    def pulse(self) -> Pulse | None:
        return self._engine.pulse()

    def awaits(self) -> str:
        waiting = [name.removeprefix("allreduce.") for name in self._engine.waiting()]  # as horovod.torch calls them
        averaged = {one.name for one in self._named()}
        reduces = any(self.reduces or name.partition("#")[0] in averaged for name in waiting)
        return GRADIENTS if reduces else spoken(min(waiting, default=""))

    def abort(self, given_up: range | None = None) -> None:
        for engine in self._engines:  # what is prepared has nothing in flight
            if given_up is not None or engine is self._engine or engine.place is None:
                engine.abort(given_up)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Turn the error of a failed collective into RingBroken; in a ring on trial, any error of a collective."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RingBroken):
                raise
            if self.is_failure(error):
                reason = f"a collective of generation {self._generation()} failed: {plain(str(error))}"
                raise RingBroken(reason) from error
            if not is_fault(self, error):
                raise
            self._engine.broken = True
            self._engine.abort()  # the other members wait for this one
            raise RingFault.of(error) from error

    def is_failure(self, error: BaseException) -> bool:
        """Tell whether the framework raised `error` because a collective failed; if so, the ring counts as broken."""
        failed = isinstance(error, RingBroken) or self._failed(error)
        self._engine.broken = self._engine.broken or failed
        return failed

    def _seat(self) -> Place:
        if self.place is None:
            raise RingBroken("this process is in no ring")
        return self.place

    def _generation(self) -> int:
        return self.place.generation if self.place else 0


def _let_go(engine: RingEngine, generations: range | None = None) -> None:
    """Leave its ring in the background, but not a ring that forms there meanwhile."""
    place = engine.place
    if generations is None:
        if place is None:
            return
        generations = range(place.generation, place.generation + 1)
    threading.Thread(target=engine.leave, args=(generations,), name="edl-leaving", daemon=True).start()
