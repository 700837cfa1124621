"""Converting values to a tree with contents beside it, and back at a peer.

Owns: which values can travel, and which become what they were again in place. Does not own: the tree
(`edl.trainer.value_tree`), arrays and tensors (behind its port), nor what travels when
(`edl.trainer.registered_state`).

The receiver first lists what contents go into; they arrive; only then does any of its values change.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edl.errors import UsageError
from edl.trainer.value_tree import (
    CONTAINERS,
    BigInteger,
    Binary,
    CannotTravel,
    Content,
    Dictionary,
    Differs,
    Elements,
    Form,
    Item,
    Node,
    Parts,
    Scalar,
    Stateful,
    TensorPart,
    Tensors,
    dtype_of,
    dtype_text,
)

CAN_TRAVEL = (
    "numbers, text, bytes, arrays, tensors, modules, what has state_dict() and load_state_dict(), "
    "and lists, tuples, sets and dicts of them can"
)


def has_state(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


class Packing:
    """Describe values of this process, and list their contents in order."""

    def __init__(self, sorts: Sequence[Tensors]) -> None:
        self._sorts = sorts
        self.contents: list[Content] = []

    def of(self, value: Any, path: str) -> Node:
        """Describe a value. Raises UsageError, which names what cannot travel by `path`."""
        try:
            return _plain(value) or self._with_contents(value, path) or self._nested(value, path)
        except CannotTravel as error:
            raise UsageError(f"{path}: {error}") from None

    def _with_contents(self, value: Any, path: str) -> Node | None:
        for sort in self._sorts:
            parts = sort.parts(value)
            if parts is not None:
                return Parts(tuple((part.name, self._part(sort, part, path)) for part in parts))
            form = sort.form(value)
            if form is not None:
                self.contents.append(Content(path, sort, value))
                return form
        return None

    def _part(self, sort: Tensors, part: TensorPart, path: str) -> Form:
        form = sort.form(part.tensor)
        if form is None:
            raise CannotTravel(f"{part.name} is a {type(part.tensor).__name__}, which cannot travel")
        self.contents.append(Content(f"{path}.{part.name}", sort, part.tensor, part.is_statistic))
        return form

    def _nested(self, value: Any, path: str) -> Node:
        if isinstance(value, Mapping):
            return Dictionary(
                tuple((self._key(key, path), self.of(item, f"{path}[{key!r}]")) for key, item in value.items())
            )
        kinds: Any = CONTAINERS
        for name, container in kinds.items():
            if isinstance(value, container):
                return Elements(tuple(self.of(item, f"{path}[{place}]") for place, item in enumerate(value)), name)
        if has_state(value):
            return Stateful(self.of(value.state_dict(), f"{path}.state_dict()"))
        raise CannotTravel(f"a {type(value).__qualname__} cannot travel to a newcomer; {CAN_TRAVEL}")

    def _key(self, key: Any, path: str) -> Node:
        if isinstance(key, tuple):
            return Elements(tuple(self._key(item, path) for item in key), "tuple")
        plain = _plain(key)
        if plain is None:
            raise CannotTravel(
                f"a dict with a {type(key).__qualname__} as a key cannot travel; keys are numbers and text"
            )
        return plain


def _plain(value: Any) -> Node | None:
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)) and not value.dtype.hasobject:
        return Item(dtype_text(value.dtype), value.tobytes())
    if isinstance(value, (bytes, bytearray)):
        return Binary(bytes(value))
    if isinstance(value, int) and not isinstance(value, bool):
        number = int.__int__(value)
        return Scalar(number) if -(2**63) <= number < 2**63 else BigInteger(str(number))
    if isinstance(value, float):
        return Scalar(float.__float__(value))
    if value is None or isinstance(value, (bool, str)):
        return Scalar(str.__str__(value) if isinstance(value, str) else value)
    return None


class Unpacking:
    """Restore values that a peer has described; list what their contents go into, in the peer's order."""

    def __init__(self, sorts: Sequence[Tensors], complaint: str = "{path} is not the same on all workers") -> None:
        self._sorts = sorts
        self._complaint = complaint
        self.contents: list[Any] = []

    def of(self, node: Node, mine: Any, path: str) -> Callable[[], Any]:
        """Return a function that gives the new value once all contents have come: `mine` itself wherever that can be.

        Raises UsageError where it cannot take over what comes.
        """
        try:
            return self._of(node, mine, path)
        except Differs as error:
            raise UsageError(f"{self._complaint.format(path=path)}: {error}") from None

    def _of(self, node: Node, mine: Any, path: str) -> Callable[[], Any]:
        match node:
            case Scalar() | Binary() | BigInteger() | Item():
                return partial(_value, node)
            case Form():
                return self._place(node, mine)
            case Parts(parts):
                return self._parts(parts, mine)
            case Stateful(state):
                return self._stateful(state, mine, path)
            case Elements(items, container):
                return self._elements(items, container, mine, path)
            case Dictionary(items):
                return self._dictionary(items, mine, path)

    def _elements(self, items: Sequence[Node], container: str, mine: Any, path: str) -> Callable[[], Any]:
        alike = isinstance(mine, (list, tuple, deque)) and len(mine) == len(items)
        olds = mine if alike else [None] * len(items)
        coming = [
            self.of(item, old, f"{path}[{number}]") for number, (item, old) in enumerate(zip(items, olds, strict=True))
        ]
        return lambda: _filled(mine, container, [item() for item in coming])

    def _dictionary(self, items: Sequence[tuple[Node, Node]], mine: Any, path: str) -> Callable[[], Any]:
        coming: dict[Any, Callable[[], Any]] = {}
        for key_node, item in items:
            key = self._of(key_node, None, path)()
            coming[key] = self.of(item, mine.get(key) if isinstance(mine, Mapping) else None, f"{path}[{key!r}]")
        return lambda: _updated(mine, {key: item() for key, item in coming.items()})

    def _place(self, form: Form, mine: Any) -> Callable[[], Any]:
        for sort in self._sorts:
            if sort.is_of(form):
                place = sort.place(form, mine)
                self.contents.append(place.contents)
                return place.value
        raise Differs(f"{_shown(mine)} here, a {form.sort} there")

    def _parts(self, theirs: Sequence[tuple[str, Form]], mine: Any) -> Callable[[], Any]:
        for sort in self._sorts:
            parts = None if mine is None else sort.parts(mine)
            if parts is None:
                continue
            for part, (name, form) in zip(parts, theirs, strict=False):
                if (here := sort.form(part.tensor)) != form:
                    raise Differs(f"{part.name} ({here}) here, {name} ({form}) there")
                self.contents.append(sort.place(form, part.tensor).contents)
            if len(parts) != len(theirs):
                raise Differs(f"{len(parts)} tensors here, {len(theirs)} there")
            return lambda: mine
        raise Differs(f"{_shown(mine)} here, a module there")

    def _stateful(self, state: Node, mine: Any, path: str) -> Callable[[], Any]:
        if not has_state(mine):
            raise Differs(f"{_shown(mine)} here, what has a state_dict() there")
        arriving = self.of(state, _apart(mine.state_dict()), f"{path}.state_dict()")

        def loaded() -> Any:
            try:
                mine.load_state_dict(arriving())
            except Exception as error:
                raise UsageError(f"{path}: load_state_dict() failed: {type(error).__name__}: {error}") from error
            return mine

        return loaded


