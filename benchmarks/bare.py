"""A bare machine: `scripts/demo` from the clone to the first change of size, and once more.

    python -m benchmarks.bare [--suite bookworm] [--mirror URL] [--share PATH...] [--keep FOLDER]

Makes a bare Debian with debootstrap: git, bash and Python 3.11, and no compiler, Java, ZooKeeper, etcd or Horovod. A
clone of the last commit is made there and `scripts/demo` is started in it, twice.

    ready     from the start until the set-up is done; for the first time, from the beginning of the clone
    training  until two workers train
    changed   until a third one has joined them
    over      until the demonstration is over

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
BROUGHT = ("ca-certificates", "git", "python3.11")
MUST_NOT_BE = ("g++", "gcc", "make", "cmake", "java", "etcd")
GOAL_S = 180.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MILESTONES = {  # the first line that has these words
    "ready": "[setup] ready",
    "training": "a third worker joins",
    "changed": " scaled",
    "over": "demo: job ",
}

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
    if [ -d "$path" ]; then mkdir -p "$MACHINE$path"; else touch "$MACHINE$path"; fi
    mount --bind -o ro "$path" "$MACHINE$path"
done <<END
$SHARED
END
exec chroot "$MACHINE" bash -c "$COMMAND"
"""


@dataclass(frozen=True)
class Machine:
    """A bare Debian in a folder. What is mounted there is gone with the command that it was mounted for."""

    folder: Path
    shared: tuple[Path, ...]

    def make(self, suite: str, mirror: str) -> None:
        what = ["--variant=minbase", f"--include={','.join(BROUGHT)}", suite, str(self.folder), mirror]
        made = subprocess.run(["debootstrap", *what], capture_output=True, text=True, check=False)
        if made.returncode:
            raise SystemExit(f"bare: debootstrap failed:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
        shutil.copy("/etc/resolv.conf", self.folder / "etc" / "resolv.conf")

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
            env={"HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH, **outside, **told},
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
        return any(self.folder.glob("root/edl/.venv/lib/python*/site-packages/horovod"))


def demonstrate(machine: Machine, command: str) -> dict[str, float]:
    """Seconds from the start to each milestone."""
    begun, seen = time.monotonic(), dict[str, float]()
    for line in machine.lines(command):
        print(f"  {time.monotonic() - begun:6.1f}  {line}", end="", flush=True)
        for name, words in MILESTONES.items():
            if name not in seen and words in line:
                seen[name] = time.monotonic() - begun
                break
    if missing := MILESTONES.keys() - seen.keys():
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
    parser.add_argument("--suite", help="of Debian, one that has Python 3.11 (default: this machine's)")
    parser.add_argument("--mirror", help="of Debian (default: the first that apt here is set to)")
    parser.add_argument("--share", type=Path, nargs="+", default=[], metavar="PATH", help="to be seen there, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the bare machine in a new folder")
    options = parser.parse_args()
    if why := _why_not():
        parser.error(why)
    mirror, suite = _mirror()
    with tempfile.TemporaryDirectory(prefix="edl-bare-") as work:
        machine = Machine(options.keep or Path(work) / "machine", tuple(options.share))
        print(f"a bare {options.suite or suite} by debootstrap", flush=True)
        machine.make(options.suite or suite, options.mirror or mirror)
        found = [name for name in MUST_NOT_BE if machine.has(name)]
        clone = shlex.join(["git", "clone", "--quiet", "file:///clone", "/root/edl"])
        trust = "git config --global --add safe.directory '*'"
        try:
            first = demonstrate(machine, f"{trust} && {clone} && cd /root/edl && scripts/demo")
            second = demonstrate(machine, "cd /root/edl && scripts/demo")
        except subprocess.CalledProcessError as error:
            print(f"bare: exit code {error.returncode}", file=sys.stderr)
            return 1
        found += [name for name in MUST_NOT_BE if name not in {"etcd", *found} and machine.has(name)]
        found += ["horovod"] if machine.has_horovod else []
    print("| time | " + " | ".join(MILESTONES) + " |")
    print("| --- |" + " --- |" * len(MILESTONES))
    for title, times in (("first", first), ("second", second)):
        print(f"| {title} | " + " | ".join(f"{times[name]:.0f} s" for name in MILESTONES) + " |")
    if found:
        print(f"bare: not bare: {', '.join(found)}", file=sys.stderr)
    return int(bool(found) or first["changed"] > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
