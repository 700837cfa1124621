"""Actor that runs inside of Ray for one worker, and starts the worker's warden.

It ends when nothing that the worker has started is left, and needs no other process that tells it to: its slot is
free for the next one also where the agent is gone.

Owns: this one process, on the worker's node. Does not own: when it is made (`ray_engine`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.launch.job_processes import MARK
from edl.scheduler import worker_processes

POLL_S = 0.1


class WorkerHolder:
    """An actor of Ray's, called by the agent of its node. Each call answers at once."""

    def __init__(self, warden: Sequence[str], environ: Mapping[str, str], handed_on: Sequence[str]) -> None:
        """`handed_on`: variables that Ray has set here, such as which GPUs are the actor's."""
        here = {name: os.environ[name] for name in handed_on if name in os.environ}
        self._folder = Path(environ[MARK])
        # It dies with this process, and the worker with it: nothing is left where Ray kills an actor.
        command = ["setpriv", "--pdeathsig", "KILL", "--", *warden]
        self._warden = subprocess.Popen(
            command, env={**environ, **here}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        threading.Thread(target=self._end_with_it, name="end", daemon=True).start()

    def pid(self) -> int:
        return self._warden.pid

    def ask(self) -> None:
        """The worker is to leave."""
        if self._warden.poll() is None:
            self._warden.send_signal(signal.SIGURG)

    def kill(self) -> None:
        worker_processes.kill(self._folder)

    def _end_with_it(self) -> None:
        """The warden stays until nothing that its worker has started is left, unless it is killed itself."""
        self._warden.wait()
        while worker_processes.left(self._folder):
            self.kill()
            time.sleep(POLL_S)
        os._exit(0)
