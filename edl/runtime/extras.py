"""State of the script's own that a newcomer must receive: `edl.register(best_loss=9e9, scheduler=scheduler)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from edl.collectives.ring import Ring
from edl.errors import UsageError


class Extras:
    """Registered values as attributes. Assign to them freely; what counts is what they hold at a switch."""

    _values: dict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{name!r} was not registered; registered are {sorted(self._values)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"{name!r} was not registered: call edl.register({name}=...) first")
        self._values[name] = value

    def _add(self, values: Mapping[str, Any]) -> Extras:
        """Register values. Raises UsageError for what cannot travel."""
        for name, value in values.items():
            check_can_travel(f"edl.register({name}={value!r})", value)
        self._values.update(values)
        return self


def plain(value: Any) -> Any:
    """What travels of it: itself, or the `state_dict()` of a scheduler, a GradScaler and their like."""
    return value.state_dict() if has_state(value) else value


def has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def check_can_travel(call: str, value: Any) -> None:
    """Raises UsageError."""
    try:
        msgspec.msgpack.encode(plain(value))
    except (TypeError, OverflowError) as error:
        raise UsageError(
            f"{call}: a {type(value).__name__} cannot travel to a newcomer ({error}); register numbers, strings, "
            "bytes, lists and dicts, or what gives such by state_dict(), and convert arrays with .tolist()"
        ) from None


def synchronize_extras(extras: Extras, ring: Ring, root: int, *, is_root: bool) -> None:
    """Give everybody the values of rank `root`. Raises RingBroken."""
    if not extras._values:
        return
    mine = {name: plain(value) for name, value in extras._values.items()} if is_root else None
    payload = ring.broadcast(msgspec.msgpack.encode(mine) if is_root else None, root)
    if not is_root:
        for name, value in msgspec.msgpack.decode(payload).items():
            if has_state(extras._values.get(name)):
                extras._values[name].load_state_dict(value)
            else:
                extras._values[name] = value
