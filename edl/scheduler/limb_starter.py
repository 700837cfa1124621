"""The processes of one worker of a cluster, its limbs: started together, and they end as one.

`python -I -S limb_starter.py PROCESSES COMMAND...` is what a worker wrapper starts in the place of COMMAND where
workers have several processes. It imports nothing of edl. SIGTERM reaches the limbs by itself, as they are in this
process's group; they find each other by a file in the worker's folder.

Owns: that a bad end of one limb is that of all. Does not own: which devices they have (`edl.scheduler.agent_process`).
"""

import os
import signal
import subprocess
import sys

MARK = "EDL_LAUNCH"  # the worker's folder, as in edl.launch.job_processes
SHELLS = 128  # a command that signal n has killed is reported as exit status 128 + n, as shells do


def main(processes: int, command: list[str]) -> int:
    """Return the exit status of the first limb that ends badly, or 0."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    shared = {**os.environ, "EDL_MEETING": os.path.join(os.environ[MARK], "meeting")}
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
            return end([limb for limb in limbs if limb.pid in left], code if code > 0 else SHELLS - code)
    return 0


def end(limbs: list["subprocess.Popen[bytes]"], code: int) -> int:
    """Kill the limbs: they would wait for the one that has ended."""
    for limb in limbs:
        limb.kill()
    for limb in limbs:
        limb.wait()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
