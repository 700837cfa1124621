"""The port between the runtime and a framework: all that the trainer needs to know of torch or TensorFlow.

Owns: the shape of that port. Does not own: anything behind it (`edl.torch`, `edl.tensorflow`), nor when its methods are
called (`edl.trainer.trainer`). The runtime imports no framework; the faces hand it one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from edl.checkpoints.worker_stages import ElementRun
from edl.collectives.ring_port import Ring
from edl.core.worker.worker_inputs import WHOLE, StatePortion
from edl.protocol.divergence_report import Fingerprint
from edl.trainer.data.sample_ids import Among
from edl.trainer.updates_due import UpdatesDue
from edl.trainer.value_tree import Tensors
from edl.trainer.virtual_steps import PartSums
from edl.transport.state_stream import Contents

LONG_BYTES = 1 << 25  # of the host's memory: to read them takes long enough for a thread of its own
WRAP_IT = "edl.Optimizer was not given: wrap it; or, if it trains what is each worker's own, call edl.local(optimizer)"


class Parted(NamedTuple):
    """A model in two parts: what a script may see or change before an update, and the rest."""

    description: bytes  # of both, without contents
    early: bytes  # a copy
    late: Contents  # parameters and what optimizers keep, where they lie: only an update changes them


class Late(NamedTuple):
    """The second part of a peer's state, as this process takes it over."""

    take: Callable[[memoryview], None]  # before an update
    unpack: Callable[[Callable[[int], memoryview]], None] | None = None
    """Work that can be done before `take`, on a thread of its own, while the script computes. Its argument waits for so
    many bytes, or for all that come, and raises StreamBroken.
    """


class Fill(Protocol):
    """Put bytes of a tensor of a checkpoint into a buffer, from an offset on as many as it has room for."""

    def __call__(self, number: int, into: memoryview, offset: int = 0) -> None: ...


class StatePiece(NamedTuple):
    """A tensor of a model or an optimizer, where it lies."""

    form: tuple[str, str, tuple[int, ...], int]  # name, type, shape, bytes: of the whole tensor
    read: Callable[[], memoryview]  # the bytes that are here; any thread
    of_model: bool = True
    held: Sequence[
        Sequence[ElementRun]
    ] = ()  # of a sharded tensor: the bytes of it that each process of a worker writes


class Snapshot(Protocol):
    """The model as it is now, for a checkpoint."""

    @property
    def description(self) -> bytes:
        """Description of all of it, without contents."""

    @property
    def early(self) -> Sequence[StatePiece]:
        """Tensors that scripts and forward passes may change from now on."""

    @property
    def late(self) -> Sequence[StatePiece]:
        """Tensors that only an update changes."""

    def whole(self) -> bool:
        """Tell whether nothing of `late` has been changed since."""


class Apart(Protocol):
    """A model's state in parts, each of which is moved by itself and not by the ring."""

    def given(self) -> bool:
        """Tell whether a peer's state may be sent so: each update of this script waits for what comes beside it."""

    def size(self) -> int:
        """Return the bytes that may go over several steps; 0: the state goes beside one."""

    def parted(self, portion: StatePortion = WHOLE) -> Parted:
        """Return this worker's state, or a portion; those between the first and the last have no early part."""

    def expect(self) -> None:
        """Let the update of the mini-batch that begins wait for a peer's state, or a portion of it."""

    def take_early(self, description: bytes, early: memoryview) -> Late:
        """Take over a peer's described state, or a portion; return what takes the rest.

        A portion without an early part is taken on any thread, while the script computes. Raises UsageError where the
        model of this process is not the peer's, or not built yet.
        """

    def raw(self, contents: Sequence[Any]) -> bytes: ...

    def put(self, contents: Sequence[Any], raw: memoryview) -> None:
        """Fill contents of the same sizes in the same order with `raw`."""


