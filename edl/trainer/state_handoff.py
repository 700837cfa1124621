"""Transfer of one worker's state to newcomers while the first steps of their ring are computed.

The offer is announced when the newcomers' ring stands beside the current one; the state is sent once the sender has
come to that ring.

Owns: what is offered and under way for this trainer, and waiting for it before the update of a step. Does not own:
whether a state goes so (`edl.core.switch.generation_switch`), over how many steps (`edl.core.worker.model_state`),
what it is made of (`edl.trainer.framework_port`, `extras`), nor its connections (`edl.transport.state_stream`).

What a script may see or change before an update (hyper-parameters, buffers, registered values) is copied as the ring
begins, and arrives before a newcomer's script goes on. The rest does not change until the update, and is sent from
where it lies.

Over several steps there is a portion for each: it arrives before the update, which then changes it as on the sender.
What the script has derived from portions that had not come, such as an average of the weights, is wrong: so the last
portion brings all that was copied at first once more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import NamedTuple

import msgspec

from edl import background
from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.errors import RingBroken, UsageError
from edl.protocol.assignment import Place
from edl.trainer.framework_port import Framework, Late
from edl.trainer.registered_state import RegisteredState
from edl.transport.state_stream import PART_BYTES, Contents, StateReceiver, StateSender, StreamBroken

logger = logging.getLogger("edl")

REHEARSED_BYTES = 1 << 26  # what a larger state costs is its bytes, and it would be in memory twice


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Head of a portion. Early part and registered values follow it, and arrive before a newcomer's script goes on.

    A portion between the first and the last has neither.
    """

    description: bytes
    early_bytes: int
    tree: bytes  # of what is registered
    registered_bytes: int


class CopiedState:
    """Contents of a stream: copies, followed by what is sent from where it lies."""

    def __init__(self, copies: Iterable[bytes], late: Contents) -> None:
        self._copies = [memoryview(one) for one in copies]
        self._late = late
        self.size = sum(map(len, self._copies)) + late.size

    def part(self, begin: int) -> memoryview:
        for copy in self._copies:
            if begin < len(copy):
                return copy[begin : begin + PART_BYTES]
            begin -= len(copy)
        return self._late.part(begin)

    def whole(self) -> bool:
        return self._late.whole()


class OfferedState(NamedTuple):
    """An offer in a ring that stands, and that this worker has not come to."""

    place: Place
    giver: StateSender
    timeout_s: float


class StateSource(NamedTuple):
    """The sender of the portions that follow the first one."""

    place: Place
    root: int
    offer: int


class Coming(NamedTuple):
    """A portion whose head has arrived."""

    late: Late
    early_bytes: int  # that come before it, and are here already
    unpacked: Future[None]


