"""What a user sees when `import edl` finds the other distribution of that name."""

import subprocess
import sys
from pathlib import Path

import pytest

OURS = Path(__file__).parents[2]
ENTRY = "import sys, horovod_edl; sys.exit(horovod_edl.main())"


def run_entry(*path: Path) -> subprocess.CompletedProcess[str]:
    """The console script, with these folders on the path and nothing else of ours."""
    environ = {"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-S", "-c", ENTRY], env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture
def entry(tmp_path):
    """The entry module alone, as it is installed beside whichever package."""
    folder = tmp_path / "entry"
    folder.mkdir()
    (folder / "horovod_edl.py").write_text((OURS / "horovod_edl.py").read_text())
    return folder


@pytest.fixture
def foreign(tmp_path):
    package = tmp_path / "foreign" / "edl" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("class List: pass\n")
    return package


def the_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 2
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    return line


def test_the_other_one_shadows_ours(entry, foreign):
    line = the_line(run_entry(entry, foreign.parents[1], OURS))
    assert str(foreign) in line
    assert "`pip uninstall edl`" in line


def test_the_other_one_does_not_even_import(entry, foreign):
    foreign.write_text("import timecode\n")
    assert str(foreign) in the_line(run_entry(entry, foreign.parents[1], OURS))


def test_the_other_one_was_installed_over_ours(entry, foreign):
    (foreign.parent / "cli.py").write_text("raise SystemExit('never reached')\n")
    assert str(foreign) in the_line(run_entry(entry, foreign.parents[1]))


def test_a_folder_of_that_name_in_the_way(entry, foreign):
    foreign.unlink()
    assert str(foreign.parent) in the_line(run_entry(entry, foreign.parents[1]))


def test_nothing_at_all(entry):
    assert "finds nothing" in the_line(run_entry(entry))


def test_run_elsewhere_than_on_linux_is_one_line(entry):
    pretend = (
        f"import sys; sys.path.insert(0, {str(entry)!r}); sys.platform = 'darwin'; sys.argv = ['edl', 'run', 'true']"
    )
    code = f"{pretend}; import horovod_edl; sys.exit(horovod_edl.main())"
    line = the_line(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False))
    assert line == "edl: `edl run` needs Linux, and this is darwin: start it in a container or on a host of Linux"


def test_ours_goes_on_to_the_command_line(tmp_path, entry):
    package = tmp_path / "ours" / "edl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((OURS / "edl" / "__init__.py").read_text())
    (package / "cli.py").write_text("def main():\n    return 7\n")
    assert run_entry(entry, package.parent).returncode == 7