class Framework(Protocol):
    """A framework in this process. Methods run on the training thread unless they say otherwise."""

    @property
    def ring(self) -> Ring:
        """The framework's own Horovod: torch's and TensorFlow's are two libraries with two global states."""

    @property
    def sort(self) -> Tensors:
        """Values of this framework that scripts may register."""

    @property
    def stored_sort(self) -> Tensors:
        """Return `sort` for checkpoints: a tensor of which this process holds a part is described as the whole one."""

    def broadcast(self, contents: Sequence[Any], root: int) -> int:
        """Fill `contents` with those of rank `root`, in place; return the bytes moved.

        They are what `sort` calls contents, and numpy's bytes. Every member of the ring must call it, with contents of
        the same sizes in the same order. Raises RingBroken.
        """

    @property
    def name(self) -> str:
        """Name of the framework in checkpoints."""

    def snapshot(self, *, beside: bool = False) -> Snapshot:
        """Return the state for a checkpoint. Raises UsageError where the model is not built yet.

        `beside`: on any thread, while the script is at something that is no update, and none can begin that edl is
        asked about. What begins all the same is noticed by `whole`. Raises UsageError where this cannot be had.
        """

    def witness(self) -> Any:
        """Note a little of all that an update changes, after each step. It costs microseconds."""

    def is_as(self, witness: Any) -> bool:
        """Tell whether the model may be that of the step of `witness`: nothing of it has changed. Any thread."""

    def restore(self, description: bytes, fill: Fill) -> None:
        """Take over model and optimizers from a description. `fill` puts a tensor's bytes into a buffer.

        Raises UsageError where the model of this process is another one, and what `fill` raises.
        """

    def random_states(self) -> dict[str, bytes]:
        """Return states of the framework's own random numbers, by name."""

    def put_random_states(self, states: dict[str, bytes]) -> None:
        """Restore what `random_states` gave in another process. Raises ValueError, RuntimeError."""

    def bytes_of(self, contents: Any) -> bytes:
        """Read `contents`, which `sort` or numpy's arrays know."""

    def fill_stored(self, contents: Any, fill: Callable[[memoryview, int], None]) -> None:
        """Fill `contents`, or what this process has of them, from the bytes of the whole.

        `fill` puts the bytes from a place on into a buffer; what it raises is raised.
        """

    def held_by(self, contents: Any, processes: int) -> Sequence[Sequence[ElementRun]]:
        """Return the bytes of sharded contents that each of a worker's processes writes; () of what is whole."""

    @property
    def apart(self) -> Apart | None:
        """Transfer of its state beside a step, to a newcomer or from another worker; None: it cannot."""

    def copied(self, contents: Sequence[Any]) -> Sequence[Any]:
        """Copy `contents`, for `fill`."""

    def fill(self, contents: Sequence[Any], copies: Sequence[Any]) -> None:
        """Put copies back into contents of the same sizes in the same order."""

    @property
    def built(self) -> bool:
        """Tell whether the model has all its variables; some make theirs with their first batch."""

    def synchronize(self, root: int) -> int:
        """Copy all that makes up the model from rank `root` to all members; return the bytes moved.

        Parameters, buffers, optimizer state, hyper-parameters. On the root nothing changes. Every member of the ring
        must call it, with the same root. Raises RingBroken; then the state of this process may be a mixture, so it must
        not become another's. Raises UsageError where the model of this process is not that of the root, or not
        built yet.
        """

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None:
        """Copy what is not learned: what forward passes update by themselves (batch norm), and hyper-parameters.

        Statistics are each worker's own while a ring stands. Hyper-parameters may differ after a void mini-batch, which
        some may have been in and some not. So this makes models equal where the weights are equal already. Every member
        of the ring must call it, with the same arguments. Raises RingBroken.
        """

    def fingerprints(self, more: Iterable[tuple[str, Any]]) -> list[Fingerprint]:
        """Return fingerprints of all that must be equal on all workers between steps (I15), and of `more`, by name.

        Weights, optimizer state with its counters, hyper-parameters; not what is each worker's own while a ring stands.
        In the same order on all workers. Nothing is copied.
        """

    def fingerprints_begun(self, more: Iterable[tuple[str, Any]]) -> Callable[[], list[Fingerprint]] | None:
        """Begin `fingerprints`, read on a thread of its own while the script computes; return a function that waits.

        It waits before the next update. The order is another one. What a script changes in the meantime may show, or
        not. None: there are fewer than `LONG_BYTES`, on all workers.
        """

    @property
    def knows(self) -> bool:
        """Tell whether the framework knows of something that the script trains, be it averaged or not."""

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        """Set this worker's weight in the coming steps: its own samples divided by those of all workers.

        `weightless`: no worker has samples in these steps, so they change nothing (I13): no update is made, in a ring
        of any size, also none of zero gradients, which momentum and weight decay would make one of.

        Gradients are multiplied by it and summed over the ring. It holds until it is set again, and it must be set
        again when the size of the ring changes. 1 / size on all workers is the even case, which costs nothing.
        """

    def scale_rates(self) -> None:
        """Let the wrapped optimizers multiply their learning rates by the factor of `set_rate`."""

    def set_rate(self, factor: float) -> None:
        """Set the factor of the coming steps."""

    def measure_noise(self) -> None:
        """Prepare to note norms of gradients in some steps. Raises UsageError if that is impossible."""

    def expect_noise(self, *, due: bool) -> None:
        """Turn noise measurement on or off from the next step, on all workers alike."""

    def take_noise(self) -> tuple[float, float] | None:
        """Return `edl.policy.learning.of_step` of the newest step, in which norms were noted; None if unknown."""

    def adding_up(self) -> AbstractContextManager[None]:
        """Return a context in which gradients only add up in this worker."""

    def part_sums(self, trainer: StepPort) -> PartSums:
        """Return what adds up the parts of steps, in a job with virtual workers. Raises UsageError if it cannot."""

    def applied(self) -> float | None:
        """Return this worker's weight in the newest update since the last call; 0.0: no update; None: unknown.

        The audit needs it, and must not believe what `set_weight` was told.
        """

    def keep(self, *, only_statistics: bool) -> None:
        """Remember, until `put_back`, what a mini-batch of stand-ins makes of batch norm and its like.

        Without `only_statistics`, if no worker has samples, also whatever nothing else holds back from changing. It
        never remembers what a script may change on all workers alike.
        """

    def keep_hyper_parameters(self) -> None:
        """Remember hyper-parameters, too, for a void step or one without samples, before the script uses gradients."""

    def put_back(self) -> None:
        """Restore all that was remembered."""

    @property
    def updates_due(self) -> UpdatesDue:
        """The mini-batches in which this script makes updates, where that can be seen."""

    def drop_kept(self) -> None:
        """Forget what was remembered: that mini-batch never came."""

    def note_living(self) -> None:
        """Note what lives now, as Python's collector is about to stop listing it."""

    def discard(self) -> None:
        """Forget the collectives of a step that was voided (I8). Called once the broken ring has been left."""


