"""What is changed in Horovod's scripts, and which of their logs are those of a good run."""

from __future__ import annotations

import pytest

from tests.soaks.horovod_scripts import Logged, changed, complaints
from tests.soaks.script_job import difference

SCRIPT = "import json\nimport horovod.torch as hvd\n\nhvd.init()\n"
SIZES = [2, 2, 3, 3]


def logged(sizes: list[int] = SIZES) -> list[Logged]:
    """Of epochs of two batches."""
    return [Logged(epoch, 2, 3 * epoch + 2, size, size - 1) for epoch, size in enumerate(sizes)]


def test_the_import_is_changed_and_nothing_else() -> None:
    assert difference(SCRIPT, changed(SCRIPT)) == ["-import horovod.torch as hvd", "+import edl.torch as hvd"]


def test_the_rate_has_the_name_that_keras_3_gives_it() -> None:
    script = "import horovod.tensorflow as hvd\n\noptimizer.lr.assign(lr * hvd.size())\n"
    assert difference(script, changed(script, [("optimizer.lr.", "optimizer.learning_rate.")]))[2:] == [
        "-optimizer.lr.assign(lr * hvd.size())",
        "+optimizer.learning_rate.assign(lr * hvd.size())",
    ]


@pytest.mark.parametrize("text", ["import json\n", SCRIPT + SCRIPT, SCRIPT.replace("as hvd", "as h")])
def test_a_script_that_imports_it_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="where there should be one"):
        changed(text)


def test_a_good_log_has_each_epoch_once_and_the_sizes_in_order() -> None:
    assert complaints(logged(), [2, 3], epochs=4, batches=2) == []


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (logged()[1:], "epochs"),
        ([logged()[0], *logged()], "epochs"),
        ([one._replace(batch=1) for one in logged()], "batches"),
        ([one._replace(commits=one.commits + 1) for one in logged()], "commits"),
        (logged([3, 3, 2, 2]), "sizes"),
        ([one._replace(rendezvous=1) for one in logged()], "not called anew"),
    ],
    ids=["lost", "twice", "short", "committed", "shrunk", "not-anew"],
)
def test_what_is_wrong_is_named(log: list[Logged], said: str) -> None:
    assert any(said in one for one in complaints(log, [2, 3], epochs=4, batches=2))
