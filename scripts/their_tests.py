"""Tests of Keras, Accelerate, Lightning and Hugging Face's Trainer, unmodified, with edl where a script puts it.

Those of Keras and Accelerate come from the source packages of the versions that scripts/lock.txt names, fetched
by pip as it is set up here. Packages of Lightning and Transformers have none of their trainers: name a checkout of the
repository, `lightning=FOLDER`, `transformers=FOLDER`.
Each test runs twice, in a process of its own: with the library alone, and with a plugin of pytest (`in_place_*.py`)
that does what the library's page in docs/ tells a script to do. What fails alone says nothing of edl.

Horovod's run in jobs of two workers, of a checkout too, `horovod=FOLDER` (`their_horovod_tests.py`); `ddp` are cases of
DistributedDataParallel's, which are written here, with it and with edl in its place (`ddp_cases.py`).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import their_horovod_tests

ROOT = Path(__file__).parent.parent
WORK = ROOT / "out" / "their-tests"
SELECTED = {
    "keras": ("keras/src/trainers/trainer_test.py", "keras/src/callbacks/*_test.py"),
    "accelerate": ("tests/test_accelerator.py", "tests/test_optimizer.py", "tests/test_scheduler.py"),
    "lightning": (
        "tests/tests_pytorch/loops/test_training_loop.py",
        "tests/tests_pytorch/loops/optimization/test_automatic_loop.py",
        "tests/tests_pytorch/trainer/flags/test_min_max_epochs.py",
        "tests/tests_pytorch/trainer/flags/test_val_check_interval.py",
    ),
    "transformers": (
        "tests/trainer/test_trainer_callback.py",
        "tests/trainer/test_trainer_data.py",
        "tests/trainer/test_trainer_evaluation.py",
        "tests/trainer/test_trainer_optimizers.py",
    ),
}
SELECTED["horovod"] = (*their_horovod_tests.SELECTED, their_horovod_tests.COMMON)
DDP = "ddp"
PACKAGED = {  # what tests import from their own package, which keeps its place then
    "transformers": ("tests/__init__.py", "tests/trainer/__init__.py", "tests/trainer/trainer_test_utils.py"),
}
IN_PACKAGES = ("keras", "accelerate")
NEEDED = {  # by their tests, beside what is installed here; a test of Keras's trainer imports jax on any backend
    "keras": ("jax==0.6.2", "jaxlib==0.6.2"),
    "accelerate": ("parameterized==0.9.0",),
    "lightning": (),
    "transformers": ("parameterized==0.9.0",),
    "horovod": ("mock==5.2.0",),
}
IMPORTED = {"lightning": "torch.utils.tensorboard"}  # once for all tests: its logger would, in the process of each
ELSEWHERE = {"orbax_checkpoint_test.py", "remote_monitor_test.py"}  # need a package or a server of their own
TEST_S = 300  # on a busy machine; most take a second


def main() -> int:
    """Exit codes: 0 it ran, 1 a package could not be had."""
    parser = argparse.ArgumentParser(
        prog="scripts/their-tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "libraries",
        nargs="*",
        metavar="LIBRARY[=CHECKOUT]",
        help=f"of {', '.join(SELECTED)} and {DDP}, with a folder of its tests; {' and '.join(IN_PACKAGES)}, if none",
    )
    parser.add_argument("-k", dest="chosen", default="", help="only tests that pytest's -k finds")
    given = parser.parse_args()
    for one in given.libraries or IN_PACKAGES:
        library, _, checkout = one.partition("=")
        if complaint := refused(library, checkout):
            parser.error(complaint)
        if library == DDP:
            run_ddp_cases()
            continue
        try:
            compare(library, checkout, given.chosen)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"their-tests: {library} cannot be fetched: {error.stderr.strip()[-500:]}\n")
            return 1
    return 0


def run_ddp_cases() -> None:
    """By DistributedDataParallel itself, and by edl on each ring."""
    there, cases = Path(sys.executable).parent, str(ROOT / "scripts" / "ddp_cases.py")
    edl = [str(there / "edl"), "run", "-np", "2", "--max-restarts", "0"]
    for title, command in {
        "DistributedDataParallel": [str(there / "torchrun"), "--standalone", "--nproc-per-node", "2", cases],
        "edl, --ring horovod": [*edl, "--ring", "horovod", sys.executable, cases],
        "edl, --ring torch": [*edl, "--ring", "torch", sys.executable, cases],
    }.items():
        print(f"\n{title}", flush=True)
        subprocess.run(command, check=False)


def refused(library: str, checkout: str) -> str:
    """Why the command line is, or nothing."""
    if library == DDP:
        return f"{DDP} takes no checkout: its cases are in scripts/ddp_cases.py" if checkout else ""
    if library not in SELECTED:
        return f"there are no tests of {library} here: there are those of {', '.join(SELECTED)} and {DDP}"
    if not checkout:
        return "" if library in IN_PACKAGES else f"packages of {library} have no tests: say {library}=CHECKOUT"
    wanted = (*SELECTED[library], *PACKAGED.get(library, ()))
    missing = [pattern for pattern in wanted if not any(Path(checkout).glob(pattern))]
    return f"{checkout} is no checkout of {library}: there is no {missing[0]}" if missing else ""


def compare(library: str, checkout: str, chosen: str) -> None:
    """Alone and with edl. Raises CalledProcessError."""
    if library == "horovod":
        provide(library)
        their_horovod_tests.compare(Path(checkout).resolve(), WORK / library, WORK / "needed" / library, chosen)
        return
    version = pinned(library)
    folder = selected(library, Path(checkout) if checkout else unpacked(library, version))
    provide(library)
    alone = ran(library, folder, chosen, in_place=False)
    with_edl = ran(library, folder, chosen, in_place=True)
    print(f"\n{library} {version}\n\n{table(alone, with_edl)}", flush=True)


def pinned(library: str) -> str:
    """Its version here."""
    lines = (ROOT / "scripts" / "lock.txt").read_text().splitlines()
    return next(line.partition("==")[2].split()[0] for line in lines if line.startswith(f"{library}=="))


def unpacked(library: str, version: str) -> Path:
    """The folder of its source package. Raises CalledProcessError."""
    source = WORK / f"{library}-{version}"
    if not source.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
        fetch += ["--dest", str(WORK), f"{library}=={version}"]
        subprocess.run(fetch, check=True, capture_output=True, text=True)
        with tarfile.open(next(WORK.glob(f"{library}-{version}.tar.*"))) as archive:
            archive.extractall(WORK, filter="data")
    return source


def provide(library: str) -> None:
    """What its tests need, in a folder of its own. Raises CalledProcessError."""
    folder = WORK / "needed" / library
    missing = [name for name in NEEDED[library] if not (folder / name.partition("==")[0]).exists()]
    if missing:
        install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), *missing]
        subprocess.run(install, check=True, capture_output=True, text=True)


def selected(library: str, source: Path) -> Path:
    """A folder with the chosen tests, where no package of theirs hides the one that is installed."""
    folder = WORK / f"{library}-tests"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if library in PACKAGED:
        (folder / "src").mkdir()  # by which and `tests` Transformers knows the root of its repository
        for name in (*SELECTED[library], *PACKAGED[library]):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, folder / name)
        return folder
    for pattern in SELECTED[library]:
        for test in sorted(source.glob(pattern)):
            if test.name not in ELSEWHERE:
                shutil.copy(test, folder / test.name)
    return folder


def ran(library: str, folder: Path, chosen: str, *, in_place: bool) -> dict[str, list[str]]:
    """Of each test how it ended, and if it failed with what."""
    told = WORK / f"{library}-{'edl' if in_place else 'alone'}.jsonl"
    told.unlink(missing_ok=True)
    plugins = ["-p", "each_by_itself", *(["-p", f"in_place_{library}"] if in_place else [])]
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={folder}", "--import-mode=importlib", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:asyncio", "--continue-on-collection-errors", *plugins]
    command += ["-o", "python_files=test_*.py *_test.py", *(["-k", chosen] if chosen else [])]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("EDL_", "PYTEST_"))}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(WORK / "needed" / library)]),
        "THEIR_TESTS_TOLD": str(told),
        "THEIR_TESTS_SECONDS": str(TEST_S),
        "THEIR_TESTS_IMPORT": IMPORTED.get(library, ""),
        "EDL_HOME": str(WORK / "home"),
        "EDL_RING": "horovod" if library == "keras" else "torch",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    with (WORK / f"{library}-{'edl' if in_place else 'alone'}.log").open("w") as log:
        subprocess.run([*command, str(folder)], env=environ, cwd=folder, stdout=log, stderr=log, check=False)
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    return {test: [outcome, why] for test, outcome, why in lines}


def table(alone: dict[str, list[str]], with_edl: dict[str, list[str]]) -> str:
    """In Markdown: a row for each file, and below it what makes tests fail with edl that pass alone."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for test, (outcome, _) in alone.items():
        file, _, name = test.partition("::")
        rows[file][outcome] += 1
        if outcome == "passed":
            ended, why = with_edl.get(test, ["lost", "it was not run"])
            rows[file]["with edl"] += ended == "passed"
            if ended != "passed":
                reasons[re.sub(r"0x[0-9a-f]+|\d{4,}", "N", why)].append(name.rpartition("::")[2])
    found = ["| tests | pass alone | of these pass with edl | fail or are skipped alone |", "| --- | --- | --- | --- |"]
    for file, counts in sorted(rows.items()):
        others = counts["failed"] + counts["skipped"]
        found.append(f"| `{file}` | {counts['passed']} | {counts['with edl']} | {others} |")
    passed, edl = (sum(counts[name] for counts in rows.values()) for name in ("passed", "with edl"))
    found += [f"| together | {passed} | {edl} | |", ""]
    for why, tests in sorted(reasons.items(), key=lambda one: -len(one[1])):
        found.append(f"- {len(tests)}: {why}\n  ({', '.join(tests)})")
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main())
