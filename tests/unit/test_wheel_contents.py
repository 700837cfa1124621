"""What `scripts/wheel` finds wrong with a package."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from wheel_contents import COMPILED, NEEDED, faults_of_sdist, faults_of_wheel, foreign_words, read_package

INFO = {f"horovod_edl-1.dist-info/{name}": b"" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")} | {
    "horovod_edl-1.dist-info/licenses/LICENSE": b""
}
SOURCE = dict.fromkeys(NEEDED, b"words") | {"edl/a.py": b"code"} | {f"{path}.c": b"" for path in COMPILED}
PURE = {path: content for path, content in SOURCE.items() if not path.endswith(".c")} | INFO
NATIVE = {f"{path}.abi3.so": b"" for path in COMPILED}
PURE_NAME, NATIVE_NAME = "horovod_edl-1-py3-none-any.whl", "horovod_edl-1-cp311-abi3-manylinux_2_34_x86_64.whl"
SDIST = SOURCE | dict.fromkeys(("pyproject.toml", "setup.py", "README.md", "LICENSE", "PKG-INFO"), b"")


def test_whole_ones_have_no_fault() -> None:
    assert list(faults_of_wheel(PURE_NAME, PURE, SOURCE)) == []
    assert list(faults_of_wheel(NATIVE_NAME, PURE | NATIVE, SOURCE)) == []
    assert list(faults_of_sdist(SDIST, SOURCE)) == []


@pytest.mark.parametrize("path", [*NEEDED, "edl/a.py", *INFO])
def test_what_is_missing_is_named(path: str) -> None:
    without = {one: content for one, content in PURE.items() if one != path}
    [fault] = faults_of_wheel(PURE_NAME, without, SOURCE)
    assert fault.endswith("is missing") and fault.removesuffix(" is missing").rpartition("/")[2] in path


@pytest.mark.parametrize(
    ("name", "files", "fault"),
    [
        (PURE_NAME, {"tests/test_a.py": b""}, "tests/test_a.py does not belong into it"),
        (PURE_NAME, {"edl/transport/_count.c": b""}, "edl/transport/_count.c does not belong into it"),
        (PURE_NAME, {"edl/a.py": b"of another time"}, "edl/a.py is not that of the tree"),
        (PURE_NAME, {"edl/transport/_count.abi3.so": b""}, "edl/transport/_count is compiled"),
        (NATIVE_NAME, {**NATIVE, "edl/x.so": b""}, "edl/x is compiled"),
    ],
)
def test_what_is_too_much_is_named(name: str, files: dict[str, bytes], fault: str) -> None:
    assert list(faults_of_wheel(name, PURE | files, SOURCE)) == [fault]


@pytest.mark.parametrize("path", COMPILED)
def test_a_wheel_for_one_platform_that_lacks_what_makes_it_one_is_none(path: str) -> None:
    """As where a compiler fails: the package installs all the same, and is slow for no reason that a user sees."""
    native = {one: content for one, content in NATIVE.items() if not one.startswith(path)}
    assert list(faults_of_wheel(NATIVE_NAME, PURE | native, SOURCE)) == [
        f"{path} was not compiled, in a wheel for one platform"
    ]


def test_an_sdist_has_what_it_is_built_from_and_no_tests() -> None:
    without = {path: content for path, content in SDIST.items() if path != f"{COMPILED[0]}.c"}
    assert list(faults_of_sdist(without | {"tests/test_a.py": b""}, SOURCE)) == [
        f"{COMPILED[0]}.c is missing",
        "tests/test_a.py does not belong into it",
    ]


def test_paths_of_the_building_machine_are_found_in_any_byte() -> None:
    files = {"edl/x.so": b"\x7fELF\0/home/me/edl/x.c\0", "edl/a.py": b"/home/you"}
    assert list(foreign_words(files, ["/home/me", "/root"])) == ["edl/x.so names /home/me"]


def test_both_forms_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("edl/a.py", "code")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        member = tarfile.TarInfo("horovod_edl-1/edl/a.py")
        member.size = 4
        sdist.addfile(member, io.BytesIO(b"code"))
    assert read_package(tmp_path / "a.whl") == read_package(tmp_path / "a.tar.gz") == {"edl/a.py": b"code"}
