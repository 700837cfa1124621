"""A Python that has imported a framework already, for tests in which a worker's boot is not what is tested.

Owns: one zygote for each framework and one for edl's own commands, launchers, guards and daemons (warm/zygote.py), and
one ZooKeeper (warm/coordinator.py), started when they are first asked for, ended with the tests. All processes of
pytest-xdist have them in common. What a boot is, is tested by jobs that are started cold, their launchers, guards and
daemons too: the first of test_run_job.py, an example of TensorFlow, a worker that the README starts by hand,
test_horovodrun.py, and by all benchmarks; a launcher's own ZooKeeper by test_run_local.py and test_run_job.py. With
EDL_TEST_COLD=1 all boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WARM = Path(__file__).parent / "warm"
ROOT = Path(__file__).parents[2]
# NumPy's library would start its threads with the import; the padding makes room in /proc (see `Places`).
QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "PADDING": "x" * 60_000}


# `edl` whose workers are forks.
FORKING = f"import sys; sys.path.append({str(WARM)!r}); import launch; from horovod_edl import main; sys.exit(main())"


SHARED = "EDL_TEST_WARM"  # where several processes of tests have theirs in common, and who owns it


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """What this process and those that it starts from now on need is started once, for all of them."""
    folder = _new_folder()
    os.environ[SHARED] = f"{os.getpid()}:{folder}"
    try:
        yield
    finally:
        del os.environ[SHARED]
        _clear(folder)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="edl-warm-"))  # 0700; a socket's path must be short


def _clear(folder: Path) -> None:
    """End all that runs there."""
    for path in folder.glob("*.lock"):
        with path.open() as lock:
            if _is_locked(lock.fileno()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.with_suffix(".pid").read_text()), signal.SIGTERM)
                fcntl.flock(lock, fcntl.LOCK_EX)
    shutil.rmtree(folder)


def _is_locked(descriptor: int) -> bool:
    """By another process. If not, it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class WarmPython:
    """To be closed."""

    def __init__(self, *, own: bool = False) -> None:
        """`own`: shared with no other process."""
        place = "" if own else os.environ.get(SHARED, "")
        owner, _, folder = place.partition(":")
        self._is_own = not place
        self._owner = int(owner) if place else os.getpid()
        self._folder = Path(folder) if place else _new_folder()
        self._keepers: list[int] = []  # pids

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
            command.parent.mkdir(exist_ok=True)
            working = command.with_name(f"edl.{os.getpid()}")
            working.write_text(f"#!{sys.executable}\n{FORKING}\n")
            working.chmod(0o700)
            working.rename(command)
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
        with (self._folder / f"{name}.lock").open("a") as lock:
            if _is_locked(lock.fileno()):
                return
            assert not log.exists(), f"{name} has ended: {log.read_text()}"
            kept = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
            keeper = [sys.executable, "-IS", str(WARM / "keeper.py"), str(self._owner)]
            with log.open("wb") as output:
                os.set_inheritable(lock.fileno(), True)
                # No Popen: one that is let go while its process runs on for others warns.
                started = os.posix_spawn(
                    sys.executable,
                    [*keeper, sys.executable, *command],
                    {**kept, **QUIET},
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                        (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
                    ],
                    setsid=True,
                    setsigdef=[signal.SIGPIPE],
                )
            (self._folder / f"{name}.pid").write_text(str(started))
            self._keepers.append(started)

    def close(self) -> None:
        """What others share goes on."""
        if not self._is_own:
            return
        _clear(self._folder)
        for keeper in self._keepers:
            os.waitpid(keeper, 0)


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
