"""Simulated beginnings: the members of a ring agree on the newest state and copy it; or each knows what it begins with.

Owns: how each member comes to what its ring begins with, to half of it, or to nothing. Does not own: how members find
each other (`tests.model.model_meetings`), nor what they do once it has begun (`tests.model.model_rings`).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING

from edl.core.worker.agreement import Vote
from edl.core.worker.worker_inputs import (
    Agree,
    Command,
    CopyRest,
    CopyState,
    FetchState,
    RingFormed,
    StateComes,
    StateCopied,
    VotesHeard,
)
from tests.model.model_faults import Moment
from tests.model.model_rings import STEP_TIMEOUT_S, SimRing
from tests.model.model_worker import SimWorker
from tests.model.models import Model

if TYPE_CHECKING:
    from tests.model.simulation import SimJob

UNHEARD = 0.2  # of those whose all-reduce a member's death breaks off


class KnownBeginning:
    """Beginning of a ring that its members know beforehand: each comes by itself."""

    def __init__(self, ring: SimRing) -> None:
        self.ring = ring
        self.coming = {worker.id for worker in ring.members}
        self.had: dict[str, int] = {}  # of those that have come: the steps of those who had a state
        self.ready: set[str] = set()
        self.fetching: dict[str, list[Command]] = {}  # newcomers, as long as rank 0 has not come


class Beginnings:
    def __init__(self, job: SimJob, seed: int) -> None:
        self.job = job
        self._hearing = random.Random(f"hearing {seed}")
        self._known: dict[int, KnownBeginning] = {}  # by generation

    # ---------------------------------------------------------------------------------------- known beforehand

    def begin_known(self, worker: SimWorker, generation: int, members: list[SimWorker]) -> None:
        """Begin in a ring whose beginning is known, or do not come. A newcomer waits for the state of rank 0, however
        long that step takes, until the state is there, or rank 0 is gone or will not come.
        """
        ring = self.job.rings.rings.setdefault(generation, SimRing(generation, members))
        known = self._known.setdefault(generation, KnownBeginning(ring))
        self.job.happens(Moment.FORMING, worker)
        if not worker.alive or worker.stalled:
            self.job.after(STEP_TIMEOUT_S, self.job.meetings.fail, worker, generation, "the others have gone on")
            return
        had, ready = worker.step if worker.generation and worker.has_state else None, worker.booted
        commands = worker.machine.handle(RingFormed())
        fetches = any(isinstance(command, FetchState) for command in commands)
        if not (fetches or worker.machine.sits):
            self.job.shells.carry_out(worker, commands)
            return
        known.coming.discard(worker.id)
        known.had |= {} if had is None else {worker.id: had}
        known.ready |= {worker.id} if ready else set()
        if fetches:
            known.fetching[worker.id] = commands
        else:
            self.job.shells.sit(worker, commands)
        if members[0].machine.sits and members[0].generation == generation and members[0].alive:
            self._give(known)
        self._note_whole(known)

    def _give(self, known: KnownBeginning) -> None:
        """Give the state to the newcomers that have come to rank 0's ring."""
        models = [one.model for one in known.ring.members]
        for one, commands in sorted(known.fetching.items()):
            worker = self.job.workers[one]
            if worker.goes_to(known.ring.generation) and worker.alive and not worker.stalled:
                self._begin(worker, commands, models)
        known.fetching = {}

    def _note_whole(self, known: KnownBeginning) -> None:
        ring = known.ring
        if all(worker.sits and worker.generation == ring.generation for worker in ring.members):
            self.job.checks.formed(ring.generation, ring.members, known.had, known.ready)

    def awaits(self, worker: SimWorker, ring: SimRing) -> bool:
        """Tell whether the worker is on its way to the ring from the previous one, or waits there for its state."""
        if ring.generation in self._known and worker.id in self._known[ring.generation].coming:
            held = self.job.next_rings.held.get(worker.id) == ring.generation
            return worker.alive and (held or worker.stalled)
        return worker.alive and worker.goes_to(ring.generation)

    def missed(self, worker: SimWorker) -> None:
        """Notify members, and newcomers that await its state, that a worker on its way died, hangs or left."""
        for known in self._known.values():
            if worker.id in known.coming and not self.awaits(worker, known.ring):
                self.job.rings.arm(known.ring)
                if worker is known.ring.members[0] and not worker.stalled:
                    for one in sorted(known.fetching):
                        fails = (self.job.workers[one], known.ring.generation, "connection reset by peer")
                        self.job.meetings.fail_later(*fails)

    def abort(self, worker: SimWorker, generations: range) -> None:
        """Fail a worker that waits for its state in one of these rings, which are given up."""
        for known in self._known.values():
            if known.ring.generation in generations and worker.id in known.fetching:
                self.job.meetings.fail_later(worker, known.ring.generation, "it was given up")

    # ------------------------------------------------------------------------------------------ agreed on by all

    def begin(self, generation: int, members: list[SimWorker]) -> None:
        """Begin a ring whose members are all connected: they agree on the newest step, and get its state (I5)."""
        victim = self.job.random.choice(members)
        self.job.happens(Moment.FORMING, victim)
        came = [worker for worker in members if worker.goes_to(generation)]
        living = [worker for worker in came if worker.alive and not worker.stalled]
        if len(living) < len(members):
            self._break_off(members, came, living, generation)
            return
        if len(members) > 1 and any(worker.cut_off for worker in members):
            for worker in members:
                self.job.meetings.fail_later(worker, generation, "connection reset by peer")
            return
        if half := [worker for worker in members if worker.breaks == "formed"]:
            self._form_half(members, half, generation)
            return
        had = {one.id: one.step for one in members if one.generation and one.has_state}
        ready = {one.id for one in members if one.booted}
        answers, models = self._agree(members), [one.model for one in members]
        begin = [one.machine.assignment is not None or one.sits for one in members]
        if all(begin):
            self.job.checks.formed(generation, members, had, ready)
        if any(begin):  # else all have found that it is not to stand; if some, the others say that the state is lost
            self.job.rings.rings[generation] = SimRing(generation, members)
        for worker in members:
            self._begin(worker, answers[worker.id], models)
        self.job.note(f"ring {generation} of {[one.id for one in members]} stands after step {members[0].step}")

    def _form_half(self, members: list[SimWorker], half: list[SimWorker], generation: int) -> None:
        """The rings of some limbs of these workers do not form: no ring of this generation is of use."""
        for worker in half:
            commands = worker.machine.handle(RingFormed())
            self.job.rings.missed(worker)
            self.job.shells.carry_out(worker, commands)
        for worker in members:
            if worker not in half:
                self.job.meetings.fail_later(worker, generation, "connection reset by peer")

    def _agree(self, members: list[SimWorker], unheard: Collection[str] = ()) -> dict[str, list[Command]]:
        """Return each member's commands after all have agreed by an all-reduce of the highest vote; members in
        `unheard` do not get its result.
        """
        answers = {worker.id: worker.machine.handle(RingFormed()) for worker in members}
        if said := {one: command.vote for one, (command, *_) in answers.items() if isinstance(command, Agree)}:
            if gone_on := answers.keys() - said.keys():
                self.job.checks.violated("I3", f"{sorted(said)} wait for votes of {sorted(gone_on)}, who go on")
            highest = Vote(*map(max, zip(*said.values(), strict=True)))
            hearing = [worker for worker in members if worker.id not in unheard]
            answers = {worker.id: worker.machine.handle(VotesHeard(highest)) for worker in hearing}
        return answers

    def _begin(self, worker: SimWorker, commands: list[Command], models: list[Model]) -> None:
        """Begin with the state that has come whole. `models`: of all members, by rank."""
        for command in commands:
            if isinstance(command, FetchState):
                if not worker.sends_state:
                    self.job.checks.violated("I14", f"{worker.id} is to fetch its state beside a step, and cannot")
                worker.model = worker.model.half_copied(models[command.root])
                commands = worker.machine.handle(StateComes())
            elif isinstance(command, CopyState | CopyRest):
                mine, theirs = worker.model, models[command.root]
                if isinstance(command, CopyState):
                    worker.model = theirs
                elif command.unsure:
                    worker.model = Model(mine.learned, theirs.carried)
                commands = worker.machine.handle(StateCopied())
        if worker.machine.sits:
            self.job.shells.sit(worker, commands)
        else:  # the members have found out that this ring is not to stand
            self.job.shells.carry_out(worker, commands)

    # ------------------------------------------------------------------------------------------------ broken off

    def _break_off(
        self, members: list[SimWorker], came: list[SimWorker], living: list[SimWorker], generation: int
    ) -> None:
        """Break a beginning off, as a member dies: some others may be through, others have half a state, or none."""
        source, rings = self.job.random, self.job.rings.rings
        for worker in came:
            worker.breaks = ""
        copying = generation > 1 and any(one.has_state for one in came)
        copying = copying and source.random() < 0.7  # all have voted: it happened in what comes after, for most
        unheard = {worker.id for worker in came if self._hearing.random() < UNHEARD} if copying else set[str]()
        answers = self._agree(came, unheard) if copying else {}
        models = [worker.model for worker in members]
        for worker in living:
            commands = answers.get(worker.id, [])
            fetch = next((one for one in commands if isinstance(one, FetchState)), None)
            comes = fetch is not None and members[fetch.root] in living and source.random() < 0.5
            if worker.machine.sits or comes:
                rings.setdefault(generation, SimRing(generation, members))
                self._begin(worker, commands, models)
                continue
            copy = next((one for one in commands if isinstance(one, CopyState | CopyRest)), None)
            if copy is not None and source.random() < 0.3 and self._has_come(copy, members, living):
                rings.setdefault(generation, SimRing(generation, members))
                self._begin(worker, commands, models)
                continue
            if copy is not None:
                self._take_half(worker, copy, members[copy.root])
            elif commands and fetch is None:
                self._begin(worker, commands, models)
            reason = "connection reset by peer" if len(living) + 1 >= len(members) else "several are gone"
            slow = STEP_TIMEOUT_S if any(one.stalled for one in members) else 0.005
            self.job.after(slow * source.random(), self.job.meetings.fail, worker, generation, reason)
        if generation in rings:
            self.job.rings.arm(rings[generation])

    @staticmethod
    def _has_come(copy: CopyState | CopyRest, members: list[SimWorker], living: list[SimWorker]) -> bool:
        """Tell whether a copy may be complete though a member is gone: unless that member was to give it."""
        copies = isinstance(copy, CopyState) or copy.unsure
        return not copies or members[copy.root] in living

    def _take_half(self, worker: SimWorker, copy: CopyState | CopyRest, root: SimWorker) -> None:
        mine, theirs = worker.model, root.model
        if isinstance(copy, CopyRest) and copy.unsure:
            worker.model = Model(mine.learned, mine.half_copied(theirs).carried)
        elif isinstance(copy, CopyState) and mine.learned != theirs.learned:  # whatever it takes itself for
            worker.model = mine.half_copied(theirs)
        elif isinstance(copy, CopyState) and worker.step == root.step and worker.step and not worker.has_state:
            self.job.checks.violated("I5", f"{worker.id} has the whole state of step {worker.step}, and gives it up")
