"""Which processes are forked, as far as that can be told without one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

from edl.host.warm_process import NotForkable, check_forkable, import_all

LIBRARY = sysconfig.get_path("stdlib")


REFUSED = "try: check_forkable([], [])\nexcept NotForkable as error: print(error)"


def in_a_process(code: str) -> str:
    line = [sys.executable, "-c", f"from edl.host.warm_process import *\n{code}"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_imported_by_a_thread_is_there_and_the_thread_is_not() -> None:
    work = "import_in_thread(['wave', 'no_such_module'], eager=False)\ncheck_forkable([], [])\n"
    said = in_a_process(f"{work}print('wave' in sys.modules, len(os.listdir('/proc/self/task')), os.getpriority(0, 0))")
    assert said.split() == ["True", "1", "0"]


def test_a_process_with_threads_is_not_forked() -> None:
    thread = "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    assert in_a_process(f"{thread}\n{REFUSED}") == "the imports have started 1 threads"


def test_one_that_has_a_device_open_is_not_forked() -> None:
    opened = "import edl.host.warm_process as warm\nwarm.DEVICES = ('/dev/null',)\nfile = open('/dev/null')"
    assert in_a_process(f"{opened}\n{REFUSED}") == "the imports have opened /dev/null"


def test_one_that_has_a_module_in_the_place_of_the_scripts_own_is_not_forked() -> None:
    with pytest.raises(NotForkable, match="a module json of its own"):
        check_forkable(["json"], [LIBRARY])


def test_a_module_that_cannot_be_imported_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_all(["no_such_module", "wave"]) == 1
    assert "no_such_module" in capsys.readouterr().err
    assert "wave" in sys.modules
