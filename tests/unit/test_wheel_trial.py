"""What a machine of `scripts/wheel` has that has no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from wheel_trial import fitting, path_without


def test_neither_compilers_nor_what_is_named_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ls", "gcc", "gcc-12", "x86_64-linux-gnu-g++", "java", "etcd"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}:{tmp_path / 'there is none'}")

    def found(name: str, *hidden: str) -> list[str]:
        return sorted(one.name for one in Path(path_without(tmp_path / name, *hidden)).iterdir())

    assert found("no compiler") == ["etcd", "java", "ls"]
    assert found("no Java", "java") == ["etcd", "ls"]
    assert found("bare", "java", "etcd") == ["ls"]


def test_a_python_is_given_its_own_wheels_and_the_pure_one(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["edl-1-cp311-cp311-linux_x86_64.whl", "edl-1-cp313-abi3-manylinux_2_34_x86_64.whl"]
    own = ["edl-1-cp312-cp312-linux_x86_64.whl", "edl-1-cp311-abi3-linux_x86_64.whl", "edl-1-py3-none-any.whl"]
    monkeypatch.setattr("sys.version_info", (3, 12, 1))
    assert [wheel.name for wheel in fitting(Path(name) for name in others + own)] == own
