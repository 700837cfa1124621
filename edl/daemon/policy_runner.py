"""The leader's own control of its job's size: it measures, asks the job's policy, and passes on its decisions.

Owns: how often it looks, the views that policies see, and the report of a policy that cannot be asked. Does not own:
the arithmetic (`edl.policy`), the process of a user's policy (`edl.daemon.policy_process`), nor carrying out a decision
(`edl.core.resize.target_size`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from edl.clock import Clock
from edl.core.data.batching import weighted_shares
from edl.core.job.leader_inputs import Input, Measured, Ruled
from edl.core.job.leader_machine import JobMachine
from edl.core.resize.scale_requests import staying
from edl.daemon.policy_loader import Code
from edl.daemon.policy_process import PolicyFailed, PolicyProcess
from edl.errors import ConfigError
from edl.policy.policy_engine import Choice, Engine, Pacing, Ruling
from edl.policy.policy_job_view import Policy, View
from edl.policy.stragglers import Straggler, UnevenPaces, WorkerPaces
from edl.policy.throughput_meter import Meter, Seated, WorkerTimes
from edl.protocol.record import JobState, WorkerState

LOOK_S: Final = 1.0


class PolicyRunner:
    """The control loop of one term. Run it as a task of the leader's."""

    def __init__(
        self,
        machine: JobMachine,
        clock: Clock,
        put: Callable[[Input], Awaitable[None]],
        code: Code | None = None,
    ) -> None:
        """`code`: this daemon's own copy of a user's policy. No other code is ever run (I18)."""
        self._code = code
        self._process: PolicyProcess | None = None
        self._loading: asyncio.Future[None] | None = None
        self._remark = ""  # about the policy, to be reported once
        self._machine = machine
        self._clock = clock
        self._put = put
        job_policy = machine.record.job_policy
        self._job_policy = job_policy
        self.meter = Meter(machine.record.sizing.rates)
        self._engine: Engine | None = None
        self._paces = WorkerPaces()
        self._sheets = WorkerTimes()
        self._generation = 0

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            self._engine = self._made()
            while True:
                await asyncio.sleep(LOOK_S)
                record = self._machine.record
                if record.job_policy != self._job_policy:  # the first worker has come only now
                    self._job_policy = record.job_policy
                    self._engine = self._made()
                if record.state in {JobState.RUNNING, JobState.SCALING} and record.generation:
                    await self._look()
        finally:
            self._end_process()

    @property
    def paces(self) -> dict[str, float]:
        """The speed of each worker of the ring, relative to the median of all."""
        return self._paces.paces

    def _made(self) -> Engine | None:
        """Make the engine of the job's policy; None if the job has no policy."""
        self._end_process()
        job_policy = self._job_policy
        if not job_policy.autoscale:
            return self._without_policy()
        try:
            choice = Choice.of(job_policy.autoscale)
            policy = self._users(choice) if choice.is_users else choice.policy(job_policy.utility)
        except ConfigError as error:
            self._remark = f"the job's policy cannot be asked: {error}"
            return self._without_policy()
        return self._without_policy() if policy is None else self._engine_of(policy, choice.pacing(job_policy.every))

    def _without_policy(self) -> Engine | None:
        """Make an engine that only looks for stragglers, if the job wants that; else None."""
        job_policy = self._job_policy
        return None if job_policy.stragglers == "off" else self._engine_of(None, Pacing(every=job_policy.every))

    def _engine_of(self, policy: Policy | None, pacing: Pacing) -> Engine:
        return Engine(policy, pacing, only_tell=self._job_policy.stragglers == "tell")

    def _users(self, choice: Choice) -> Policy | None:
        """Start the process of the user's policy, from this daemon's own copy of the code; None if it has no such
        copy.
        """
        if self._code is None or self._code.digest != choice.value:
            ours = "has none" if self._code is None else f"has another ({self._code.digest[:19]})"
            self._remark = (
                f"the job's policy cannot be asked: it is the code {choice.value[:19]}, and the worker whose daemon "
                f"leads {ours}; start all workers with the same --autoscale"
            )
            return None
        self._process = process = PolicyProcess(self._code)
        self._loading = asyncio.ensure_future(asyncio.to_thread(process.load))
        return process

    def _end_process(self) -> None:
        if self._loading is not None:
            self._loading.add_done_callback(lambda loading: loading.cancelled() or loading.exception())
            self._loading = None
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _look(self) -> None:
        machine, record = self._machine, self._machine.record
        newest, at, trained = machine.progress
        if record.generation != self._generation:
            self._generation = record.generation
            self._sheets.begin()
            self._paces.forget()
            if self.meter.rates != record.sizing.rates:
                await self._put(Measured(self.meter.rates))
        if machine.is_seen:
            self.meter.look(record.generation, len(record.roster), (at, newest, trained))
        if self._sheets.take(self._seated()):
            self._paces.take(self._sheets.spent, self._sheets.batches)
        if self._remark:
            await self._put(Ruled(len(record.roster), (), self._remark, {}, act=False))
            self._remark = ""
        if self._engine is not None and self._is_loaded():
            ruling = await self._ruling(self._engine, self._view(newest, trained))
            if ruling is not None and machine.record.generation == record.generation:
                one = ruling.decision
                await self._put(Ruled(one.size, one.replace, one.reason, one.numbers, ruling.act, one.shares))
                if one.shares:
                    self._paces.forget()

    def _is_loaded(self) -> bool:
        """Tell whether the policy can be asked. A user's imports take their time, up to some bound."""
        if self._loading is None:
            return True
        if not self._loading.done():
            return False
        if (error := self._loading.exception()) is not None:
            self._give_up(f"cannot be asked: {error}")
        self._loading = None
        return False

    def _give_up(self, why: str) -> None:
        """Stop asking the policy in this term."""
        self._remark = f"the job's policy {why}"
        self._engine = self._without_policy()
        self._end_process()

    async def _ruling(self, engine: Engine, view: View) -> Ruling | None:
        """Ask the engine in a thread: a user's policy may take its time, up to a bound."""
        straggler, at_rest = self._straggler(), self._at_rest()
        try:
            return await asyncio.to_thread(engine.look, view, straggler, at_rest=at_rest)
        except PolicyFailed as error:
            self._give_up(f"{error}: it is not asked any more")
        except (ArithmeticError, LookupError, ValueError) as error:  # one of edl's own policies, at unforeseen figures
            self._give_up(f"raised {error!r}: it is not asked any more")
        return None

    def _straggler(self) -> Straggler | UnevenPaces | None:
        match self._job_policy.stragglers:
            case "off":
                return None
            case "share":
                return self._paces.uneven(self._machine.record.sizing.shares, self._dealt)
            case _:
                return self._paces.verdict()

    def _dealt(self, shares: Mapping[str, float]) -> dict[str, int]:
        """Return the samples that workers take of a step with such shares of the batch."""
        roster, ledger = self._machine.record.roster, self._machine.ledger
        batch = 0 if ledger is None else ledger.batch
        return dict(zip(roster, weighted_shares(batch, [shares.get(one, 1.0) for one in roster]), strict=True))

    def _at_rest(self) -> bool:
        """Tell whether no change is under way, or expected."""
        record = self._machine.record
        trains = all(member.state is WorkerState.TRAINING for member in record.members)
        return (
            trains and record.plan is None and len(staying(record)) == record.target and record.sizing.replacing is None
        )

    # ----------------------------------------------------------------------------------------------- what is seen

    def _view(self, newest: int, trained: int) -> View:
        record, ledger = self._machine.record, self._machine.ledger
        open_end = ledger is None or ledger.spec.open_ended or bool(ledger.spec.shards)
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
        """Return the usage of all workers of the ring; nothing before each has reported."""
        members = {member.identity.id: member for member in self._machine.record.members}
        found = []
        for rank, worker in enumerate(self._machine.record.roster):
            observation = self._machine.seen.observation(worker)
            if observation is None or observation.usage is None or worker not in members:
                return []
            found.append(Seated(worker, rank, members[worker].identity.host, observation.usage))
        return found
