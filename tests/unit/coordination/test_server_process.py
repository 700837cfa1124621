"""How a ZooKeeper server is started, without one."""

from __future__ import annotations

import os
import subprocess

from edl.coordination.child_server import dying_with


def test_a_command_whose_parent_was_gone_before_the_kernel_knew_does_not_begin() -> None:
    """No launcher would end it: `edl run` was killed between the fork and that."""
    orphan = subprocess.run(dying_with(1, ["echo", "begun"]), capture_output=True, text=True, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, "")


def test_a_command_of_a_living_parent_begins_with_its_own_words() -> None:
    child = subprocess.run(
        dying_with(os.getpid(), ["printf", "%s|", "a b", "$c"]), capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout) == (0, "a b|$c|")