def _apart(state: Any) -> Any:
    """Return the state in containers of its own: an object may have a list in two places of it, or clear its own before
    it loads the state.
    """
    if isinstance(state, dict):
        found = copy.copy(state)
        found.update((key, _apart(value)) for key, value in state.items())
        return found
    if type(state) in {list, tuple}:
        return type(state)(_apart(value) for value in state)
    return state


def _value(node: Scalar | Binary | BigInteger | Item) -> Any:
    match node:
        case Scalar(value) | Binary(value):
            return value
        case BigInteger(digits):
            return int(digits)
        case Item(dtype, value):
            return np.frombuffer(value, dtype_of(dtype))[0]


def _filled(mine: Any, container: str, items: list[Any]) -> Any:
    """Return `mine` itself with these items, if it is such a container and can change."""
    kind = CONTAINERS[container]
    if not isinstance(mine, kind) or isinstance(mine, frozenset):
        return kind(items)
    if isinstance(mine, tuple):
        named: Any = type(mine)
        return named._make(items) if hasattr(named, "_make") else tuple(items)
    known: Any = mine
    known.clear()
    (known.update if isinstance(known, set) else known.extend)(items)
    return known


def _updated(mine: Any, values: dict[Any, Any]) -> Any:
    if not isinstance(mine, dict):
        return values
    mine.clear()
    mine.update(values)
    return mine


def _shown(mine: Any) -> str:
    return "nothing" if mine is None else f"a {type(mine).__qualname__}"
