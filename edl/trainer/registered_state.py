"""State of the script's own that a newcomer must receive: `edl.register(best_loss=9e9, ema=ema, scheduler=scheduler)`.

Owns: what was registered, giving it to all members, and which of it must be equal on all workers (I15). Does not own:
its form (`edl.trainer.packing`), nor when it goes (`edl.trainer.worker_shell`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from edl.checkpoints.worker_stages import ElementRun
from edl.errors import UsageError
from edl.trainer.framework_port import Apart, Fill, Framework
from edl.trainer.packing import Packing, Unpacking, has_state
from edl.trainer.value_tree import Arrays, CannotTravel, Content, Node, Tensors

Leaf = tuple[str, Any]


def compared(
    value: Any, path: str, sorts: Sequence[Tensors], *, within: bool = False, own: Collection[str] = ()
) -> Iterator[Leaf]:
    """Yield the tensors and plain values that must be equal on all workers, under names that are the same there.

    Modules, models, tensors, variables and all objects with a `state_dict()` are compared: training goes on by these.
    Numbers, text and arrays of numpy that a script registers by themselves are the worker's own: each worker may count
    its samples in one. They stay so when the script puts a tensor in their place, as some workers do before others: a
    best loss, say.

    `within` a state, all values count; those at one of the `own` paths never do.
    """
    if path in own:
        return
    try:
        tensors = _tensors(value, path, sorts)
    except CannotTravel:  # said where it was registered, and again where it is to travel
        return
    if tensors is not None:
        yield from (leaf for leaf in tensors if within or type(leaf[1]) is not np.ndarray)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from compared(item, f"{path}[{key!r}]", sorts, within=within, own=own)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from compared(item, f"{path}[{place}]", sorts, within=within, own=own)
    elif has_state(value):
        yield from compared(value.state_dict(), f"{path}.state_dict()", sorts, within=True)
    elif within:
        yield path, value


def own_paths(value: Any, path: str, sorts: Sequence[Tensors]) -> Iterator[str]:
    """Name the places of plain values outside of any state: these stay the worker's own, whatever is assigned there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from own_paths(item, f"{path}[{key!r}]", sorts)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from own_paths(item, f"{path}[{place}]", sorts)
    elif not has_state(value):
        tensors = _tensors(value, path, sorts)
        if tensors is None or (tensors and all(type(leaf) is np.ndarray for _, leaf in tensors)):
            yield path


def _tensors(value: Any, path: str, sorts: Sequence[Tensors]) -> list[Leaf] | None:
    """Return tensors without statistics, which are each worker's own in a ring. None: it has no contents of its own."""
    for sort in sorts:
        parts = sort.parts(value)
        if parts is not None:
            shared = (part for part in parts if not part.is_statistic and not part.is_own)
            return [(f"{path}.{part.name}", part.tensor) for part in shared]
        if sort.form(value) is not None:
            return [(path, value)]
    return None


STANDING = "edl.standing"  # where the script stands: edl's own, and registered with the data, which may come later
CONTAINERS = (dict, list, tuple, set, frozenset)


class StoredContent(NamedTuple):
    """Contents that travel beside the tree of a checkpoint."""

    path: str
    form: tuple[str, tuple[int, ...], int]  # type, shape, bytes: of the whole tensor
    raw: bytes  # what this process has of it
    held: Sequence[Sequence[ElementRun]] = ()  # of a sharded one: the bytes that each process of a worker writes


class Stored(NamedTuple):
    tree: bytes
    contents: Sequence[StoredContent]


