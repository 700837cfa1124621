"""A Python that has imported a framework already, for tests in which a worker's boot is not what is tested.

Owns: one zygote for each framework and one for edl's own commands, launchers, guards and daemons (warm/zygote.py), and
one ZooKeeper (warm/coordinator.py), started when they are first asked for, ended with the tests. What a boot is, is
tested by jobs that are started cold, their launchers, guards and daemons too: the first of test_run_job.py, an example
of TensorFlow, a worker that the README starts by hand, test_horovodrun.py, and by all benchmarks; a launcher's own
ZooKeeper by test_run_local.py and test_run_job.py. With EDL_TEST_COLD=1 all boot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WARM = Path(__file__).parent / "warm"
ROOT = Path(__file__).parents[2]
# NumPy's library would start its threads with the import; the padding makes room in /proc (see `Places`).
QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "PADDING": "x" * 60_000}


# `edl` whose workers are forks.
FORKING = f"import sys; sys.path.append({str(WARM)!r}); import launch; from horovod_edl import main; sys.exit(main())"


class WarmPython:
    """To be closed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="edl-warm-"))  # 0700; a socket's path must be short
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, script: Path, framework: str = "") -> list[str]:
        """What stands for `python script.py`; the script's arguments come after it."""
        if os.environ.get("EDL_TEST_COLD"):
            return [sys.executable, str(script)]
        socket = self.socket(framework or needed(script))
        return [sys.executable, "-IS", str(WARM / "stub.py"), str(socket), str(script)]

    def line(self, code: str) -> list[str]:
        """What stands for `python -c CODE`, with all of edl that commands, launchers and daemons import."""
        if os.environ.get("EDL_TEST_COLD"):
            return [sys.executable, "-c", code]
        return [sys.executable, "-IS", str(WARM / "stub.py"), str(self.socket("edl")), "-c", code]

    def own(self) -> dict[str, str]:
        """The environment of a job whose daemons and guard are forks, too."""
        return {} if os.environ.get("EDL_TEST_COLD") else {"EDL_TEST_OWN": str(self.socket("edl"))}

    def typed(self, script: Path) -> dict[str, str]:
        """The environment of a shell in which `edl run python SCRIPT` forks its workers."""
        if os.environ.get("EDL_TEST_COLD"):
            return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        command = self._folder / "bin" / "edl"
        if not command.exists():
            command.parent.mkdir()
            command.write_text(f"#!{sys.executable}\n{FORKING}\n")
            command.chmod(0o700)
        path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        zygote = str(self.socket(needed(script)))
        return {"PATH": path, "EDL_TEST_ZYGOTE": zygote, "EDL_TEST_COORDINATOR": self.coordinator(), **self.own()}

    def socket(self, framework: str) -> Path:
        """Where the zygote can be asked, as soon as it has imported the framework."""
        path = self._folder / framework
        self._start(framework, [str(WARM / "zygote.py"), framework, str(path), "x" * 8192])
        return path

    def coordinator(self) -> str:
        """The file that tells where the shared ZooKeeper is, once it is there."""
        if os.environ.get("EDL_TEST_COLD"):
            return ""
        folder = self._folder / "coordinator"
        folder.mkdir(exist_ok=True)
        self._start("zookeeper", [str(WARM / "coordinator.py"), str(folder)])
        return str(folder / "hosts")

    def _start(self, name: str, command: list[str]) -> None:
        """Unless it runs already."""
        log = self._folder / f"{name}.log"
        if name not in self._started:
            kept = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
            with log.open("wb") as output:
                self._started[name] = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, *command],
                    env={**kept, **QUIET},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        assert self._started[name].poll() is None, log.read_text()

    def close(self) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)


def needed(script: Path) -> str:
    """Which framework, and what stands on it."""
    text = script.read_text()
    above = [name for name in ("lightning", "transformers", "accelerate") if f"edl.{name}" in text]
    return (
        {"accelerate": "transformers"}.get(above[0], above[0])
        if above
        else "torch"
        if "edl.torch" in text
        else "tensorflow"
    )
