"""A bare machine: from the clone, or from `pip install`, to the first change of size, and once more.

    python -m benchmarks.bare [--suite bookworm] [--user] [--wheel FILE]
                              [--mirror URL] [--share PATH...] [--keep FOLDER]

Makes a bare Debian with debootstrap: git and bash, and no compiler, Java, ZooKeeper, etcd or Horovod. A clone of the
last commit is made there and `scripts/demo` is started in it, twice. `--wheel`: into an empty environment that wheel is
installed with pip, and a job of two workers started that is told to have three. `--user`: as a user who is not root and
finds Debian's python3-venv, which root installs.

    loaded    from the start until pip has downloaded PyTorch and all else, with --wheel
    ready     from the start until the set-up is done; for the first time, from the beginning of the clone
    training  until two workers train
    changed   until a third one has joined them
    over      until the job is over

Downloads count: what pip and apt are set to counts, too. `--share` shows files and folders of this machine there, to be
read only, such as a pip.conf and a folder of wheels; environment variables PIP_* are passed on.

Exit code 1 if a demonstration fails, takes longer than 3 minutes until the first change of size, or finds a compiler,
Java or Horovod there. Needs root, debootstrap and unshare.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BROUGHT = ("ca-certificates", "git")
MUST_NOT_BE = ("g++", "gcc", "make", "cmake", "java", "etcd")
GOAL_S = 180.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MILESTONES = {  # the first line that has these words
    "loaded": "] downloaded",
    "ready": "] ready",
    "training": "a third worker joins",
    "changed": " scaled",
    "over": "demo: job ",
}
AGAIN = "cd ~/edl && scripts/demo"
CLONE = f"git config --global --add safe.directory '*' && git clone --quiet file:///clone ~/edl && {AGAIN}"
JOB = """
import time
import torch
import edl.torch as edl

edl.init()
model = torch.nn.Linear(8, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
x, y = torch.randn(256, 8), torch.randn(256, 1)
for ids in edl.elastic_shard_generator(256, epochs=1000, shuffle=True, seed=0).batches(16):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x[ids]), y[ids]).backward()
    optimizer.step()
    edl.notify_batch_end()
    time.sleep(0.02)
"""
INSTALL = """
cd ~ && rm -rf new && python3 -m venv new && new/bin/pip download --quiet --dest held '{wheel}[torch]' &&
echo '[pip] downloaded' && new/bin/pip install --quiet --no-index --find-links held '{wheel}[torch]'"""
TRAIN = f"""
cd ~ && PATH=~/new/bin:$PATH && echo "[pip] ready"
echo {shlex.quote(JOB)} >train.py
job=bare-$(date +%s)  # each shell here has the same number
edl run -np 2 --job $job python train.py & run=$!
until edl status $job 2>/dev/null | grep -q "step [1-9]"; do kill -0 $run && sleep 0.1 || exit 1; done
echo "two workers train: a third worker joins"
edl scale $job 3 --wait && echo "bare: scaled"
edl stop $job && wait $run; echo "demo: job bare is over"
"""

INSIDE = """
set -eu
mount --bind /dev "$MACHINE/dev"
mount -t proc proc "$MACHINE/proc"
mount -t sysfs -o ro sysfs "$MACHINE/sys"
mkdir -p "$MACHINE/clone"
mount --bind "$CLONED" "$MACHINE/clone"
while read -r path; do
    [ -n "$path" ] || continue
    mkdir -p "$MACHINE$(dirname "$path")"
    if [ -d "$path" ]; then mkdir -p "$MACHINE$path"; elif [ ! -e "$MACHINE$path" ]; then touch "$MACHINE$path"; fi
    mount --bind -o ro "$path" "$MACHINE$path"
