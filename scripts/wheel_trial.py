"""Tries wheels as a user would who has no compiler: installs, asks `edl` about itself, and trains with two workers.

    PYTHON scripts/wheel_trial.py --work FOLDER [--user NAME] WHEEL...

With the Python that runs it, of the wheels those that fit it. Nothing of the clone is on the path, and `PATH` has all
programs of this machine but compilers; once more without Java, and without an etcd either. `--user`: all as that user,
such as `nobody`, by root, with a Python, a FOLDER and wheels that this user can read.
Owns: the trial. Does not own: what must be in a wheel (`wheel_contents`).
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COMPILERS = (
    "cc",
    "gcc",
    "g++",
    "c++",
    "cpp",
    "clang",
    "clang++",
    "c89",
    "c99",
    "tcc",
    "make",
    "cmake",
    "ninja",
    "nvcc",
)
BUILT_BY = tuple(f"{name}-" for name in COMPILERS)  # gcc-12, and x86_64-linux-gnu-gcc by its end
JOB = """
import torch
import edl.torch as edl

edl.init()
model = torch.nn.Linear(8, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
x, y = torch.randn(256, 8), torch.randn(256, 1)
shards = edl.elastic_shard_generator(256, epochs=4, shuffle=True, seed=0)
seen, sizes = 0, set()
for ids in shards.batches(16):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x[ids]), y[ids]).backward()
    optimizer.step()
    if edl.notify_batch_end():
        seen, sizes = seen + len(ids), sizes | {edl.size()}
