"""A job's machine with workers that do what is said of them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from edl.core.horizon import Horizon
from edl.core.inputs import Command, Reported, Tell
from edl.core.job import JobMachine, new_record
from edl.core.orders import OrderBook
from edl.protocol.assignment import Orders
from edl.protocol.data import DataSpec
from edl.protocol.job import Identity
from edl.protocol.messages import Observation, Phase, Register

SPEC = DataSpec(total=1000, epochs=1, batch=10)


def meet(machine: JobMachine, now: float, unmet: Collection[str] = ()) -> list[Command]:
    """Who is called to a next ring, and was seen, tells that it has met the others; not so those `unmet`."""
    told: list[Command] = []
    while (muster := machine.record.muster) is not None:
        away = [one for one in muster.roster if machine.seen.met(one)[0] != muster.number and one not in unmet]
        seen = next(((one, last) for one in away if (last := machine.seen.observation(one)) is not None), None)
        if seen is None:
            break
        worker, last = seen
        told += machine.handle(Reported(worker, msgspec.structs.replace(last, met=(muster.number,))), now)
    return told


class Job:
    """A machine with workers that do what is said of them."""

    def __init__(self, np: int = 2, minimum: int = 1, maximum: int = 0) -> None:
        self.machine = JobMachine(new_record("j", 0.0), Horizon.of(10.0))
        self.np, self.minimum, self.maximum = np, minimum, maximum
        self.now = 0.0
        self.told: list[Tell] = []
        self.last: dict[str, Observation] = {}
        self.unmet: set[str] = set()  # whose daemons do not come to a call

    def feed(self, happened: object) -> list[object]:
        self.now += 0.01
        commands = [*self.machine.handle(happened, self.now), *meet(self.machine, self.now, self.unmet)]  # type: ignore[arg-type]
        self.told += [command for command in commands if isinstance(command, Tell)]
        return list(commands)

    def join(self, worker: str) -> list[object]:
        identity = Identity(worker, "host", "127.0.0.1", 100, 101)
        return self.feed(Register(identity, self.np, self.minimum, self.maximum))

    def see(self, worker: str, phase: Phase, generation: int = 0, step: int = 0, **more: object) -> list[object]:
        values = {
            "leases_of": generation,
            "step_time_s": 0.01,
            "data": None,
            "pause": None,
            "leaving": False,
            "reason": "",
            "met": self.machine.seen.met(worker),
        } | more
        observation = Observation(phase=phase, generation=generation, step=step, **values)  # type: ignore[arg-type]
        self.last[worker] = observation
        return self.feed(Reported(worker, observation))

    def orders(self, worker: str) -> Orders:
        return OrderBook(self.machine.record, 1).orders(worker)

    def kinds(self) -> list[str]:
        return [tell.fact.kind.value for tell in self.told]
