"""The leader's own say in the size of its job: measures, asks the job's policy, and hands on what it rules.

Owns: how often it looks, the views that policies are shown, and that a user's policy that raises or hangs harms nobody.
Does not own: the arithmetic (`edl.policy`), nor carrying a decision out (`edl.core.sizing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from edl.clock import Clock
from edl.core.batching import weighted_shares
from edl.core.inputs import Input, Measured, Ruled
from edl.core.job import JobMachine
from edl.core.meter import Meter
from edl.core.scaling import staying
from edl.errors import ConfigError
from edl.policy.choice import Choice
from edl.policy.engine import Engine, Pacing, Ruling
from edl.policy.stragglers import Paces, Straggler, Uneven
from edl.policy.timesheets import Seated, Timesheets
from edl.policy.view import View
from edl.protocol.job import JobState, WorkerState

logger = logging.getLogger("edl")

LOOK_S = 1.0
DECIDE_S = 5.0  # that a policy may take


class Governor:
    """One term's. Run it as a task of the leader's."""

    def __init__(self, machine: JobMachine, clock: Clock, put: Callable[[Input], Awaitable[None]]) -> None:
        self._machine = machine
        self._clock = clock
        self._put = put
        governing = machine.record.governing
        self._governing = governing
        self.meter = Meter(machine.record.rates)
        self._engine = self._made()
        self._paces = Paces()
        self._sheets = Timesheets()
        self._generation = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            record = self._machine.record
            if record.governing != self._governing:  # the first worker has come only now
                self._governing = record.governing
                self._engine = self._made()
            if record.state in {JobState.RUNNING, JobState.SCALING} and record.generation:
                await self._look()

    def _made(self) -> Engine | None:
        """None: nobody asked for one."""
        governing = self._governing
        only_tell = governing.stragglers == "tell"
        if not governing.autoscale:
            pacing = Pacing(every=governing.every)
            return None if governing.stragglers == "off" else Engine(None, pacing, only_tell=only_tell)
        choice = Choice.of(governing.autoscale)
        try:
            return Engine(choice.policy(governing.utility), choice.pacing(governing.every), only_tell=only_tell)
        except ConfigError as error:  # on this host: `edl run` has tried it on its own
            logger.error("%s", error)
            return None

    async def _look(self) -> None:
        machine, record = self._machine, self._machine.record
        newest, at, trained = machine.progress
        if record.generation != self._generation:
            self._generation = record.generation
            self._sheets.begin()
            self._paces.forget()
            if self.meter.rates != record.rates:
                await self._put(Measured(self.meter.rates))
        self.meter.look(record.generation, len(record.roster), (at, newest, trained))
        if self._sheets.take(self._seated()):
            self._paces.take(self._sheets.spent, self._sheets.batches)
        if self._engine is not None:
            ruling = await self._ruling(self._engine, self._view(newest, trained))
            if ruling is not None and machine.record.generation == record.generation:
                one = ruling.decision
                await self._put(Ruled(one.size, one.replace, one.reason, one.numbers, ruling.act, one.shares))
                if one.shares:
                    self._paces.forget()

    async def _ruling(self, engine: Engine, view: View) -> Ruling | None:
        """In a thread: it may be a user's code that runs there, which must not hold up the leader."""
        straggler, at_rest = self._straggler(), self._at_rest()
        try:
            async with asyncio.timeout(DECIDE_S):
                return await asyncio.to_thread(engine.look, view, straggler, at_rest=at_rest)
        except TimeoutError:
            reason = f"the job's policy has not decided within {DECIDE_S:g} s: it is not asked any more"
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            reason = f"the job's policy raised {error!r}: it is not asked any more"
        self._engine = None
        await self._put(Ruled(view.size, (), reason, {}, act=False))
        return None

    def _straggler(self) -> Straggler | Uneven | None:
        match self._governing.stragglers:
            case "off":
                return None
            case "share":
                return self._paces.uneven(self._machine.record.shares, self._dealt)
            case _:
                return self._paces.verdict()

    def _dealt(self, shares: Mapping[str, float]) -> dict[str, int]:
        """The samples that workers take of a step with such shares of the batch."""
        roster, ledger = self._machine.record.roster, self._machine.ledger
        batch = 0 if ledger is None else ledger.batch
        return dict(zip(roster, weighted_shares(batch, [shares.get(one, 1.0) for one in roster]), strict=True))

    def _at_rest(self) -> bool:
        """No change is under way, or waited for."""
        record = self._machine.record
        trains = all(member.state is WorkerState.TRAINING for member in record.members)
        return trains and record.plan is None and len(staying(record)) == record.target and record.replacing is None

    # ----------------------------------------------------------------------------------------------- what is seen

    def _view(self, newest: int, trained: int) -> View:
        record, ledger = self._machine.record, self._machine.ledger
        open_end = ledger is None or ledger.spec.open_ended
        return View(
            now=self._clock.wall() - record.started,
            step=newest,
            size=len(record.roster),
            minimum=record.limits.minimum,
            maximum=record.limits.maximum,
            rates=self.meter.rates,
            samples_left=None if ledger is None or open_end else max(0, ledger.wanted - trained),
            workers=self._sheets.views(self._paces.paces),
            epoch=0 if ledger is None else ledger.epoch,
        )

    def _seated(self) -> list[Seated]:
        """All of the ring, or nobody: before each has told something of itself."""
        members = {member.identity.id: member for member in self._machine.record.members}
        found = []
        for rank, worker in enumerate(self._machine.record.roster):
            observation = self._machine.seen.observation(worker)
            if observation is None or observation.usage is None or worker not in members:
                return []
            found.append(Seated(worker, rank, members[worker].identity.host, observation.usage))
        return found
