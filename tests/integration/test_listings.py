"""What the README and the pages tell to type is typed here: every block of the README in order, and whole scripts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pace import patient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "bash", "text"}  # of the README: listings, what is typed, and what is drawn or printed
NOT_TYPED = {
    "scripts/demo": "sets a machine up, and trains for a minute; what it shows is in tests/unit/test_demo_view.py",
    "scripts/setup": "sets a machine up; these tests run where it has done so",
    "scripts/test": "runs this test",
    "scripts/check": "runs a part of the tests of which this is one",
    "source .venv/bin/activate": "the environment of these tests is active already",
}
TRAINS = ("notify_batch_end()", "KerasCallback()")  # a whole script has one of them, and one of the next
JOINS = ("\nedl.init(", "edl.elastic_dataset((")  # arrays join by themselves
KINDS = re.compile(r"^[\d:.]+ +(\w+) ", re.MULTILINE)  # in lines of `edl events`
SOMETIMES = {"worker_warming"}  # unless the rehearsal is over before the leader has heard that it began
BOOT_S = 180.0
END_S = 240.0


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def scripts() -> list[tuple[str, int, str]]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    listings = [(page.name, *one) for page in pages for one in enumerate(blocks(page))]
    return [(page, number, code) for page, number, (language, code) in listings if is_whole(language, code)]


def is_whole(language: str, code: str) -> bool:
    has = lambda words: any(word in code for word in words)  # noqa: E731
    return language == "python" and code.startswith("import ") and has(JOINS) and has(TRAINS)


class Reader:
    """A reader who goes through the README with several shells, from the root of a clone."""

    def __init__(self, edl, clone: Path) -> None:
        self._edl = edl
        self._edl.cwd = clone
        self._edl.environ |= edl.warm.typed(ROOT / "examples" / "torch_digits.py")  # who is started by hand boots
        self._edl.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        del self._edl.environ["EDL_MAX_RESTARTS"]
        (clone / "examples").symlink_to(ROOT / "examples")
        self._clone = clone
        self._shells: list[subprocess.Popen[str]] = []
        self._said = ""  # by what was typed last
        self.typed = 0

    def go_through(self, language: str, block: str) -> None:
        if language == "python":
            (self._clone / "train.py").write_text(block)
        elif language == "bash" and not self._is_not_typed(block):
            self._type(block)
            self.typed += 1
        elif language == "text":
            for kind in set(KINDS.findall(block)) - SOMETIMES:
                assert kind in self._said, f"the README shows {kind} where there is only:\n{self._said}"

    def _type(self, block: str) -> None:
        shell = self._edl.start_command(["bash", "-c", block])
        if "--job" in block:
            self._shells.append(shell)
            self._edl.wait(lambda: self._job(size=2, step=10), "two workers that train", timeout_s=BOOT_S)
        elif "EDL_JOB=" in block:
            self._shells.append(shell)
            self._edl.wait(lambda: self._job(size=3), "a third worker", timeout_s=BOOT_S)
        else:
            self._said, complaints = shell.communicate(timeout=patient(END_S))
            assert shell.returncode == 0, complaints
        if "kill" in block:
            self._edl.wait(self._goes_on, "survivors that go on", timeout_s=BOOT_S)

    def _is_not_typed(self, block: str) -> bool:
        commands = [line.partition("#")[0].strip() for line in block.splitlines()]
        return all(command in NOT_TYPED for command in commands)

    def _job(self, size: int, step: int = 0) -> bool:
        status = self._edl.status("digits")
        return bool(status["size"] >= size and status["step"] > step)

    def _goes_on(self) -> bool:
        return any(event["kind"] == "scaled" and event["forced"] for event in self._edl.events("digits"))

    def close_shells(self) -> None:
        for shell in self._shells:
            shell.communicate(timeout=patient(END_S))
        self._edl.wait_nothing_left()  # a worker that was started by hand ends before its daemon


@pytest.mark.slow
def test_every_block_of_the_readme_can_be_typed(edl, tmp_path):
    (tmp_path / "clone").mkdir()
    reader = Reader(edl, tmp_path / "clone")
    for language, block in blocks(ROOT / "README.md"):
        assert language in LANGUAGES
        reader.go_through(language, block)
    reader.close_shells()
    assert reader.typed > 5


LISTINGS = [one for one in scripts() if not str(one[0]).startswith("tutorial-")]  # test_tutorials.py types them along


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "code"), LISTINGS, ids=lambda part: str(part)[:20].partition("\n")[0])
def test_whole_scripts_of_the_pages_run(edl, tmp_path, page, number, code):
    run(edl, tmp_path, code)


def run(edl, folder: Path, code: str) -> str:
    script = folder / "train.py"
    script.write_text(code)
    process = edl.start_command(edl.warm.command(script), TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    out, err = process.communicate(timeout=patient(END_S))
    assert process.returncode == 0, err
    edl.wait_nothing_left()
    return out
