"""The tutorials, typed along: each block in its order, in a fresh folder that has what a clone has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_kubernetes import fake_kubernetes
from pace import patient

from tests.soaks.migrate_job import MovedJob
from tests.soaks.wired_net import why_no_wires

pytest.importorskip("torch")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LEISURE = Path(__file__).parent / "jobs" / "at_leisure"
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
KUBERNETES, SPOT = ROOT / "docs" / "tutorial-kubernetes.md", ROOT / "docs" / "tutorial-spot.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KINDS = re.compile(r"^[\d:.]+ +(\w+) ", re.MULTILINE)  # in lines of `edl events`
MOMENT_S = 60.0


class Typist:
    """A reader in one shell after the other, in a clone of their own.

    The clone has a quarter of the sonnets, at which the example trains at leisure until its job is preempted, and then
    as fast as it can: the job is there to be preempted, and soon at its end.
    """

    def __init__(self, folder: Path, **environ: str) -> None:
        self._clone = folder / "clone"
        self._clone.mkdir()
        self._hurry = folder / "hurry"
        for name in ("data", "examples"):  # copies: an example looks for its data beside itself
            shutil.copytree(ROOT / name, self._clone / name, ignore=shutil.ignore_patterns("__pycache__", "traces"))
        sonnets = self._clone / "data" / "sonnets" / "sonnets.txt"
        text = sonnets.read_text().split("\n\n")
        sonnets.write_text("\n\n".join(text[: len(text) // 4]))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environ = {**clean, "EDL_HOME": str(folder / "home"), "PATH": path}
        self._environ |= {"PYTHONPATH": f"{LEISURE}:{ROOT}", "EDL_TEST_HURRY": str(self._hurry)}
        self._environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environ}

    def read(self, page: Path) -> int:
        """Type all of a page; return how many blocks were typed."""
        typed = 0
        found = BLOCK.findall(page.read_text())
        for (language, block), (after, shown) in zip(found, [*found[1:], ("", "")], strict=True):
            if language == "python":
                (self._clone / "train.py").write_text(block)
            elif language == "bash":
                self._type(block, set(KINDS.findall(shown)) or {shown.strip()} if after == "text" else set())
                if "edl preempt" in block:
                    self._hurry.touch()
                typed += 1
        return typed

    def _type(self, block: str, expected: set[str]) -> None:
        """Type a block. One that only looks is typed again, as a reader does, until it shows what the page shows."""
        until = time.monotonic() + patient(MOMENT_S)
        while True:
            done = self._shell(block)
            assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
            missing = {word for word in expected if word not in done.stdout}
            if not missing:
                return
            assert block.startswith("edl events") and time.monotonic() < until, f"no {missing} in {done.stdout}"
            time.sleep(0.5)

    def _shell(self, block: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-ec", block]
        return subprocess.run(words, cwd=self._clone, env=self._environ, capture_output=True, text=True, check=False)

    def end(self) -> None:
        """End what a page that broke off has left."""
        for job in ("classifier", "poet"):
            self._shell(f"edl stop {job} || true")
        self._shell("edl cluster stop || true")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        # soak: what they type is typed in test_cluster.py and test_listings.py too
        pytest.param(page, id=page.stem, marks=() if page == SPOT else pytest.mark.soak)
        for page in TUTORIALS
        if page != KUBERNETES
    ],
)
def test_a_tutorial_can_be_typed_as_it_is_written(tmp_path, page) -> None:
    typist = Typist(tmp_path)
    try:
        assert typist.read(page) >= 2
    finally:
        typist.end()


@pytest.mark.soak  # its engine: test_kubernetes_engine.py
def test_the_tutorial_of_kubernetes_can_be_typed_where_pods_are_processes(tmp_path, warm) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    place = Path(warm.coordinator())
    until = time.monotonic() + patient(MOMENT_S)
    while not place.exists():
        assert time.monotonic() < until, "no coordinator"
        time.sleep(0.1)
    with fake_kubernetes(tmp_path / "account") as pods:
        for node in ("n1", "n2"):
            pods.add_node(node, cpus=2)
        pods.write_kubeconfig(tmp_path / "config")
        coordinator = f"{place.read_text().strip()}/{tmp_path.name}"
        typist = Typist(tmp_path, KUBECONFIG=str(tmp_path / "config"), EDL_COORDINATOR=coordinator)
        try:
            assert typist.read(KUBERNETES) == 4
            assert pods.count("POST") == 3 and len(pods.deleted) >= 1
        finally:
            typist.end()


@pytest.mark.soak  # migrations between hosts: tests/soaks/migrate.py
@pytest.mark.skipif(bool(why_no_wires()), reason=why_no_wires() or "-")
def test_the_migration_of_the_tutorial_takes_a_job_to_the_other_host(tmp_path) -> None:
    """Its lines, each on the host before its prompt: network namespaces of this machine."""
    lines = re.findall(r"^(node\d)\$ (.*)$", SPOT.read_text(), re.MULTILINE)
    assert len(lines) >= 4
    with MovedJob(tmp_path, names=("zk1", "node1", "node2")) as hosts:
        for name in ("data", "examples"):
            (tmp_path / name).symlink_to(ROOT / name)
        path = f"PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}"
        said = ""
        for host, line in lines:
            done = hosts.run_there("bash", "-ec", f"cd {tmp_path}; export {path}; unset EDL_JOB; {line}", host=host)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}{hosts.story()}"
            said = done.stdout
    moved = re.search(r"has left (\S+); its survivors paused for", said)
    assert moved and moved[1] == "node1", said


def test_there_are_four() -> None:
    names = ["classifier", "kubernetes", "spot", "team"]
    assert [page.stem for page in TUTORIALS] == [f"tutorial-{name}" for name in names]
