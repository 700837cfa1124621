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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pace import patient
from warm_python import WarmPython

from edl.protocol.assignment import Place
from tests.model.address_meeting import Gathering

HERE = Path(__file__).parent
STUCK_S = 15.0
ANSWER_S = 150.0  # more than any command takes: a ring forms or fails within 60 s


class WorkerFailed(Exception):
    """The worker answered with an error, whose text this is, or not at all."""


class Worker:
    """One worker process, forked from one that has imported its framework."""

    def __init__(self, warm: WarmPython, script: str, name: str, *arguments: str, ring: str) -> None:
        self.name = name
        self.pid = 0
        self._told = 0  # the number of the newest command; an answer has its command's
        self._read = b""  # and not taken yet
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        self.process = subprocess.Popen(
            [*warm.command(HERE / script), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | quiet | {"EDL_RING": ring},
        )

    def wait_booted(self) -> None:
        """It says its pid: a signal must reach it itself."""
        self.pid = self.answer()

    def send(self, command: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self._told += 1
        self.process.stdin.write(json.dumps([self._told, command, arguments]).encode() + b"\n")
        self.process.stdin.flush()

    @property
    def output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def answered(self) -> tuple[Any] | None:
        """Its answer to the newest command, None while there is none. Answers that no test took are passed over."""
        os.set_blocking(self.output, False)
        while b"\n" not in self._read:
            try:
                read = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return None
            if not read:
                raise WorkerFailed(f"{self.name} ended with {self.process.wait()}")
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        reply = json.loads(line)
        if reply["of"] != self._told:
            return self.answered()
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return (reply["result"],)

    def stuck(self) -> str:
        """As a sentence. It writes down where its threads stand."""
        if self.pid:
            self.signal(signal.SIGUSR1)
        return f"{self.name} did not answer command {self._told}"

    def answer(self) -> Any:
        return answers([self])[0]

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


def answers(workers: list[Worker]) -> list[Any]:
    """All answers, in the order of `workers`. After an error the others get a moment more: they may be stuck."""
    results: dict[str, Any] = {}
    failures: list[WorkerFailed] = []
    until = time.monotonic() + patient(ANSWER_S)
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.output, selectors.EVENT_READ, worker)
        while waiting := [key.data for key in selector.get_map().values()]:
            for worker in waiting:
                try:
                    reply = worker.answered()
                except WorkerFailed as error:
                    failures.append(error)
                    until = min(until, time.monotonic() + STUCK_S)
                else:
                    if reply is None:
                        continue
                    results[worker.name] = reply[0]
                selector.unregister(worker.output)
            if selector.get_map() and not selector.select(max(0.0, until - time.monotonic())):
                break
    if failures:
        raise failures[0]
    if waiting:
        raise WorkerFailed("; ".join(worker.stuck() for worker in waiting))
    return [results[worker.name] for worker in workers]


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
        return answers([self.workers[member] for member in members])


def by(way: str, warm: WarmPython, number: int, kind: str) -> Fleet:
    """Workers who train by PyTorch, in Horovod's ring (`torch`) or in its own (`groups`), or in a way of TensorFlow."""
    if way in {"torch", "groups"}:
        return Fleet(warm, "torch_worker.py", number, kind, ring="torch" if way == "groups" else "horovod")
    return Fleet(warm, "tensorflow_worker.py", number, way, kind)