class StepPort(Protocol):
    """The trainer as adapters use it: the other half of the port."""

    @property
    def voided(self) -> bool:
        """True from the first `void` of a mini-batch until its end."""

    @property
    def weightless(self) -> bool:
        """Tell whether no worker has samples in this mini-batch, which then changes nothing (I13)."""

    def keep_in_step(self) -> None:
        """Keep the script's pipeline, which is inside a graph, from reading beyond the mini-batch being worked on."""

    @property
    def virtual(self) -> int:
        """Virtual workers of the job; 0: it has none, and gradients are averaged as they come."""

    @property
    def among(self) -> Among:
        """The processes of this worker that divide its samples."""

    def step(self) -> int: ...

    def before_reduce(self) -> None:
        """Call it before the first collective of each step."""

    def before_update(self) -> None:
        """Call it before anything of an update is made, or what it would change is looked at for it."""

    def await_state(self) -> None:
        """Call it, from any thread, for `before_update` if an update goes into other memory than what is copied."""

    def waited(self, nanoseconds: int) -> None:
        """Note for how long this worker has just waited for its peers."""

    def void(self, error: BaseException) -> None:
        """Void the mini-batch, as a collective of it failed: its update must not be applied (I8)."""

    def void_beside(self, error: BaseException) -> None:
        """Void the coming mini-batch, or one without an update yet, as a collective beside mini-batches failed."""

    @property
    def committed(self) -> int: ...

    def rank(self) -> int: ...
