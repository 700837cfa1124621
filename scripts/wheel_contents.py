"""Looks into wheels and the sdist: is all there that a user needs, and nothing else?

    python scripts/wheel_contents.py --source TREE [--foreign TEXT]... FILE...

`--source`: the tree that they were built from. `--foreign`: what no byte of them may say, the building machine's paths.
Owns: what belongs into a package. Does not own: building (`scripts/wheel`), nor trying (`wheel_trial`).
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

COMPILED = (
    "edl/collectives/_guard",
    "edl/coordination/_gate",
    "edl/core/worker/_digest",
    "edl/core/worker/_rounding",
    "edl/transport/_count",
)
NEEDED = (
    "edl/py.typed",
    "edl/dashboard/shipped/uPlot.iife.min.js",
    "edl/dashboard/shipped/uPlot-LICENSE.txt",
    "edl/daemon/metrics/shipped/edl-board.json",
    "edl/daemon/metrics/shipped/edl-alerts.yml",
    "horovod_edl.py",
)
SHIPPED = {".py", ".pyi", ".typed", ".json", ".yml", ".css", ".js", ".txt"}
"""Endings of what `edl` consists of. Sources of what is compiled go into the sdist only."""

Files = Mapping[str, bytes]


def faults_of_wheel(name: str, files: Files, source: Files) -> Iterator[str]:
    """`source`: of the tree, by path."""
    ours = {path for path in files if not path.split("/")[0].endswith(".dist-info")}
    native = {path for path in ours if path.endswith(".so")}
    wanted = {path for path in source if path.startswith("edl/") and PurePosixPath(path).suffix in SHIPPED}
    wanted |= {path for path in source if path.startswith("edl/") and path.endswith(".typed")} | {"horovod_edl.py"}
    for path in sorted((wanted | set(NEEDED)) - ours):
        yield f"{path} is missing"
    for path in sorted(ours - native - wanted):
        yield f"{path} does not belong into it"
    for path in sorted(wanted & ours):
        if path in source and files[path] != source[path]:
            yield f"{path} is not that of the tree"
    expected = set() if name.endswith("-none-any.whl") else set(COMPILED)
    built = {path.partition(".")[0] for path in native}
    for path in sorted(expected - built):
        yield f"{path} was not compiled, in a wheel for one platform"
    for path in sorted(built - expected):
        yield f"{path} is compiled"
    info = [path for path in files if path not in ours]
    for end in ("/METADATA", "/RECORD", "/WHEEL", "/entry_points.txt", "/licenses/LICENSE"):
        if not any(path.endswith(end) for path in info):
            yield f"*.dist-info{end} is missing"


def faults_of_sdist(files: Files, source: Files) -> Iterator[str]:
    """What it is built from must be in it; the tests may not: they need the whole clone."""
    sources = {path for path in source if path.startswith("edl/") and PurePosixPath(path).suffix in SHIPPED}
    sources |= {path for path in source if path.startswith(COMPILED)}
    for path in sorted(sources | {"pyproject.toml", "setup.py", "README.md", "LICENSE", "PKG-INFO"}):
        if path not in files:
            yield f"{path} is missing"
    for path in sorted(files):
        if path.startswith(("tests/", "benchmarks/", "docs/", "data/", "out/")):
            yield f"{path} does not belong into it"


def foreign_words(files: Files, words: Sequence[str]) -> Iterator[str]:
    """A path of the machine that built it tells strangers about it, and is no use to them."""
    for path, content in sorted(files.items()):
        for word in words:
            if word.encode() in content:
                yield f"{path} names {word}"


def read_package(path: Path) -> dict[str, bytes]:
    """Without the folder that an sdist begins with."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {one: wheel.read(one) for one in wheel.namelist() if not one.endswith("/")}
    with tarfile.open(path) as sdist:
        members = [one for one in sdist.getmembers() if one.isfile()]
        contents = {one.name.partition("/")[2]: sdist.extractfile(one) for one in members}
        return {name: stream.read() for name, stream in contents.items() if stream is not None}


def read_tree(folder: Path) -> dict[str, bytes]:
    kept = [folder / "horovod_edl.py", *(folder / "edl").rglob("*")]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in kept
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--foreign", action="append", default=[])
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    source, sound = read_tree(options.source), True
    for path in options.files:
        files = read_package(path)
        looked = faults_of_wheel(path.name, files, source) if path.suffix == ".whl" else faults_of_sdist(files, source)
        faults = [*looked, *foreign_words(files, [word for word in options.foreign if len(word) > 1])]
        print(f"[wheel] {path.name}: {len(files)} files, {path.stat().st_size / 1e6:.1f} MB, {len(faults)} faults")
        for fault in faults:
            print(f"[wheel]   {fault}", file=sys.stderr)
        sound = sound and not faults
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
