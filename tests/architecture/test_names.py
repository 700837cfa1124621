"""A class has a name of its own, so that a reader of the name knows which class it is.

Ports and what stands behind them are the exception: one name, one promise. Those are listed, each with its reason.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {
    "Code": "policy_process says what it needs of code, and policies.Code is that",
    "Described": "of a model, by each framework's face",
    "Elastic": "an optimizer that edl has wrapped, one for each kind that a framework has",
    "Optimizer": "what scripts call, by each framework's face",
    "Reducer": "of gradients, by each framework's face",
    "_Wrapped": "the type of Optimizer, by each framework's face",
}


def classes() -> dict[str, list[str]]:
    """Of edl, by name: the files that define one."""
    found = defaultdict(list)
    for path in sorted((ROOT / "edl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_classes_have_one_name_but_ports_and_what_implements_them() -> None:
    twice = {name: files for name, files in classes().items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SHARED} == {}
    assert SHARED.keys() <= twice.keys(), "a name that is not shared any more need not be listed"


def test_a_constant_that_means_never_has_one_home_for_steps_and_one_for_times() -> None:
    homes = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "edl").rglob("*.py")
        if "NEVER" in (text := path.read_text())
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign | ast.Assign)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name) and target.id == "NEVER"
    }
    assert homes == {"edl/core/worker/next_move.py"}  # of steps; edl.core.job.deadlines has END_OF_TIME