class RegisteredValues:
    """Registered values as attributes. Assign to them freely; what counts is what they hold at a switch.

    Values travel into what is here: tensors, arrays, variables, lists and dicts stay the objects that the script knows.
    """

    _extras: RegisteredState

    def __init__(self, extras: RegisteredState) -> None:
        object.__setattr__(self, "_extras", extras)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._extras.values[name]
        except KeyError:
            known = sorted(self._extras.values)
            raise AttributeError(f"{name!r} was not registered; registered are {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._extras.values:
            raise AttributeError(f"{name!r} was not registered: call edl.register({name}=...) first")
        if not isinstance(value, CONTAINERS):  # to look through those, in each step, is not worth an earlier error
            self._extras.check(_call(name), value)
        self._extras.values[name] = value


class RegisteredState:
    """Registered values by name: `values`, which the script changes through `RegisteredValues`."""

    def __init__(self, *sorts: Tensors) -> None:
        """`sorts`: what has contents, besides numpy's arrays."""
        self.values: dict[str, Any] = {}
        self._own: dict[str, frozenset[str]] = {}  # by name: where each worker's own values were when it was registered
        self._sorts: tuple[Tensors, ...] = (*sorts, Arrays())

    def add(self, values: Mapping[str, Any]) -> RegisteredValues:
        """Raise UsageError for what cannot travel."""
        for name, value in values.items():
            self.check(_call(name), value)
        self.values.update(values)
        own = {name: frozenset(own_paths(value, _call(name), self._sorts)) for name, value in values.items()}
        self._own.update(own)
        return RegisteredValues(self)

    def _mine(self, name: str) -> Any:
        """Return the object that an incoming value is put into; None: no object of this process."""
        mine = self.values.get(name)
        # A callback may hold what is in the first one; the parts of the other are made anew whenever one is asked for.
        return None if name == STANDING or getattr(mine, "replaced", False) else mine

    def check(self, call: str, value: Any) -> None:
        """Raise UsageError for what cannot travel."""
        try:
            Packing(self._sorts).of(value, call)
        except RecursionError:
            raise UsageError(f"{call}: a {type(value).__qualname__} that contains itself cannot travel") from None

    def _packed(self, sorts: Sequence[Tensors] = ()) -> tuple[dict[str, Node], list[Content]]:
        packing = Packing(sorts or self._sorts)
        return {name: packing.of(value, _call(name)) for name, value in self.values.items()}, packing.contents

    def synchronize(self, framework: Framework, root: int, *, is_root: bool) -> None:
        """Give all members the values of rank `root`. Raises RingBroken, and UsageError where they differ in form."""
        place = framework.ring.place
        if not self.values or (place is not None and place.size == 1):
            return
        if is_root:
            nodes, contents = self._packed()
            framework.ring.broadcast(msgspec.msgpack.encode(nodes), root)
            framework.broadcast([content.contents for content in contents], root)
            return
        coming, contents = self._coming(root, framework.ring.broadcast(None, root))
        framework.broadcast(contents, root)
        self.values.update({name: value() for name, value in coming.items()})

    def synchronize_statistics(self, framework: Framework, root: int) -> None:
        """Give members whose other values are equal what forward passes have updated by themselves."""
        place = framework.ring.place
        statistics = [content.contents for content in self._packed()[1] if content.is_statistic]
        if statistics and (place is None or place.size > 1):
            framework.broadcast(statistics, root)

    def parted(self, apart: Apart) -> tuple[bytes, bytes]:
        """Return all values: their tree, and their contents."""
        nodes, contents = self._packed()
        return msgspec.msgpack.encode(nodes), apart.raw([content.contents for content in contents])

    def take(self, apart: Apart, root: int, tree: bytes, raw: memoryview) -> None:
        """Take over the values of rank `root`. Raises UsageError where they differ in form."""
        coming, contents = self._coming(root, tree)
        apart.put(contents, raw)
        self.values.update({name: value() for name, value in coming.items()})

    def stored(self, framework: Framework, processes: int = 1) -> Stored:
        """Copy all values for a checkpoint, or what this one of the worker's `processes` has of them."""
        nodes, contents = self._packed(_stored_sorts(framework))
        stored = [_stored(number, content, framework, processes) for number, content in enumerate(contents)]
        return Stored(msgspec.msgpack.encode(nodes), stored)

    def restore(self, framework: Framework, tree: bytes, fill: Fill) -> None:
        """Take over values from a checkpoint. `fill` puts contents into a buffer.

        Raises UsageError where they differ in form.
        """
        nodes = msgspec.msgpack.decode(tree, type=dict[str, Node])
        if missing := nodes.keys() - self.values.keys() - {STANDING}:
            raise UsageError(f"edl.register(): {', '.join(sorted(missing))} of the checkpoint is not registered here")
        unpacking = Unpacking(_stored_sorts(framework), "{path} is not what it is in the checkpoint")
        coming = {name: unpacking.of(node, self._mine(name), _call(name)) for name, node in nodes.items()}
        for number, contents in enumerate(unpacking.contents):
            framework.fill_stored(contents, partial(fill, number))
        self.values.update({name: value() for name, value in coming.items()})

    def _coming(self, root: int, tree: bytes) -> tuple[dict[str, Callable[[], Any]], list[Any]]:
        """Return functions that give each value once its contents have come, and what these go into."""
        nodes = msgspec.msgpack.decode(tree, type=dict[str, Node])
        unpacking = Unpacking(self._sorts, f"{{path}} is not what it is on rank {root}")
        coming = {name: unpacking.of(node, self._mine(name), _call(name)) for name, node in nodes.items()}
        return coming, unpacking.contents

    def remember(self, framework: Framework) -> Callable[[], None]:
        """Remember all values. Return a function that restores them, in place as at a newcomer."""
        nodes, contents = self._packed()
        copies = framework.copied([content.contents for content in contents])

        def put_back() -> None:
            unpacking = Unpacking(self._sorts, "{path} is not what it was before a step without samples")
            coming = {name: unpacking.of(node, self._mine(name), _call(name)) for name, node in nodes.items()}
            framework.fill(unpacking.contents, copies)
            self.values.update({name: value() for name, value in coming.items()})

        return put_back

    def compared(self) -> list[Leaf]:
        """Return what must be equal on all workers, in one order, as dicts keep an order of their own.

        The script's standing is left out: a newcomer may know less of it.
        """
        found = (
            compared(value, _call(name), self._sorts, own=self._own.get(name, ()))
            for name, value in self.values.items()
            if name != STANDING and not getattr(value, "replaced", False)
        )
        return sorted((leaf for leaves in found for leaf in leaves), key=lambda leaf: leaf[0])


def _stored_sorts(framework: Framework) -> tuple[Tensors, ...]:
    return (framework.stored_sort, Arrays())


def _stored(number: int, content: Content, framework: Framework, processes: int) -> StoredContent:
    raw, form = framework.bytes_of(content.contents), content.sort.form(content.tensor)
    held = framework.held_by(content.contents, processes)
    size = sum(run.length for runs in held for run in runs) if held else len(raw)
    of = ("uint8", (size,), size) if form is None else (form.dtype, form.shape, size)
    return StoredContent(f"{number}.{content.path}", of, raw, held)


def value_of_root(framework: Framework, value: Any, root: int, call: str) -> Any:
    """Return a value of rank `root`, on all members, which call it at the same place.

    Raises RingBroken, and UsageError for what cannot travel.
    """
    sorts, place = (framework.sort, Arrays()), framework.ring.place
    if place is None or place.rank == root:
        packing = Packing(sorts)
        head = msgspec.msgpack.encode(packing.of(value, call))
        framework.ring.broadcast(head, root)
        framework.broadcast([content.contents for content in packing.contents], root)
        return value
    unpacking = Unpacking(sorts)
    node: Any = msgspec.msgpack.decode(framework.ring.broadcast(None, root), type=Node)
    coming = unpacking.of(node, None, call)
    framework.broadcast(unpacking.contents, root)
    return coming()


def check_registrable(registered: RegisteredValues, call: str, value: Any) -> None:
    """Raise UsageError, which begins with `call`, for what cannot travel."""
    registered._extras.check(call, value)


def _call(name: str) -> str:
    return f"edl.register({name}=...)"