done <<END
$SHARED
END
exec chroot --userspec="$USER" "$MACHINE" bash -c "$COMMAND"
"""


@dataclass(frozen=True)
class Machine:
    """A bare Debian in a folder. What is mounted there is gone with the command that it was mounted for."""

    folder: Path
    shared: tuple[Path, ...]
    user: str  # root, or guest

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else f"/home/{self.user}"

    def make(self, suite: str, mirror: str, brought: tuple[str, ...]) -> None:
        what = ["--variant=minbase", f"--include={','.join(brought)}", suite, str(self.folder), mirror]
        made = subprocess.run(["debootstrap", *what], capture_output=True, text=True, check=False)
        if made.returncode:
            raise SystemExit(f"bare: debootstrap failed:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
        shutil.copy("/etc/resolv.conf", self.folder / "etc" / "resolv.conf")
        if self.user != "root":
            subprocess.run(["chroot", str(self.folder), "useradd", "--create-home", self.user], check=True)

    def lines(self, command: str) -> Iterator[str]:
        """What the command prints, as it does. Raises CalledProcessError if it fails."""
        outside = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        told = {
            "MACHINE": str(self.folder),
            "CLONED": str(ROOT),
            "SHARED": "\n".join(str(path.resolve()) for path in self.shared),
            "COMMAND": command,
        }
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", INSIDE],
            env={"HOME": self.home, "USER": self.user, "LANG": "C.UTF-8", "PATH": PATH, **outside, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield from process.stdout
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)

    def has(self, program: str) -> bool:
        return any((self.folder / place / program).exists() for place in ("bin", "usr/bin", "usr/local/bin"))

    @property
    def has_horovod(self) -> bool:
        home = self.home.lstrip("/")
        return any(self.folder.glob(f"{home}/*/.venv/lib/python*/site-packages/horovod"))


def demonstrate(machine: Machine, command: str) -> dict[str, float]:
    """Seconds from the start to each milestone."""
    begun, seen = time.monotonic(), dict[str, float]()
    for line in machine.lines(command):
        print(f"  {time.monotonic() - begun:6.1f}  {line}", end="", flush=True)
        for name, words in MILESTONES.items():
            if name not in seen and words in line:
                seen[name] = time.monotonic() - begun
                break
    if missing := MILESTONES.keys() - seen.keys() - {"loaded"}:
        raise SystemExit(f"bare: the demonstration did not say when it was {', '.join(sorted(missing))}")
    return seen


def _mirror() -> tuple[str, str]:
    """The first that apt here is set to, and its suite."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    url, suite = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[:2]
    return url, suite


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "a chroot needs root"
    if missing := [name for name in ("debootstrap", "unshare", "apt-get") if shutil.which(name) is None]:
        return f"there is no {missing[0]}: apt-get install debootstrap util-linux, on Debian or Ubuntu"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="of Debian, 12 or newer (default: this machine's)")
    parser.add_argument("--user", action="store_true", help="not as root")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="what pip installs, in place of a clone")
    parser.add_argument("--mirror", help="of Debian (default: the first that apt here is set to)")
    parser.add_argument("--share", type=Path, nargs="+", default=[], metavar="PATH", help="to be seen there, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the bare machine in a new folder")
    options = parser.parse_args()
    if why := _why_not():
        parser.error(why)
    mirror, suite = _mirror()
    with tempfile.TemporaryDirectory(prefix="edl-bare-") as work:
        shared = (*options.share, *([options.wheel] if options.wheel else []))
        machine = Machine(options.keep or Path(work) / "machine", shared, "guest" if options.user else "root")
        print(f"a bare {options.suite or suite} by debootstrap", flush=True)
        brought = (*BROUGHT, "python3-venv") if options.user or options.wheel else BROUGHT
        machine.make(options.suite or suite, options.mirror or mirror, brought)
        found = [name for name in MUST_NOT_BE if machine.has(name)]
        install, again = CLONE, AGAIN
        if options.wheel:
            install, again = f"{INSTALL.format(wheel=options.wheel.resolve())} && {TRAIN.strip()}", TRAIN
        try:
            first = demonstrate(machine, install)
            second = demonstrate(machine, again)
        except subprocess.CalledProcessError as error:
            print(f"bare: exit code {error.returncode}", file=sys.stderr)
            return 1
        found += [name for name in MUST_NOT_BE if name not in {"etcd", *found} and machine.has(name)]
        found += ["horovod"] if machine.has_horovod else []
    print("| time | " + " | ".join(first) + " |")
    print("| --- |" + " --- |" * len(first))
    for title, times in (("first", first), ("second", second)):
        print(f"| {title} | " + " | ".join(f"{times[name]:.0f} s" if name in times else "" for name in first) + " |")
    if found:
        print(f"bare: not bare: {', '.join(found)}", file=sys.stderr)
    return int(bool(found) or first["changed"] > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
