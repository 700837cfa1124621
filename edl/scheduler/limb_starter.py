"""The processes of one worker of a cluster, its limbs: started together, and they end as one.

`python -I -S limb_starter.py PROCESSES COMMAND...` is what a worker wrapper starts in the place of COMMAND where
workers have several processes. It imports nothing of edl. SIGTERM reaches the limbs by itself, as they are in this
process's group; they find each other by a file in the worker's folder.

A daemon may hold the other limbs of one that was killed, as the job may need what they have: it keeps a file
locked meanwhile, and ends them itself. Such limbs are given a minute.

Owns: that a bad end of one limb is that of all. Does not own: which devices they have (`edl.scheduler.agent_process`).
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

NOTICED_S = 0.3  # by then a daemon that holds limbs says so
HELD_S = 60.0  # so long it may hold them
MARK = "EDL_LAUNCH"  # the worker's folder, as in edl.launch.job_processes
SHELLS = 128  # a command that signal n has killed is reported as exit status 128 + n, as shells do


def main(processes: int, command: list[str]) -> int:
    """Return the exit status of the first limb that ends badly, or 0."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    meeting = os.path.join(os.environ[MARK], "meeting")
    shared = {**os.environ, "EDL_MEETING": meeting}
    line = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    limbs = [subprocess.Popen(line, env={**shared, "EDL_LIMB": str(limb)}) for limb in range(processes)]
    if asked:  # some were not there yet to hear it
        return end(limbs, SHELLS + asked[0])
    left = {limb.pid for limb in limbs}
    while left:
        pid, status = os.wait()
        left.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and pid in {limb.pid for limb in limbs}:
            others = [limb for limb in limbs if limb.pid in left]
            wait_while_held(others, meeting + ".held", asked)
            return end(others, code if code > 0 else SHELLS - code)
    return 0


def wait_while_held(limbs: list["subprocess.Popen[bytes]"], mark: str, asked: list[int]) -> None:
    """Wait until the limbs have ended, are not held, or are asked to end."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < HELD_S and not asked:
        if all(limb.poll() is not None for limb in limbs) or (waited >= NOTICED_S and not is_locked(mark)):
            return
        time.sleep(0.05)


def is_locked(mark: str) -> bool:
    """Tell whether a daemon that lives keeps the file locked."""
    try:
        with open(mark, "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def end(limbs: list["subprocess.Popen[bytes]"], code: int) -> int:
    """Kill the limbs: they would wait for the one that has ended."""
    for limb in limbs:
        limb.kill()
    for limb in limbs:
        limb.wait()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