print(f"trained {seen} at sizes {sorted(sizes)}", flush=True)
"""


TRAIN = ("edl", "run", "-np", "2", "--job", "trial", "python", "train.py")  # --ring auto, which finds no Horovod
NO_JAVA = "no Java on this machine: the local coordinator is an etcd"
NEITHER = "no Java and no etcd on this machine: the local coordinator is edl's own, for jobs of this machine"


def is_compiler(name: str) -> bool:
    return name in COMPILERS or name.startswith(BUILT_BY) or any(name.endswith(f"-{one}") for one in COMPILERS)


def path_without(folder: Path, *others: str) -> str:
    """A folder with links to all programs but compilers and these."""
    folder.mkdir(parents=True)
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if not Path(place).is_dir() or ".venv" in place:
            continue
        for program in os.scandir(place):
            hidden = is_compiler(program.name) or program.name in others
            if not hidden and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program.path)
    found = [name for name in (*COMPILERS, *others) if shutil.which(name, path=str(folder))]
    if found:
        raise SystemExit(f"these would still be found: {found}")
    return str(folder)


def fitting(wheels: Iterable[Path]) -> list[Path]:
    """Those that this Python takes: of one Python, of the stable ABI of this one or an older one, or pure."""
    here = sys.version_info[1]

    def fits(name: str) -> bool:
        found = re.search(r"-cp3(\d+)-(abi3|cp3\d+)-", name)
        if found is None:
            return name.endswith("-none-any.whl")
        return int(found[1]) <= here if found[2] == "abi3" else int(found[1]) == here

    return [wheel for wheel in wheels if fits(wheel.name)]


class Trial:
    """In an environment and a home of its own."""

    def __init__(self, work: Path, user: str | None = None) -> None:
        self.home = work / f"try-{sys.version_info[0]}.{sys.version_info[1]}"
        shutil.rmtree(self.home, ignore_errors=True)
        path = path_without(self.home / "bin")
        dropped = ("EDL_", "PYTHON", "CC", "CXX", "JAVA_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        (self.home / "tmp").mkdir(mode=0o700)
        venv.create(self.home / "venv", with_pip=True, symlinks=True)
        self.bin = self.home / "venv" / "bin"
        self.environ = {**kept, "PATH": f"{self.bin}:{path}", "EDL_HOME": str(self.home / "edl"), "PYTHONSAFEPATH": "1"}
        self._as: dict[str, Any] = {}
        if user is not None:
            self.environ |= {"HOME": str(self.home), "TMPDIR": str(self.home / "tmp"), "USER": user}
            self._give_to(pwd.getpwnam(user))

    def _give_to(self, user: pwd.struct_passwd) -> None:
        for place, folders, files in os.walk(self.home):
            for name in (".", *folders, *files):
                os.chown(Path(place) / name, user.pw_uid, user.pw_gid, follow_symlinks=False)
        self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def run(
        self,
        *command: str,
        codes: tuple[int, ...] = (0,),
        timeout_s: float = 1500.0,
        environ: Mapping[str, str] | None = None,
    ) -> str:
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **self._as,
        )
        told = f"{done.stdout}{done.stderr}"
        if done.returncode not in codes:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{told}")
        print(f"[wheel]   {' '.join(command)}: {done.returncode} after {time.monotonic() - began:.1f} s", flush=True)
        return told

    def install(self, wheel: Path, *, fresh: bool) -> None:
        again = () if fresh else ("--force-reinstall", "--no-deps")
        pip = (str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
        self.run(*pip, *again, f"{wheel.resolve()}[torch]")
        where = "import edl, sys; print(edl.__file__); import edl.torch; assert 'tensorflow' not in sys.modules"
        told = self.run(str(self.bin / "python"), "-c", where)
        if str(self.home) not in told:
            raise SystemExit(f"another edl was found: {told}")

    def use(self) -> None:
        version = self.run("edl", "--version").strip()
        doctor = self.run("edl", "doctor", codes=(0, 1))
        for line in (version, *doctor.splitlines()):
            print(f"[wheel]     {line}")
        self.train()

    def use_without_java(self) -> None:
        """`edl doctor` and `edl run`, first without an etcd, too."""
        bare = {"PATH": f"{self.bin}:{path_without(self.home / 'bare', 'java', 'etcd')}"}
        print("[wheel] without Java and without an etcd", flush=True)
        self.ask_doctor(0, bare, ("warn  coordinator ", "warn  Java "))
        self.train_with(bare, NEITHER)
        if not shutil.which("etcd"):
            print("[wheel] no etcd here: without Java alone it was not tried", flush=True)
            return
        no_java = {"PATH": f"{self.bin}:{path_without(self.home / 'no-java', 'java')}"}
        print("[wheel] without Java, with an etcd", flush=True)
        self.ask_doctor(0, no_java, ("warn  Java ", "ok    etcd "))
        self.train_with(no_java, NO_JAVA)

    def train_with(self, environ: Mapping[str, str], words: str) -> None:
        """`edl run` says which coordinator it takes."""
        said = [line for line in self.train(environ).splitlines() if words in line]
        if len(said) != 1:
            raise SystemExit(f"edl run was to say {words!r}, and said {said}")
        print(f"[wheel]     {said[0]}", flush=True)

    def ask_doctor(self, code: int, environ: Mapping[str, str], wanted: tuple[str, ...]) -> None:
        told = self.run("edl", "doctor", codes=(code,), environ=environ).splitlines()
        for begins in wanted:
            if not any(line.startswith(begins) for line in told):
                raise SystemExit(f"edl doctor was to say {begins!r}:\n" + "\n".join(told))
        for line, remedy in zip(told, [*told[1:], ""], strict=True):
            if line.startswith(("fail", "warn")):
                print(f"[wheel]     {line}\n[wheel]     {remedy}", flush=True)

    def train(self, environ: Mapping[str, str] | None = None) -> str:
        """Two workers on the torch ring; what they and `edl run` said."""
        (self.home / "train.py").write_text(JOB)
        told = self.run(*TRAIN, timeout_s=300, environ=environ)
        ends = [line for line in told.splitlines() if "trained" in line]
        samples = sum(int(line.partition("trained ")[2].split()[0]) for line in ends)
        if len(ends) != 2 or samples != 4 * 256 or not all(line.endswith("sizes [2]") for line in ends):
            raise SystemExit(f"two workers were to train 1024 samples, once each:\n{told}")
        print(f"[wheel]     two workers trained {samples} samples on the torch ring", flush=True)
        return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--user", help="who uses them, where root tries them")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args()
    wheels = fitting(options.wheels)
    if not wheels:
        raise SystemExit(f"no wheel is for Python {sys.version.split()[0]}")
    trial = Trial(options.work.resolve(), options.user)
    for wheel in wheels:
        print(f"[wheel] trying {wheel.name} on Python {sys.version.split()[0]}, without a compiler", flush=True)
        trial.install(wheel, fresh=wheel == wheels[0])
        trial.use()
    trial.use_without_java()
    return 0


if __name__ == "__main__":
    sys.exit(main())
