"""What a worker script of these tests drives: a framework without a job around it.

The test tells the worker over its standard input where to sit and what to train; the worker answers on its standard
output, one JSON object per line. So rings are Horovod's own, and everything else is left out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edl.collectives.name_warmup import Named
from edl.protocol.assignment import Place, solo
from edl.trainer.data.job_port import Rehearsals
from edl.trainer.data.sample_ids import Among
from edl.trainer.data.shards import CurrentItem
from edl.trainer.registered_state import RegisteredState
from edl.trainer.script_position import ScriptStanding
from edl.trainer.shared_evaluation import Work


class Own:
    """Connections that the script opens itself, on a thread of its own: none of the ring's."""

    def __init__(self) -> None:
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def open_for(self, seconds: float) -> None:
        """One after the other, from now on."""
        threading.Thread(target=self._keep_opening, args=(time.monotonic() + seconds,), daemon=True).start()

    def works(self) -> bool:
        """There are some, and what goes in comes out."""
        for one, other in self._pairs:
            one.sendall(b"x")
            if other.recv(1) != b"x":
                return False
        return bool(self._pairs)

    def _keep_opening(self, deadline: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            while time.monotonic() < deadline:
                one = socket.create_connection(server.getsockname())
                self._pairs.append((one, server.accept()[0]))
                time.sleep(0.01)


class Next:
    """The next ring, formed on a thread of its own as a trainer does it."""

    def __init__(self, ring: Any) -> None:
        self._ring = ring
        self._thread = threading.Thread()
        self._outcome = ""

    def prepare(self, place: dict[str, Any], timeout_s: float) -> None:
        arguments = msgspec.convert(place, Place), timeout_s
        self._thread = threading.Thread(target=self._prepare, args=arguments, daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> bool:
        return self._thread.is_alive()

    def outcome(self) -> str:
        """Nothing if it stands, or why it does not. Waits for it."""
        self._thread.join()
        return self._outcome

    def _prepare(self, place: Place, timeout_s: float) -> None:
        try:
            self._ring.prepare(place, timeout_s, all_prepare=True)
            self._outcome = ""
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            self._outcome = f"{type(error).__name__}: {error}"


class Names:
    """Those by which rings that were prepared have reduced zeros."""

    def __init__(self, ring: Any) -> None:
        self._ring = ring
        self._taken: list[str] = []
        if hasattr(ring, "_sums"):  # Horovod's
            reduce = ring._sums.reduce_zeros
            ring._sums.reduce_zeros = lambda library, tensors: (self._note(tensors), reduce(library, tensors))

    def know_of(self, name: str) -> None:
        """One more, which the others need not know of."""
        named = self._ring._named
        self._ring._named = lambda: [*named(), Named(name, (3,), "float32", 4)]

    def stop_before(self, *, alive: bool) -> None:
        """This process comes to the names of the next ring, and no further."""
        self._ring._named = threading.Event().wait if alive else lambda: os.kill(os.getpid(), signal.SIGKILL)

    def take(self) -> list[str]:
        taken, self._taken = self._taken, []
        return taken

    def _note(self, tensors: Sequence[Named]) -> None:
        self._taken += [one.name for one in tensors]


def used() -> dict[str, Any]:
    """What this process has open, and what it computes while it is not asked to, in seconds per second."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own, or closed since by another thread
            links.append(str(entry.readlink()))
    cpu, now = time.process_time(), time.monotonic()
    time.sleep(0.5)
    return {
        "open": sorted(links),
        "files": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "resident_mb": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "cpu": (time.process_time() - cpu) / (time.monotonic() - now),
    }


class FakeTrainer:
    """The other half of the port, as far as an adapter uses it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.among = Among()
        self.before = self.begun = self.ended = self.waited_ns = 0
        self.shards: Any = None
        self.standing = ScriptStanding(RegisteredState())
        self.standing.register()
        self.rehearsals = Rehearsals()
        self.given_up = self.ends_pass = False
        self.without_samples: set[int] = set()  # steps in which no worker has any

    @property
    def voided(self) -> bool:
        return self.error is not None

    @property
    def weightless(self) -> bool:
        return self.step() in self.without_samples

    def step(self) -> int:
        return self.ended + 1

    virtual = 0

    def before_reduce(self) -> None:
        self.before += 1

    def before_update(self) -> None:
        """No state is under way."""

    def await_state(self) -> None:
        """None comes."""

    def keep_in_step(self) -> None:
        """There is no pipeline."""

    def waited(self, nanoseconds: int) -> None:
        self.waited_ns += nanoseconds

    def void(self, error: BaseException) -> None:
        self.error = self.error or error

    def void_beside(self, error: BaseException) -> None:
        self.void(error)

    def begin_batch(self) -> None:
        self.begun += 1

    def notify_batch_end(self, samples: int | None = None) -> bool:
        self.ended += 1
        if self.rehearsals.left:
            self.rehearsals.end_one()
        return not self.voided

    def hold(self) -> CurrentItem:
        return CurrentItem()

    def rank(self) -> int:
        return 0

    @property
    def committed(self) -> int:
        return self.ended

    def own_samples(self) -> int:
        return 1

    def evaluate_shared(self, work: Work) -> tuple[bytes, ...]:
        work.compute(range(work.units), lambda: True)
        return (work.found(),)

    def rehearsing(self) -> bool:
        return self.rehearsals.left > 0

    def take_error(self) -> str:
        error, self.error = self.error, None
        return "" if error is None else f"{type(error).__name__}: {error}"


def serve(framework: Any, commands: Mapping[str, Any], registered: dict[str, Any]) -> None:
    """Obeys until the input ends. Besides `commands` there are those of the ring. An answer is `of` a command."""
    own = Own()
    extras = RegisteredState(framework.sort)
    extras.add(registered)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not get between the answers

    def enter(place: dict[str, Any], timeout_s: float = 20.0) -> int:
        framework.ring.enter(msgspec.convert(place, Place), timeout_s)
        return framework.ring.size

    timers: list[threading.Timer] = []

    def abort_after(seconds: float) -> None:
        timers.append(threading.Timer(seconds, framework.ring.abort))
        timers[-1].start()

    def later(seconds: float, command: str, *arguments: Any) -> None:
        """On a thread of its own."""
        timers.append(threading.Timer(seconds, known[command], arguments))
        timers[-1].start()

    def aborted() -> None:
        """Wait for it: a peer's abort frees us as well, and ours must not come into the next ring."""
        while timers:
            timers.pop().join()

    following, names = Next(framework.ring), Names(framework.ring)

    def train_beside(*batch: Any) -> tuple[int, str]:
        """Steps, as long as the next ring forms on any member; how many, and what the last one of them failed of."""
        steps, error = 0, ""
        while not error:
            under_way = framework.ring.largest([int(following.under_way)]) == [1]
            if not under_way:
                break
            error = commands["train"](*batch)
            steps += 1
        return steps, error

    def synchronize(root: int) -> None:
        framework.synchronize(root)
        extras.synchronize(framework, root, is_root=framework.ring.place.rank == root)

    known = {
        "abort": framework.ring.abort,
        "abort_of": lambda generation: framework.ring.abort(range(generation, generation + 1)),
        "abort_after": abort_after,
        "aborted": aborted,
        "adopt": framework.ring.adopt,
        "enter": enter,
        "die_before_names": lambda: names.stop_before(alive=False),
        "hang_before_names": lambda: names.stop_before(alive=True),
        "know_of_name": names.know_of,
        "later": later,
        "leave": framework.ring.leave,
        "names": names.take,
        "largest": framework.ring.largest,
        "broadcast": lambda text, root: framework.ring.broadcast(text and text.encode(), root).decode(),
        "prepare": following.prepare,
        "prepared": following.outcome,
        "prepares": lambda: framework.ring.prepares,
        "release": framework.ring.release,
        "stands": lambda: framework.ring.place.generation,
        "synchronize": synchronize,
        "train_beside": train_beside,
        "used": used,
        "weight": framework.set_weight,
        "weightless": lambda: framework.set_weight(0.0, weightless=True),
        "open_own": own.open_for,
        "own_works": own.works,
        **commands,
    }
    framework.ring.enter(solo(sys.argv[1]), 20.0)
    faulthandler.register(signal.SIGUSR1)  # where it stands, to a test that waits in vain
    answers.write(json.dumps({"of": 0, "result": os.getpid()}) + "\n")
    for line in sys.stdin:
        number, name, arguments = json.loads(line)
        try:
            reply = {"result": known[name](*arguments)}
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"of": number, **reply}) + "\n")
    framework.ring.leave()
