"""Runs a command for as long as the process that owns it lives: `python -IS keeper.py OWNER COMMAND...`.

Who starts it gives it an open file that is locked: for so long the lock is held. Another process of the same
tests that needs what the command is sees by it that it runs. It is told to end by SIGTERM.
"""

import os
import select
import signal
import subprocess
import sys


def keep(owner, command):
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        gone = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command])
    select.select([told, gone, os.pidfd_open(child.pid)], [], [])
    child.kill()
    child.wait()


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2:])
