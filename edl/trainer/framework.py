"""The port between the runtime and a framework: all that the trainer needs to know of torch or TensorFlow.

Owns: the shape of that port. Does not own: anything behind it (`edl.torch`, `edl.tensorflow`), nor when its methods are
called (`edl.trainer.trainer`). The runtime imports no framework; the faces hand it one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from edl.collectives.ring import Ring
from edl.core.worker.inputs import WHOLE, StatePortion
from edl.protocol.divergence import Fingerprint
from edl.trainer.tree import Tensors
from edl.trainer.updates_due import UpdatesDue
from edl.transport.stream import Contents

LONG_BYTES = 1 << 25  # of the host's memory: to read them takes long enough for a thread of its own


class Parted(NamedTuple):
    """What makes up a model, in two parts: what a script may see or change before an update, and the rest."""

    description: bytes  # of both, without contents
    early: bytes  # a copy
    late: Contents  # parameters and what optimizers keep, where they lie: only an update changes them


class Late(NamedTuple):
    """The second part of a peer's state, as this process takes it over."""

    take: Callable[[memoryview], None]  # before an update
    unpack: Callable[[Callable[[int], memoryview]], None] | None = None
    """What can be done before, on a thread of its own, while the script computes. It is given what waits for so many
    bytes, or for all that come, and raises StreamBroken.
    """


class StatePiece(NamedTuple):
    """One tensor of a model or an optimizer, as it lies there."""

    form: tuple[str, str, tuple[int, ...], int]  # name, type, shape, bytes
    read: Callable[[], memoryview]  # its bytes; any thread
    of_model: bool = True


class Snapshot(Protocol):
    """All that makes up a model, as it is now, for a checkpoint."""

    @property
    def description(self) -> bytes:
        """Of all of it, without contents."""

    @property
    def early(self) -> Sequence[StatePiece]:
        """What scripts and forward passes may change from now on."""

    @property
    def late(self) -> Sequence[StatePiece]:
        """What only an update changes."""

    def whole(self) -> bool:
        """Nothing of `late` has been changed since."""


class Apart(Protocol):
    """A model's state in parts, each of which is moved by itself and not by the ring."""

    def given(self) -> bool:
        """Whether a peer's may be sent so: each update that this script makes waits for what comes beside it."""

    def size(self) -> int:
        """Bytes of what may go over several steps; 0: it goes beside one."""

    def parted(self, portion: StatePortion = WHOLE) -> Parted:
        """That of this worker now, or a portion of it: those between the first and the last have no early part."""

    def expect(self) -> None:
        """Beside the mini-batch that begins a peer's state comes, or a portion of it: its update waits for that."""

    def take_early(self, description: bytes, early: memoryview) -> Late:
        """Take over what a peer has described, or a portion of it; what is returned takes the rest. A portion without
        an early part on any thread, while the script computes.

        Raises UsageError where the model of this process is not the peer's, or not built yet.
        """

    def raw(self, contents: Sequence[Any]) -> bytes:
        """What is in them now."""

    def put(self, contents: Sequence[Any], raw: memoryview) -> None:
        """Fill contents of the same sizes in the same order with that."""


