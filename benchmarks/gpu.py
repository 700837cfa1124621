"""Both rings on a machine with a GPU: pauses, recovery, equality and step times, by one command.

    python benchmarks/gpu.py [--wheels FOLDER] [--parts steps pauses recovery resizes] [--rings nccl gloo horovod]
                             [--rounds 3] [--limit 120]

With --wheels nothing is downloaded: an environment is made in a folder of its own, beside the PyTorch that the calling
Python has, and edl and what it needs are installed there from that folder (Horovod, too, if a wheel of it lies there).
Without, all of it has to be installed where this is called.

    nccl      edl's ring of PyTorch's process groups, gradients by NCCL. Where workers have to share GPUs, each counts
              as one of another host (NCCL_HOSTID), as NCCL takes no GPU twice on one host; then it goes over sockets
    gloo      the same ring where workers share a GPU: by gloo and the host's memory
    horovod   Horovod's ring, as its wheel was built; only if it is there

What is measured, and how, is said by `benchmarks.step`, `pause`, `recovery` and `resizes`, which run here with
`--device cuda`. A part that fails or takes longer than `--limit` seconds is said so, and the others go on. Exit code 1
then; 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASK = """
import importlib.util, torch
if not torch.cuda.is_available():
    built = f"built for CUDA {torch.version.cuda}: is there one?" if torch.version.cuda else "built for CPUs"
    raise SystemExit(f"PyTorch {torch.__version__} finds no GPU here; it was {built}")
versions = f"PyTorch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
horovod = "with" if importlib.util.find_spec("horovod") else "without"
print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {versions}, {horovod} Horovod")
"""


def environment(folder: Path, wheels: Path) -> Path:
    """Its Python. PyTorch stays where it is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    (packages / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, *map(str, sorted(wheels.glob("*.whl")))], check=True)
    return python


def commands(parts: list[str], rings: list[str], rounds: int) -> Iterator[tuple[str, list[str]]]:
    """What to call each, and the module with its arguments."""
    ring = {"nccl": ["--ring", "torch", "--apart"], "gloo": ["--ring", "torch"], "horovod": ["--apart"]}
    if "steps" in parts:
        if "nccl" in rings:
            more = ["--apart", *([] if "horovod" in rings else ["--without-horovod"])]
            yield "step times, nccl", ["benchmarks.step", "rings", "--rounds", str(rounds), *more]
        if "gloo" in rings:
            yield "step times, gloo", ["benchmarks.step", "rings", "--rounds", str(rounds), "--without-horovod"]
    for name in rings:
        if "pauses" in parts:
            changes = ["2-3", "3-2", "1-4", "4-1"]
            more = ["--frameworks", "torch", "--modes", "edl", "--changes", *changes, "--rounds", str(rounds)]
            yield f"pauses, {name}", ["benchmarks.pause", *more, *ring[name]]
        if "recovery" in parts:
            more = ["--frameworks", "torch", "--modes", "edl", "--rounds", str(rounds), "--ranks", "1", "2", "0"]
            yield f"recovery, {name}", ["benchmarks.recovery", *more, *ring[name]]
        if "resizes" in parts:
            more = ["--torch", str(5 * rounds), "--tensorflow", "0", "--most", "4", "--no-fixed"]
            yield f"changes of size, {name}", ["benchmarks.resizes", *more, *ring[name]]


def run(python: Path, name: str, command: list[str], limit_s: float, folder: Path) -> bool:
    began = time.monotonic()
    print(f"\n{name}:", flush=True)
    working = folder / name.replace(",", "").replace(" ", "-")  # where jobs have their folders
    working.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    environ["TMPDIR"] = str(working)
    whole = [str(python), "-m", *command, "--device", "cuda"]
    with subprocess.Popen(whole, cwd=folder, env=environ, start_new_session=True) as started:
        try:
            said = f", exit code {code}" if (code := started.wait(limit_s)) else ""
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            said = f", not done after {limit_s:g} s"
            for log in working.glob("**/output.log"):
                said += f"; the last lines of a job:\n{log.read_text(errors='replace')[-2000:]}"
    print(f"  ({time.monotonic() - began:.0f} s{said})", flush=True)
    return not said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path)
    parts, rings = ["steps", "pauses", "recovery", "resizes"], ["nccl", "gloo", "horovod"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rings", nargs="+", choices=rings, default=rings)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each part and ring")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = Path(sys.executable)
        if options.wheels is not None:
            python = environment(Path(folder) / "environment", options.wheels.resolve())
        there = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
        if there.returncode:
            print(f"gpu: {there.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return 2
        print(there.stdout.strip(), flush=True)
        rings = [one for one in options.rings if one != "horovod" or "with Horovod" in there.stdout]
        here = Path(folder) / "run"  # without the source of edl: what is installed is what runs
        here.mkdir()
        (here / "benchmarks").symlink_to(ROOT / "benchmarks")
        done = [run(python, *one, options.limit, here) for one in commands(options.parts, rings, options.rounds)]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
