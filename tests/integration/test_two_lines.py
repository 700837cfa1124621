"""A script as its library's documentation writes it becomes elastic by two lines, one of torchrun by four; and runs.

Each but that one in a job that grows, loses a worker, is preempted and goes on; test_examples.py runs that one.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = ROOT / "tests" / "integration" / "originals", ROOT / "examples"
NAMES = ["keras_digits.py", "lightning_digits.py", "transformers_digits.py", "accelerate_digits.py"]
PAUSE = "time.sleep(float(os.environ['PAUSE']))"
EPOCHS = 20
LONGER = {  # what keeps an example short, and what stands in its place; a fast machine would be through too early
    "keras_digits.py": {
        "epochs=10": f"epochs={EPOCHS}",
        "patience=3": f"patience={EPOCHS}",
        "[stop, ": f"[stop, keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs=None: {PAUSE}), ",
    },
    "lightning_digits.py": {
        "max_epochs=10": f"max_epochs={EPOCHS}",
        'EarlyStopping("val_loss")': f'EarlyStopping("val_loss", patience={EPOCHS})',
        "def training_step(self, batch):": f"def training_step(self, batch):\n        {PAUSE}",
    },
    "transformers_digits.py": {
        "num_train_epochs=5": f"num_train_epochs={EPOCHS}",
        "def forward(self, images, labels=None):": f"def forward(self, images, labels=None):\n        {PAUSE}",
    },
    "accelerate_digits.py": {
        ".epochs(8)": f".epochs({EPOCHS})",
        "        optimizer.zero_grad()": f"        {PAUSE}\n        optimizer.zero_grad()",
    },
}
ENVIRON = {"HF_HUB_OFFLINE": "1", "EDL_MAX_RESTARTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
OF_TORCHRUN = "ddp_digits.py"
PAGES = {"keras_digits.py": "keras.md", "lightning_digits.py": "lightning.md", OF_TORCHRUN: "from-torchrun.md"}


def changes(name: str) -> list[str]:
    """Without blank lines, which a formatter wants between imports, and without what the docstrings say to type."""
    before, after = (path.read_text().partition('"""\n\n')[2].splitlines() for path in (BEFORE / name, AFTER / name))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if line[0] in "+-" and line[1:].strip()]


def shown_on(page: str) -> list[list[str]]:
    """Its diffs."""
    blocks = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return [block.splitlines() for block in blocks]


@pytest.mark.parametrize("name", NAMES)
def test_two_lines_come_and_the_page_shows_them(name: str) -> None:
    lines = changes(name)
    sys.stdout.write("\n".join([f"{name}:", *lines, ""]))
    assert sum(line.startswith("+") for line in lines) <= 2
    assert sum(line.startswith("-") for line in lines) <= 2
    assert lines in shown_on(PAGES.get(name, "huggingface.md"))


def test_of_a_script_of_torchrun_what_that_needed_goes_and_four_lines_come() -> None:
    lines = changes(OF_TORCHRUN)
    sys.stdout.write("\n".join([*lines, ""]))
    come, go = ([line[1:] for line in lines if line.startswith(sign)] for sign in "+-")
    assert len(come) <= 4
    kept = [line for line in go if not re.search("dist|Dist|sampler|range", line)]
    assert not kept, "lines that go though torchrun does not need them"
    assert lines in shown_on(PAGES[OF_TORCHRUN])


def longer(name: str) -> str:
    """The example, over more epochs, each step of which can be told to take its time."""
    code = (AFTER / name).read_text()
    for old, new in {"import numpy as np\n": "import os\nimport time\nimport numpy as np\n", **LONGER[name]}.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_on_two_workers(edl: Any, name: str) -> None:
    edl.cwd = ROOT
    job = edl.start("run", "-np", "2", "--job", "two", *edl.warm.command(AFTER / name), **ENVIRON)
    out, err = job.communicate(timeout=patient(240))
    assert job.returncode == 0, out + err
    expect_learnt(out)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_on_workers_that_come_and_die_and_goes_on_after_a_preemption(
    edl: Any, tmp_path: Path, name: str
) -> None:
    """2 -> 3 -> kill -9 -> 2 -> SIGTERM, and the same line again: equal weights, and each sample trained once."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    script = tmp_path / name
    script.write_text(longer(name))
    flags = ["--checkpoint", str(tmp_path / "saved"), "--audit", str(tmp_path / "audit"), "--check-weights", "10"]
    line = ["run", "-np", "2", "--max-np", "3", "--job", "two", *flags, *edl.warm.command(script)]
    first = edl.start(*line, **ENVIRON, PAUSE="0.3")
    wait_training(edl, first, 2)
    assert edl("scale", "two", "3", timeout_s=60).returncode == 0
    workers = wait_training(edl, first, 3)
    os.kill(next(worker["pid"] for worker in workers if worker["rank"] == 1), signal.SIGKILL)
    wait_training(edl, first, 2)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=patient(60))
    assert first.returncode == 75, out + err
    kinds = [event["kind"] for event in edl.events("two")]
    assert kinds.count("worker_lost") == 1 and kinds.count("scaled") == 2, kinds
    again = edl.start(*line, **ENVIRON, PAUSE="0")
    out, err = again.communicate(timeout=patient(240))
    assert again.returncode == 0, out + err
    assert "goes on from step" in err
    expect_learnt(out)
    found = edl.json("data", "verify", str(tmp_path / "audit"))
    assert found["clean"] and len(found["lives"]) == 2, found
    assert [epoch["over"] for epoch in found["epochs"]] == [True] * EPOCHS


def expect_learnt(out: str) -> None:
    accuracy = [float(found) for found in re.findall(r"accuracy ([\d.]+)", out)]
    assert accuracy and accuracy[-1] > 0.85, out


def wait_training(edl: Any, job: Any, size: int) -> list[dict[str, Any]]:
    """So many workers, and some steps of theirs."""

    def there() -> Any:
        assert job.poll() is None, job.communicate()
        status = edl.status("two")
        return status if status["size"] == size and status["state"] == "running" else None

    begun = edl.wait(there, f"{size} workers", timeout_s=90)["step"]
    edl.wait(lambda: there() and edl.status("two")["step"] > begun + 5, f"steps of {size} workers", timeout_s=60)
    workers: list[dict[str, Any]] = edl.status("two")["workers"]
    return workers
