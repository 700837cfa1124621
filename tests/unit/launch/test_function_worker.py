"""What a worker of `edl.run` leaves for its caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from edl.launch.function_files import FunctionCall, pickled, read_results, write_function


def test_a_process_that_the_function_forks_leaves_no_result_of_its_own(tmp_path: Path) -> None:
    def forks() -> str:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return "worker" if child else "child"

    write_function(tmp_path, pickled(FunctionCall(forks, (), {})))
    command = [sys.executable, "-P", "-m", "edl.launch.function_worker", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    assert read_results(tmp_path) == ["worker"]