class Framework(Protocol):
    """One framework in this process. All methods belong to the training thread."""

    @property
    def ring(self) -> Ring:
        """The framework's own Horovod. torch's and TensorFlow's are two libraries with two global states."""

    @property
    def sort(self) -> Tensors:
        """What of this framework scripts may register."""

    def broadcast(self, contents: Sequence[Any], root: int) -> int:
        """Fill `contents` with those of rank `root`, in place; returns the bytes moved.

        They are what `sort` calls contents, and numpy's bytes. Every member of the ring must call it, with contents
        of the same sizes in the same order. Raises RingBroken.
        """

    @property
    def name(self) -> str:
        """As checkpoints have it."""

    def snapshot(self, *, beside: bool = False) -> Snapshot:
        """Raises UsageError where the model is not built yet.

        `beside`: on any thread, while the script is at something that is no update, and none can begin that edl is
        asked about. What begins all the same is noticed by `whole`. Raises UsageError where this cannot be had.
        """

    def witness(self) -> Any:
        """Taken after each step: a little of all that an update changes. It costs microseconds."""

    def is_as(self, witness: Any) -> bool:
        """The model may be that of the step after which this was taken: nothing of it has changed. Any thread."""

    def restore(self, description: bytes, fill: Callable[[int, memoryview], None]) -> None:
        """Make model and optimizers what another process has described. `fill` puts the bytes of a tensor into a
        buffer; they are numbered as that one's snapshot had them, early ones first.

        Raises UsageError where the model of this process is another one, and what `fill` raises.
        """

    def random_states(self) -> dict[str, bytes]:
        """Of the framework's own random numbers, by a name."""

    def put_random_states(self, states: dict[str, bytes]) -> None:
        """What `random_states` gave in another process. Raises ValueError, RuntimeError."""

    def bytes_of(self, contents: Any) -> bytes:
        """What is in one of the contents that `sort` knows, or numpy's, now."""

    def put_bytes(self, contents: Any, raw: memoryview) -> None:
        """Fill it with that."""

    @property
    def apart(self) -> Apart | None:
        """How its state goes to a newcomer, or comes from another worker, beside a step; None: it cannot."""

    def copied(self, contents: Sequence[Any]) -> Sequence[Any]:
        """What is in them now, for `fill`."""

    def fill(self, contents: Sequence[Any], copies: Sequence[Any]) -> None:
        """Put copies back into contents of the same sizes in the same order."""

    @property
    def built(self) -> bool:
        """Whether the model has all its variables yet; some make theirs with their first batch."""

    def synchronize(self, root: int) -> int:
        """Copy all that makes up the model from rank `root` to all members; returns the bytes moved.

        Parameters, buffers, optimizer state, hyper-parameters. On the root nothing changes. Every member of the ring
        must call it, with the same root. Raises RingBroken; then the state of this process may be a mixture, so it must
        not become another's. Raises UsageError where the model of this process is not that of the root, or not
        built yet.
        """

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None:
        """Copy all but what is learned: what forward passes update by themselves (batch norm), and hyper-parameters.

        Statistics are each worker's own while a ring stands. Hyper-parameters may differ after a void mini-batch, which
        some may have been in and some not. So this makes models equal where the weights are equal already. Every member
        of the ring must call it, with the same arguments. Raises RingBroken.
        """

    def fingerprints(self, more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
        """Of all that must be equal on all workers between two steps (I15), and of `more`, named parts of other state.

        Weights, optimizer state with its counters, hyper-parameters; not what is each worker's own while a ring stands.
        In the same order on all workers. Nothing is copied.
        """

    def fingerprints_begun(self, more: Iterable[tuple[str, Any]]) -> Callable[[], list[Fingerprint]] | None:
        """The same in another order, read on a thread of its own while the script computes; what is returned waits for
        them, before the next update. What a script changes in the meantime may show, or not.

        None: there are fewer than `LONG_BYTES`, on all workers.
        """

    @property
    def knows(self) -> bool:
        """It knows of something that the script trains, be it averaged or not."""

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        """The share of this worker in the coming steps: its own samples divided by those of all workers.

        `weightless`: no worker has samples in these steps, so they change nothing (I13): no update is made, in a ring
        of any size, also none of zero gradients, which momentum and weight decay would make one of.

        Gradients are multiplied by it and summed over the ring. It holds until it is set again, and it must be set
        again when the size of the ring changes. 1 / size on all workers is the even case, which costs nothing.
        """

    def scale_rates(self) -> None:
        """From now on the wrapped optimizers multiply their learning rates by what `set_rate` says."""

    def set_rate(self, factor: float) -> None:
        """The factor of the coming steps, until it is set again."""

    def measure_noise(self) -> None:
        """In some steps norms of gradients will be noted. Raises UsageError where that cannot be."""

    def expect_noise(self, *, due: bool) -> None:
        """Whether that is so in the coming steps, until it is set again; on all workers alike."""

    def take_noise(self) -> tuple[float, float] | None:
        """`edl.policy.noise.of_step` of the step that was made last, one in which they were; None where that cannot be
        told.
        """

    def adding_up(self) -> AbstractContextManager[None]:
        """Inside, gradients only add up in this worker."""

    def applied(self) -> float | None:
        """The weight of this worker in the newest update since the last call: 0.0 where none was made, None where that
        cannot be seen. For the audit, which must not believe what `set_weight` was told.
        """

    def keep(self, *, only_statistics: bool) -> None:
        """Before the forward passes of a mini-batch of stand-ins: remember, until `put_back`, what batch norm and its
        like keep of them, and nothing that a script may change on all workers alike. Without `only_statistics`, which
        is where no worker has samples, also whatever nothing else holds back from changing.
        """

    def keep_hyper_parameters(self) -> None:
        """Where no worker has samples, or the step is void, before what the script does on gradients: those, too."""

    def put_back(self) -> None:
        """All that was remembered is again as it was then."""

    @property
    def updates_due(self) -> UpdatesDue:
        """In which mini-batches this script makes updates, where that can be seen."""

    def drop_kept(self) -> None:
        """Forget what was remembered: that mini-batch never came."""

    def note_living(self) -> None:
        """What lives now is about to be kept from Python's collector, which lists it no longer."""

    def discard(self) -> None:
        """Forget the collectives of a step that was voided (I8). Called once the broken ring has been left."""


class StepPort(Protocol):
    """What an adapter asks of the trainer: the other half of the port. `edl.trainer.trainer.Trainer` is one."""

    @property
    def voided(self) -> bool:
        """True from the first `void` of a mini-batch until its end."""

    @property
    def weightless(self) -> bool:
        """No worker has samples in the mini-batch being worked on: it changes nothing (I13). All find it alike."""

    def keep_in_step(self) -> None:
        """The script's pipeline, which is inside a graph, may not read beyond the mini-batch being worked on."""

    def step(self) -> int:
        """Number of the mini-batch being worked on."""

    def before_reduce(self) -> None:
        """Called before the first collective of each step."""

    def before_update(self) -> None:
        """Called before anything of an update is made, or what it would change is looked at for it."""

    def await_state(self) -> None:
        """The same, where an update goes into other memory than what is being copied; any thread."""

    def waited(self, nanoseconds: int) -> None:
        """So long this worker has just waited for its peers."""

    def void(self, error: BaseException) -> None:
        """A collective of this step failed: the mini-batch is void, and its update must not be applied (I8)."""

    def void_beside(self, error: BaseException) -> None:
        """A collective beside the mini-batches failed: the coming one is void, or the one without an update yet."""

    @property
    def committed(self) -> int:
        """The newest step that is committed."""

    def rank(self) -> int:
        """The rank of this worker in the present ring."""
