"""Worker processes under a test's command, and rings among them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
from warm_python import WarmPython

from edl.protocol.ring import Place
from edl.testing.gathering import Gathering

HERE = Path(__file__).parent
STUCK_S = 15.0


class WorkerFailed(Exception):
    """The worker answered with an error, whose text this is."""


class Worker:
    """One worker process, forked from one that has imported its framework."""

    def __init__(self, warm: WarmPython, script: str, name: str, *arguments: str, ring: str) -> None:
        self.name = name
        self.pid = 0
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        self.process = subprocess.Popen(
            [*warm.command(HERE / script), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | quiet | {"EDL_RING": ring},
        )

    def wait_booted(self) -> None:
        """It says its pid: a signal must reach it itself."""
        self.pid = self.answer()

    def send(self, command: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]) + "\n")
        self.process.stdin.flush()

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def answer(self) -> Any:
        line = self.output.readline()
        if not line:
            raise WorkerFailed(f"{self.name} ended with {self.process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply["result"]

    def call(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def finish(self) -> int:
        """Its input ends, and so does its script. How it did."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Preparation:
    """A ring that may form beside others."""

    def __init__(self, generation: int, workers: dict[int, Worker], places: dict[int, Place], timeout_s: float) -> None:
        self.generation = generation
        self._workers = workers
        self._places = places
        self._timeout_s = timeout_s

    def come(self, *members: int) -> None:
        """These begin to form it, on threads of their own."""
        for member in members:
            place = msgspec.to_builtins(self._places[member])
            self._workers[member].call("prepare", place, self._timeout_s)


class Fleet:
    """Workers, and a loop on which they find each other. Use it as a context."""

    def __init__(self, warm: WarmPython, script: str, number: int, *arguments: str, ring: str = "horovod") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._generation = 0
        self.workers = [Worker(warm, script, f"w{index}", *arguments, ring=ring) for index in range(number)]

    def __enter__(self) -> Fleet:
        self._thread.start()
        for worker in self.workers:
            worker.wait_booted()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]

    @contextlib.contextmanager
    def preparing(self, members: list[int], timeout_s: float = 20.0) -> Iterator[Preparation]:
        """Inside, a ring of these workers may form beside those in which they are: who comes is said later."""
        with self._gathered(members) as places:
            workers = {member: self.workers[member] for member in members}
            yield Preparation(self._generation, workers, dict(zip(members, places, strict=True)), timeout_s)

    def form(
        self,
        members: list[int],
        timeout_s: float = 20.0,
        expect: list[int] | None = None,
        hosts: list[dict[str, int]] | None = None,
    ) -> None:
        """A ring of these workers, ranks in this order. `expect`: only these are told to enter; `hosts`: on which."""
        with self._gathered(members) as places:
            entering = members if expect is None else expect
            for member in entering:
                rank = members.index(member)
                place = msgspec.structs.replace(places[rank], **(hosts[rank] if hosts else {}))
                self.workers[member].send("enter", msgspec.to_builtins(place), timeout_s)
            self._collect(entering)

    def together(self, members: list[int], command: str, arguments: list[tuple[Any, ...]] | None = None) -> list[Any]:
        """All members do `command` at the same time; `arguments` has a tuple for each."""
        for index, member in enumerate(members):
            self.workers[member].send(command, *(arguments[index] if arguments else ()))
        return self._collect(members)

    @contextlib.contextmanager
    def _gathered(self, members: list[int]) -> Iterator[list[Place]]:
        """Inside, the members of the next generation find each other."""
        self._generation += 1
        gathering = Gathering([self.workers[member].name for member in members], self._generation)
        places = asyncio.run_coroutine_threadsafe(gathering.open(), self._loop).result()
        try:
            yield places
        finally:
            asyncio.run_coroutine_threadsafe(gathering.stop(), self._loop).result()

    def _collect(self, members: list[int]) -> list[Any]:
        """All answers, in the order of `members`. After an error the others get a moment more: they may be stuck."""
        answers: dict[int, Any] = {}
        failures: list[WorkerFailed] = []
        with selectors.DefaultSelector() as selector:
            for member in members:
                selector.register(self.workers[member].output, selectors.EVENT_READ, member)
            while len(answers) + len(failures) < len(members):
                ready = selector.select(STUCK_S if failures else None)
                if not ready:
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    try:
                        answers[key.data] = self.workers[key.data].answer()
                    except WorkerFailed as error:
                        failures.append(error)
        if failures:
            raise failures[0]
        return [answers[member] for member in members]


def by(way: str, warm: WarmPython, number: int, kind: str) -> Fleet:
    """Workers who train by PyTorch, in Horovod's ring (`torch`) or in its own (`groups`), or in a way of TensorFlow."""
    if way in {"torch", "groups"}:
        return Fleet(warm, "torch_worker.py", number, kind, ring="torch" if way == "groups" else "horovod")
    return Fleet(warm, "tensorflow_worker.py", number, way, kind)
