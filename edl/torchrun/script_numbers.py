"""Numbers that a script counts at the level of its module: its iteration, its best loss.

Owns: finding those that training changes, and giving a newcomer the others'. Does not own: how they travel
(`edl.trainer.registered_state`).

A newcomer's script comes into its loop late, and would count from the beginning. So the plain numbers among the
variables of `__main__` that have changed since the first forward pass travel with the model. What a script sets before,
such as its rank, stays its own; so do variables of functions.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from edl.torch.loop_state import Travels

NUMBERS: Final = "torchrun_numbers"
KINDS: Final = (int, float)


class ScriptNumbers(Travels):
    """The changed numbers; a value that `edl.register` takes."""

    def __init__(self, variables: MutableMapping[str, Any]) -> None:
        self._variables = variables
        self._before = dict(self._plain())

    def now(self) -> dict[str, Any]:
        missing = object()
        return {name: value for name, value in self._plain() if self._before.get(name, missing) != value}

    def take(self, found: MutableMapping[str, Any]) -> None:
        """Set the variables to another worker's, where they are numbers here too."""
        mine = dict(self._plain())
        self._variables.update({name: value for name, value in found.items() if name in mine})

    def _plain(self) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in list(self._variables.items())
            if type(value) in KINDS and not name.startswith("_")
        ]