class StateHandoff:
    """Move this trainer's state to newcomers, or receive it. On the training thread, if not said otherwise."""

    def __init__(self, framework: Framework, extras: RegisteredState) -> None:
        self.idle = True  # an attribute, because each step asks
        self.awaits = False  # our own state is on its way to us, or a portion of it
        self.withheld = False  # the script looks at all of its state at each switch
        self._framework = framework
        self._extras = extras
        self._offered: OfferedState | None = None
        self._place: Place | None = None
        self._giver: StateSender | None = None
        self._taker: StateReceiver | None = None
        self._newcomers = 0  # that we send to
        self._coming: Future[Coming] | None = None
        self._unpacked: Future[None] | None = None  # what may write into the model until then
        self._portion = WHOLE
        self._source: StateSource | None = None
        self._timeout_s = 0.0
        self._vain = range(0)  # rings of these generations come to nothing
        self._turn = threading.Lock()

    def rehearse(self) -> None:
        # A newcomer takes over its own state while no worker waits for it: the first time takes long.
        apart = self._framework.apart
        if apart is None or not apart.given():
            return
        try:
            parted = apart.parted()
        except UsageError:
            return  # what is wrong with the model is said where a state must be taken over
        if parted.late.size > REHEARSED_BYTES:
            return
        copy = bytearray()
        while len(copy) < parted.late.size:
            copy += parted.late.part(len(copy))
        apart.expect()
        late, whole = apart.take_early(parted.description, memoryview(bytearray(parted.early))), memoryview(copy)
        if late.unpack is not None:
            late.unpack(lambda size: whole[:size])
        late.take(whole)

    def offer(self, place: Place, timeout_s: float) -> int:
        """Offer our state in the prepared ring of `place`, from any thread. Return the offer's number; 0: no offer."""
        giver = _giver(place, timeout_s) if place.key and self._gives() else None
        if giver is None:
            return 0
        with self._turn:
            before, self._offered = self._offered, OfferedState(place, giver, timeout_s)
        _give_up(None if before is None else before.giver, None)
        return giver.number

    def withdraw(self, generation: int) -> None:
        """Withdraw the offer in this ring, or in one before. Any thread."""
        with self._turn:
            offered = self._offered
            if offered is None or offered.place.generation > generation:
                return
            self._offered = None
        _give_up(offered.giver, None)

    def keep_offer(self, generation: int) -> None:
        """Keep what was offered in a ring to which this worker has come: newcomers count on it. Raises RingBroken."""
        self.withheld = self.withheld or not self._gives()  # as the training thread sees it
        if self.withheld:
            self.withdraw(generation)
        with self._turn:
            offered, self._offered = self._offered, None
            if offered is not None and offered.place.generation == generation:
                self._place, self._giver, self._timeout_s = offered
                self.idle = False
                return
        _give_up(None if offered is None else offered.giver, None)
        raise RingBroken("this worker does not give its state beside a step any more")

    def send(self, newcomers: int, portion: StatePortion) -> None:
        """Send a portion to the newcomers. The first and the last one copy all that a script may change."""
        giver, apart = self._giver, self._framework.apart
        if apart is None or (giver is None and portion.is_first):
            raise RuntimeError("this worker has not kept to what it has offered")
        if giver is None:
            return  # the newcomers have not got the portion before, and this ring comes to nothing
        parted, tree, registered = apart.parted(portion), b"", b""
        if portion.is_first or portion.is_last:
            tree, registered = self._extras.parted(apart)
        head = Head(parted.description, len(parted.early), tree, len(registered))
        contents = CopiedState((parted.early, registered), parted.late)
        giver.give(msgspec.msgpack.encode(head), contents, portion.first)
        self._portion, self._newcomers = portion, newcomers

    def fetch(self, source: StateSource, timeout_s: float, portion: StatePortion) -> None:
        """Fetch the first portion; return once the script may go on. Raises RingBroken, UsageError.

        The root comes to that ring after its step, however long that takes: this waits until then, or until the ring is
        given up.
        """
        self.drop()
        self._timeout_s, self._source = timeout_s, source
        giver = _giver(source.place, timeout_s)  # for a newcomer that comes later
        with self._turn:
            self._place, self._giver = source.place, giver
        self.fetch_portion(portion)

    def fetch_portion(self, portion: StatePortion) -> None:
        """Fetch another portion of the same source. Raises RingBroken, UsageError.

        Returns once the script may go on: at once if the script sees none of the portion before its update.
        """
        apart, source = self._framework.apart, self._source
        if apart is None or source is None:
            raise self._lost("it cannot be taken over in parts")
        place, giver, timeout_s = source.place, self._giver, self._timeout_s
        here = 0 if giver is None else giver.number
        taker = StateReceiver(source.offer, place.key, place.generation, here, timeout_s, portion.first)
        with self._turn:
            self._taker, vain = taker, place.generation in self._vain
        if vain:  # that was heard before there was anything to give up
            raise self._lost("its ring is given up")
        self._portion, self._coming = portion, None
        self.idle, self.awaits = False, True
        apart.expect()

        def begin() -> Coming:
            received = taker.begin()
            if giver is not None:
                giver.give(received, taker, portion.first)
            head = msgspec.msgpack.decode(received, type=Head)
            early_bytes = head.early_bytes + head.registered_bytes
            copies = taker.wait_first(early_bytes, timeout_s)
            late = apart.take_early(head.description, copies[: head.early_bytes])
            unpacked = self._begin_unpacking(taker, late, early_bytes)
            if portion.is_first or portion.is_last:
                self._extras.take(apart, source.root, head.tree, copies[head.early_bytes :])
            return Coming(late, early_bytes, unpacked)

        if not (portion.is_first or portion.is_last):
            self._coming = background.begin(begin)
            return
        try:
            self._coming = background.done(begin())
        except StreamBroken as error:
            raise self._lost(error) from error

    def take(self) -> None:
        """Take over the rest of a portion before the update. Raises RingBroken, UsageError."""
        taker, begun = self._taker, self._coming
        if taker is None or begun is None:
            raise self._lost("it was given up")
        try:
            coming = begun.result(self._timeout_s)
            whole = taker.wait_whole(self._timeout_s)
            coming.unpacked.result(self._timeout_s)
        except (StreamBroken, TimeoutError) as error:
            raise self._lost(error) from error
        coming.late.take(whole[coming.early_bytes :])
        self.awaits, self._coming = False, None

    def wait_sent(self) -> None:
        """Wait before our own update until newcomers have the portion; the others get a state with the next ring."""
        giver, newcomers, self._newcomers = self._giver, self._newcomers, 0
        if giver is None or not newcomers:
            return
        sent = giver.wait_given(newcomers, self._timeout_s)
        if not sent:
            logger.warning("the state of this worker did not reach a newcomer beside the step")
        if not sent or self._portion.is_last:
            self.drop()

    def end(self) -> None:
        """End the step: wait until the newcomer that this worker passes the state on to has all of it."""
        if not self._portion.is_last:
            return
        if self._giver is not None and self._taker is not None and self._giver.asked:
            self._giver.wait_given(1, self._timeout_s)
        self.drop()

    def drop(self) -> None:
        """Drop all transfers: no thread waits for them or writes into this model any more. Harmless without any."""
        with self._turn:
            giver, taker, self._giver, self._taker = self._giver, self._taker, None, None
        self.idle, self.awaits, self._newcomers, self._coming, self._source = True, False, 0, None, None
        _give_up(giver, taker)
        with self._turn:
            unpacked, self._unpacked = self._unpacked, None
        if unpacked is not None:
            wait([unpacked])  # with the next tensor it finds that this was given up

    def abort(self, generations: range) -> None:
        """Give up, from any thread, transfers beside the first steps of rings that come to nothing."""
        with self._turn:
            self._vain = generations
            place, giver, taker = self._place, self._giver, self._taker
        if place is not None and place.generation in generations:
            _give_up(giver, taker)

    def _begin_unpacking(self, taker: StateReceiver, late: Late, begin: int) -> Future[None]:
        unpack, timeout_s = late.unpack, self._timeout_s
        if unpack is None:
            return background.done(None)

        def first(size: int) -> memoryview:
            if self._taker is not taker:
                raise StreamBroken("it was given up")
            return taker.wait_first(min(begin + size, taker.size), timeout_s)[begin:]

        with self._turn:
            unpacked = self._unpacked = background.begin(lambda: unpack(first))
        return unpacked

    def _gives(self) -> bool:
        apart = self._framework.apart
        return not self.withheld and apart is not None and apart.given()

    def _lost(self, why: object) -> RingBroken:
        return RingBroken(f"the state of this worker did not come beside the step: {why}")


def _giver(place: Place, timeout_s: float) -> StateSender | None:
    try:
        return StateSender(place.address, place.key, place.generation, timeout_s)
    except OSError as error:
        logger.warning("no state is sent from here beside a step: %s", error)
        return None


def _give_up(giver: StateSender | None, taker: StateReceiver | None) -> None:
    if giver is not None:
        giver.close()
    if taker is not None:
        taker.give_up("its ring is left")
