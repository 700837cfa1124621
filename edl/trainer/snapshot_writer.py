"""Copy a trainer's part of a checkpoint while the trainer computes the next mini-batch.

Owns: what is copied when, and the files in which its daemon finds it. Does not own: whether and after which step
(`edl.core.checkpoint`), what the state is made of (`edl.trainer.framework_port`, `extras`), nor making it durable
(`edl.daemon.part_store`).

What a script may see or change before an update is copied at once. The rest does not change until the update, which
waits for the copy. When a job is preempted while its script is busy with something else, another thread copies all of
it, and the next update waits for that, too. What the forward pass of the next mini-batch may have begun to change is
copied as it is then.

Files that the daemon has read are written again: memory that was touched before is filled faster. For the first copy it
is touched beside the second mini-batch of this process.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from edl.checkpoints.worker_stages import WorkerStage, whole
from edl.core.worker.worker_inputs import CopyFailed, CopyTaken
from edl.errors import CheckpointError, said_of
from edl.protocol.assignment import Place
from edl.protocol.checkpoint_record import SPARE, Save
from edl.trainer import random_states
from edl.trainer.framework_port import Framework, Snapshot, StatePiece
from edl.trainer.limb_agreement import StageExchange
from edl.trainer.registered_state import RegisteredState, Stored

if TYPE_CHECKING:
    from edl.checkpoints.manifest import Belongs, Slice, StoredTensor
    from edl.checkpoints.part_files import PartPlan
import platform
import sys
from typing import Final

LIBRARIES: Final = ("torch", "tensorflow", "keras", "horovod", "numpy", "lightning", "transformers", "accelerate")


def versions() -> dict[str, str]:
    """Return Python's version, and those of libraries that are imported in this process.

    A checkpoint keeps them, to explain why two runs differ.
    """
    imported = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    return {"python": platform.python_version(), **{name: str(one) for name, one in imported.items() if one}}


logger = logging.getLogger("edl")

TOGETHER = 1 << 20  # bytes that are written by one call, as are
MOST_TOGETHER = 512  # pieces: each call gives way to the training thread, which is slow to give way in turn
CHANGED = "the script changed the model outside of an update while it was copied"
BEGUN = "its next update had begun"
OTHERS = "the script has other weights in the model than those that it trains, or has changed them since the update"
NONE = -1  # no step


class Reader(Protocol):
    """Read the bytes of a tensor, once or more often."""

    def __call__(self) -> memoryview: ...


class SnapshotWriter:
    """Copy the state of one trainer. Methods run on the training thread unless they say otherwise."""

    def __init__(
        self, framework: Framework, extras: RegisteredState, hear: Callable[[CopyTaken | CopyFailed], object]
    ) -> None:
        """Call `hear` with each result, on any thread."""
        self.idle = True  # an attribute, because each step asks
        self._framework = framework
        self._extras = extras
        self._hear = hear
        self._copying: _Copying | None = None
        self._beside: Future[None] | None = None
        self._taking = threading.Lock()  # what is copied beside the script, or is waited for
        self._updates = NONE  # the step that an update is being made after, or was: asked in each step
        self.witness: object = None  # of the newest step
        self._thread = ThreadPoolExecutor(1, "edl-copy")  # one that stays: starting another waits until it runs
        self._has_spare = False  # memory for a copy is touched, or will be before the next one is taken
        self._limb, self._processes = 0, 1  # this process's place among those of its worker
        self._stages: StageExchange | None = None  # of several

    def join_limbs(self, limb: int, processes: int, stages: StageExchange) -> None:
        self._limb, self._processes = limb, processes
        self._stages = stages

    def prepare(self, place: Place, folder: Path) -> None:
        """Touch memory for a copy, once, on the other thread; after an update, when it is known what there is to copy.

        What must be read in full on the training thread, as a session's variables, is not read for that.
        """
        if self._has_spare:
            return
        self._has_spare = True
        try:
            with _no_collection():
                number = place.rank * self._processes + self._limb
                size = sum(one.bytes for one in self._laid_out(place.size, beside=True).plan.here[number])
        except Exception as error:  # noqa: BLE001 - it is but slower without
            logger.debug("no memory is touched before the first copy: %s", said_of(error))
        else:
            self._thread.submit(_touch, folder / SPARE, size)

    def take(self, save: Save, folder: Path) -> None:
        """Begin a copy; return once the script may go on. `hear` gets the result later, or at once."""
        self.finish()
        began = time.perf_counter()
        try:
            with _no_collection():
                copying = self._begun(save, folder)
        except Exception as error:  # noqa: BLE001 - training goes on whatever it is, and the job hears of it
            said = said_of(error)
            logger.warning("this worker has no part in checkpoint %d: %s", save.number, said)
            self._hear(CopyFailed(save.number, said))
            return
        copying.stall_s = time.perf_counter() - began
        self._copying = copying
        self.idle = False
        copying.start(self._thread)

    def take_beside(self, save: Save, folder: Path, stands: Callable[[], bool]) -> None:
        """Begin a copy from any thread, and return at once. `stands`: the script is still between the two updates."""
        with self._taking:
            self.idle = False
            self._beside = self._thread.submit(self._take_beside, save, folder, stands)

    def _take_beside(self, save: Save, folder: Path, stands: Callable[[], bool]) -> None:
        try:
            if not stands() or self._updates == save.after_step:
                raise CheckpointError(BEGUN)
            copying = self._begun(save, folder, beside=True)
            copying.more = self._is_as_it_was
            if not self._is_as_it_was():
                raise CheckpointError(OTHERS)
        except Exception as error:  # noqa: BLE001 - training goes on whatever it is, and the job hears of it
            said = said_of(error)
            logger.warning("this worker has no part in checkpoint %d: %s", save.number, said)
            self._hear(CopyFailed(save.number, said))
        else:
            copying.run()

    def _is_as_it_was(self) -> bool:
        return self._framework.is_as(self.witness)

    def before_update(self, step: int) -> None:
        """Finish copies: the update that follows `step` is the next change to what is copied."""
        self._updates = step
        while not self.idle:
            self._updates = NONE  # what is to be copied may be, as this thread waits
            self.finish()
            self._updates = step

    def note_no_update(self) -> None:
        self._updates = NONE

    def finish(self) -> None:
        """Wait for copies, before anything changes what is copied. Harmless if there are none."""
        with self._taking:
            copying, self._copying = self._copying, None
            beside, self._beside = self._beside, None
            self.idle = True
        if beside is not None:
            wait([beside])
        if copying is not None:
            copying.finish()

    def _begun(self, save: Save, folder: Path, *, beside: bool = False) -> _Copying:
        from edl.checkpoints.manifest import checksum_of
        from edl.checkpoints.part_files import Own, PartCopy, StateHead

        self._has_spare = True
        stage, snapshot, registered, own_tensors, tensors, (parts, here) = self._laid_out(save.parts, beside=beside)
        save = msgspec.structs.replace(
            save, part=save.part * self._processes + self._limb, parts=save.parts * self._processes
        )
        described = (self._framework.name, snapshot.description, registered.tree)
        head = StateHead(*described, tensors, parts, versions(), stage.processes)
        is_first = save.part == stage.processes[0]  # at rank 0
        witness = "" if self._stages is None else self._stages.witness()
        layout = checksum_of(msgspec.msgpack.encode((tensors, parts, witness))) if self._processes > 1 else ""
        own = Own(random_states.taken(self._framework), head if is_first else None, layout, stage.number)
        slices, known = parts[save.part], {tensor.name: tensor for tensor in tensors}
        late = tensors[len(own_tensors) :]
        readers: dict[str, Reader] = {of.name: one.read for of, one in zip(late, snapshot.late, strict=True)}
        if is_first:
            readers |= {of.name: _of(bytes(one.read())) for of, one in zip(own_tensors, snapshot.early, strict=False)}
        more = own_tensors[len(snapshot.early) :]
        readers |= {of.name: _of(one.raw) for of, one in zip(more, registered.contents, strict=True)}
        content = PartCopy(
            save,
            tuple(known[name] for name in dict.fromkeys(piece.tensor for piece in slices)),
            slices,
            msgspec.msgpack.encode(own),
        )
        (folder / _about(save)).write_bytes(msgspec.msgpack.encode(content))
        pieces = [(readers[one.tensor], one) for one in here[save.part]]
        return _Copying(save, folder, pieces, snapshot.whole, self._hear)

    def _laid_out(self, workers: int, *, beside: bool) -> _LaidOut:
        from edl.checkpoints.checkpoint_names import registered_tensor
        from edl.checkpoints.manifest import StoredTensor
        from edl.checkpoints.part_files import cut

        stage = whole(1) if self._stages is None else self._stages.stage

        def stored(one: StatePiece) -> StoredTensor:
            name, dtype, shape, size = one.form
            if not one.of_model:
                return StoredTensor(stage.name(name), dtype, shape, size, "optimizer")
            belongs: Belongs = "stage" if name in stage.again else "model"
            return StoredTensor(stage.model_name(name), dtype, shape, size, belongs)

        snapshot = self._framework.snapshot(beside=beside)
        registered = self._extras.stored(self._framework, self._processes)
        early, late = list(map(stored, snapshot.early)), list(map(stored, snapshot.late))
        more = [
            StoredTensor(stage.name(registered_tensor(one.path)), *one.form, "registered")
            for one in registered.contents
        ]
        of_rank_0 = (*early, *more)
        held = {of.name: one.held for of, one in zip(late, snapshot.late, strict=True) if one.held}
        held |= {of.name: one.held for of, one in zip(more, registered.contents, strict=True) if one.held}
        parted = cut(of_rank_0, late, workers, self._processes, held, stage.processes)
        return _LaidOut(stage, snapshot, registered, of_rank_0, (*of_rank_0, *late), parted)


class _LaidOut(NamedTuple):
    """The state to copy, and the bytes of it that each process of each worker copies."""

    stage: WorkerStage
    snapshot: Snapshot
    registered: Stored
    of_rank_0: tuple[StoredTensor, ...]  # that it alone copies, or of sharded ones its processes
    tensors: tuple[StoredTensor, ...]  # these, and all others
    plan: PartPlan


class _Copying:
    """A single copy, made on another thread."""

    def __init__(
        self,
        save: Save,
        folder: Path,
        pieces: Sequence[tuple[Reader, Slice]],
        whole: Callable[[], bool],
        hear: Callable[[CopyTaken | CopyFailed], object],
    ) -> None:
        self.stall_s = 0.0
        self.more: Callable[[], bool] = lambda: True  # is so of what is whole
        self._save = save
        self._folder = folder
        self._pieces = pieces
        self._whole = whole
        self._hear = hear
        self._running: Future[None] | None = None
        self._failure = ""
        self._turn = threading.Lock()
        self._awaited = False
        self._done = False

    def start(self, thread: ThreadPoolExecutor) -> None:
        self._running = thread.submit(self.run)

    def finish(self) -> None:
        """Wait for the copy: the training thread is about to change what is copied."""
        with self._turn:
            if self._done:
                return
            self._awaited = True
        began = time.perf_counter()
        assert self._running is not None
        wait([self._running])
        self.stall_s += time.perf_counter() - began
        self._tell()

    def run(self) -> None:
        try:
            self._write()
            if not (self._whole() and self.more()):
                self._failure = CHANGED
        except Exception as error:  # noqa: BLE001 - training goes on whatever it is, and the job hears of it
            self._failure = said_of(error)
        with self._turn:
            self._done = not self._awaited
        if self._done:
            self._tell()

    def _write(self) -> None:
        file = self._folder / _bytes(self._save)
        try:
            (self._folder / SPARE).rename(file)
        except FileNotFoundError:
            file.touch(mode=0o600)
        with file.open("r+b", buffering=0) as opened:
            views = (read()[piece.offset : piece.end] for read, piece in self._pieces)
            write_together(opened.fileno(), views)
            opened.truncate()

    def _tell(self) -> None:
        save = self._save
        if self._failure:
            logger.warning("this worker has no part in checkpoint %d: %s", save.number, self._failure)
            self._hear(CopyFailed(save.number, self._failure))
        else:
            self._hear(CopyTaken(save.number, (_about(save), _bytes(save)), round(1000 * self.stall_s, 2)))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    # A description of the state is so many objects, for a moment, that the garbage collector would look through all
    # that the process has, while training waits.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _touch(spare: Path, size: int) -> None:
    if not size:
        return
    try:
        spare.touch(mode=0o600)
        with spare.open("r+b", buffering=0) as opened:
            os.posix_fallocate(opened.fileno(), 0, size)
    except OSError as error:
        logger.debug("no memory is touched before the first copy: %s", said_of(error))


def write_together(file: int, views: Iterator[memoryview]) -> None:
    """Write all views one behind the other, many in one call."""
    for group in _grouped(views):
        _write_all(file, group)


def _grouped(views: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    group: list[memoryview] = []
    size = 0
    for view in views:
        group.append(view)
        size += len(view)
        if size >= TOGETHER or len(group) == MOST_TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group


def _write_all(file: int, views: list[memoryview]) -> None:
    while views:
        done = os.writev(file, views)
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if views:
            views[0] = views[0][done:]


def _of(copy: bytes) -> Reader:
    return lambda: memoryview(copy)


def _about(save: Save) -> str:
    return f"copy.{save.number}.about"


def _bytes(save: Save) -> str:
    return f"copy.{save.number}.bytes"
