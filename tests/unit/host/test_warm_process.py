"""Which processes are forked, as far as that can be told without one."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from edl.host.warm_process import NotForkable, check_forkable, import_all, import_in_thread

LIBRARY = sysconfig.get_path("stdlib")


REFUSED = "try: check_forkable([], [], open_targets())\nexcept NotForkable as error: print(error)"


def in_a_process(code: str) -> str:
    line = [sys.executable, "-c", f"from edl.host.warm_process import *\n{code}"]
    # In a session of its own: the priority is one of a session, too, where the kernel shares cores out among them.
    done = subprocess.run(line, capture_output=True, text=True, check=True, start_new_session=True)
    return done.stdout.strip()


def test_what_is_imported_by_a_thread_is_there_and_the_thread_is_not() -> None:
    work = "import_in_thread(['wave', 'no_such_module'], eager=False)\ncheck_forkable([], [], open_targets())\n"
    said = in_a_process(f"{work}print('wave' in sys.modules, len(os.listdir('/proc/self/task')), os.getpriority(0, 0))")
    assert said.split() == ["True", "1", "0"]


def test_what_pandas_imports_starts_no_thread() -> None:
    pytest.importorskip("pyarrow")
    work = "before = dict(os.environ)\nimport_in_thread(['pyarrow'], eager=True)\n"
    work += "check_forkable([], [], open_targets())\nprint('pyarrow' in sys.modules, os.environ == before)"
    assert in_a_process(work) == "True True"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no priorities of sessions")
def test_the_session_has_its_priority_back_after_the_imports(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("print(open('/proc/self/autogroup').read().split()[2])")
    work = f"sys.path.append({str(tmp_path)!r})\nimport_in_thread(['told'], eager=False)\n"
    assert in_a_process(f"{work}print(read(AUTOGROUP).split()[2])").split() == ["19", "0"]


@pytest.mark.slow
def test_a_process_with_threads_is_not_forked() -> None:
    thread = "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    assert in_a_process(f"{thread}\n{REFUSED}") == "the imports have started 1 threads"


def test_one_that_has_a_device_open_is_not_forked() -> None:
    opened = "import edl.host.warm_process as warm\nwarm.DEVICES = ('/dev/null',)\nfile = open('/dev/null')"
    assert in_a_process(f"{opened}\n{REFUSED}") == "the imports have opened /dev/null"


@pytest.mark.parametrize(
    "code", ["kept = os.pipe()", "import select; kept = select.epoll()", "kept = socket.socketpair()"]
)
def test_one_that_has_what_all_forks_would_share_is_not_forked(code: str) -> None:
    refused = "try: check_forkable([], [], before)\nexcept NotForkable as error: print(error)"
    before = "import socket\nopen_before = os.pipe()\nbefore = open_targets()"
    assert in_a_process(f"{before}\n{refused}") == ""
    assert re.match(r"the imports have opened (pipe|socket|anon_inode):", in_a_process(f"{before}\n{code}\n{refused}"))


@pytest.mark.parametrize(
    ("name", "said"),
    [("edl-mpi_lib.so", ""), ("mpi_lib.so", "the imports have opened /memfd:mpi_lib.so (deleted)")],
)
def test_of_memory_that_is_open_only_a_copy_of_a_library_goes_with_forks(name: str, said: str) -> None:
    refused = "try: check_forkable([], [], before)\nexcept NotForkable as error: print(error)"
    assert in_a_process(f"before = open_targets()\nkept = os.memfd_create({name!r})\n{refused}") == said


def test_one_that_has_a_child_is_not_forked() -> None:
    child = "import subprocess\nchild = subprocess.Popen(['sleep', '9'])"
    assert in_a_process(f"{child}\n{REFUSED}\nchild.kill()") == "the imports have started a process"


def test_an_import_that_fails_midway_leaves_nothing_to_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_the_main_thread.py").write_text("import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotForkable, match=r"of_the_main_thread cannot be imported ahead: .*main thread"):
        import_in_thread(["of_the_main_thread"], eager=True)


def test_one_that_has_a_module_in_the_place_of_the_scripts_own_is_not_forked() -> None:
    with pytest.raises(NotForkable, match="a module json of its own"):
        check_forkable(["json"], [LIBRARY], [])


def test_a_module_that_cannot_be_imported_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_all(["no_such_module", "wave"]) == ""
    assert "no_such_module" in capsys.readouterr().err
    assert "wave" in sys.modules
