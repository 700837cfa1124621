"""Observations that a leader has made of workers.

Owns: the newest observation of each worker, and what follows from them together. Does not own: what was decided (the
record). Nothing here is kept: every worker tells it anew to a new leader (I9).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from edl.core.worker.observed_trainer import DIED
from edl.protocol.checkpoint_record import PartInfo
from edl.protocol.data_nouns import ShardPart
from edl.protocol.leader_messages import Observation, Phase, Void

SITTING = (Phase.TRAINING, Phase.DONE)

# While its generation is the same, a worker's phase only goes on in this order; so an earlier one is old news (I10).
# A worker that could not enter the first ring, and is not needed for another, boots after it was BROKEN.
ORDER: Final = {
    Phase.BOOTING: 0,
    Phase.TRAINING: 1,
    Phase.BROKEN: 2,
    Phase.REHEARSING: 3,
    Phase.READY: 4,
    Phase.DONE: 5,
    Phase.FAILED: 5,
}


# A newcomer whose first ring has failed is of no ring again; a new daemon knows of none whose trainer died before it
# could greet the daemon.
OF_NO_RING = (Phase.REHEARSING, Phase.READY, Phase.FAILED)
DRIFT: Final = 1e-4  # of two clocks against each other, at most
LATE_S: Final = 0.1  # a report lay about where it took so much longer than the fastest one


@dataclass(frozen=True, slots=True)
class Observed:
    observation: Observation
    at: float
    late_s: float = 0.0  # so much longer it was under way than the fastest one of late


def overtaken(heard: Observation, last: Observation) -> bool:
    """`heard` was observed before `last` was: reports may overtake each other when a call is tried again, or are of a
    daemon that is gone. All daemons that a worker ever has are on its host, and go by one clock.
    """
    if heard.at < last.at:
        return True
    if heard.generation != last.generation:
        of_no_ring = not heard.generation and heard.phase in OF_NO_RING and heard.at > last.at
        return heard.generation < last.generation and not of_no_ring
    if heard.phase is not last.phase:
        return ORDER[heard.phase] < ORDER[last.phase]
    return heard.step < last.step


def only_stepped(heard: Observation, last: Observation) -> bool:
    """Tell whether nothing but the count of steps has changed, as in nearly all reports."""
    return (
        heard.phase is last.phase is Phase.TRAINING
        and heard.generation == last.generation
        and heard.booted == last.booted
        and not says_more(heard, last)
    )


def says_more(heard: Observation, last: Observation) -> bool:
    """Tell whether a report differs in more than where the worker is."""
    return (
        heard.leaving != last.leaving
        or heard.data != last.data
        or heard.stream != last.stream
        or heard.missed != last.missed
        or heard.marked != last.marked
        or heard.diverged != last.diverged
        or heard.driver != last.driver
        or heard.met != last.met
        or heard.prepares != last.prepares
        or heard.sends_state != last.sends_state
        or heard.state_bytes != last.state_bytes
        or heard.prepared != last.prepared
        or heard.saved_part != last.saved_part
        or heard.save_failed != last.save_failed
        or heard.save_wanted != last.save_wanted
        or heard.dead != last.dead
        or heard.void != last.void
        or heard.whereabouts != last.whereabouts
        or heard.bits != last.bits
    )


class Front:
    """Newest step of some workers, as they report: each event asks for it, and a thousand may come at once."""

    def __init__(self, workers: tuple[str, ...], observations: Mapping[str, Observed]) -> None:
        self.workers = workers
        self._members = frozenset(workers)
        self._observations = observations
        self._newest: tuple[int, float] | None = None  # None: to be looked for among all
        self.first = ""  # whose step it is

    @property
    def newest(self) -> tuple[int, float]:
        """Return the newest step, and when it was seen; (-1, 0.0) when no worker was."""
        if self._newest is None:
            self._newest = (-1, 0.0)
            for worker in self.workers:
                if worker in self._observations:
                    self._take(worker, self._observations[worker], self._newest)
        return self._newest

    def take(self, worker: str, observed: Observed) -> None:
        if self._newest is not None and worker in self._members:
            self._take(worker, observed, self._newest)

    def forget(self, worker: str) -> None:
        if worker == self.first:
            self._newest, self.first = None, ""

    def _take(self, worker: str, observed: Observed, newest: tuple[int, float]) -> None:
        here = (observed.observation.step, observed.at)
        if here > newest:
            self._newest, self.first = here, worker
        elif worker == self.first and here < newest:  # in another ring its steps may be fewer
            self.forget(worker)


class Observations:
    def __init__(self) -> None:
        self._newest: dict[str, Observed] = {}
        self._front = Front((), self._newest)
        # Almost always empty: the search for such workers after each input must not take in all of a thousand.
        self._broken: set[str] = set()
        self._void: set[str] = set()  # likewise: whose ring failed, and whose script is in the mini-batch still
        self._since: dict[str, float] = {}  # by each worker's clock: since when it trains its present step
        self._stalls: dict[str, float] = {}  # of those: for how long no step had been made when the ring failed
        self._missed: set[str] = set()
        self._under_way: dict[str, float] = {}  # from each worker's clock to ours, with the fastest report

    def take(self, worker: str, observation: Observation, now: float) -> None:
        last = self._newest.get(worker)
        if not _is_failed(observation):
            self._stalls.pop(worker, None)
        elif last is not None and last.observation.phase is Phase.TRAINING and not _is_failed(last.observation):
            self._stalls[worker] = observation.at - self._since[worker]  # by its own clock: we may have been away
        if observation.phase is Phase.TRAINING and (last is None or not _same_step(observation, last.observation)):
            self._since[worker] = observation.at
        self._newest[worker] = observed = Observed(observation, now, self._late_s(worker, observation, now))
        self._front.take(worker, observed)
        _keep(self._broken, worker, observation.phase is Phase.BROKEN)
        _keep(self._missed, worker, observation.missed > 0)
        _keep(self._void, worker, observation.void is not None)

    def forget(self, worker: str) -> None:
        self._newest.pop(worker, None)
        self._under_way.pop(worker, None)
        self._front.forget(worker)
        self._broken.discard(worker)
        self._missed.discard(worker)
        self._void.discard(worker)
        self._since.pop(worker, None)
        self._stalls.pop(worker, None)

    def waits(self, generation: int, *, whole: bool) -> Iterator[tuple[int, float]]:
        """Yield a step and a wait in seconds for each worker that the ring of `generation` failed, or that has given it
        up: the step that the worker had made, and how long it had waited in that ring, of which no member is gone if it
        is `whole`.
        """
        for worker in self._broken | self._void:
            if self.failed(worker, generation):
                yield self.step(worker), self._waited_s(worker, generation, whole=whole)

    def _waited_s(self, worker: str, generation: int, *, whole: bool) -> float:
        """Return for how long `worker` had waited for others when its ring failed. A worker that was in no collective,
        or had just come to one, has waited for none, however long its step was. If the ring's own time-out came before
        the worker's clock, the wait counts from the worker's last step; but a ring that has lost a member fails for
        that, sooner.
        """
        void = self.void(worker, generation)
        if void is not None and (void.waited_s or not void.awaited):
            return void.waited_s
        return self._stalls.get(worker, 0.0) if whole else 0.0

    def get(self, worker: str) -> Observed | None:
        return self._newest.get(worker)

    def observation(self, worker: str) -> Observation | None:
        observed = self._newest.get(worker)
        return None if observed is None else observed.observation

    def found(self, worker: str) -> tuple[ShardPart, ...]:
        """Return what `worker` has told of the parts of a stream that it reads."""
        observed = self._newest.get(worker)
        return () if observed is None else observed.observation.stream

    def step(self, worker: str) -> int:
        """Return the newest step that `worker`, which was seen, has committed."""
        return self._newest[worker].observation.step

    def began(self, worker: str) -> int:
        """Return the step after which the ring took over that `worker` sits in, if that was told, else its own."""
        seen = self._newest[worker].observation
        return seen.step if seen.began is None else seen.began

    def leases_of(self, worker: str) -> int:
        """Return the generation by whose leases `worker`, which was seen, has trained its steps so far."""
        return self._newest[worker].observation.leases_of

    def has_leases(self, worker: str) -> bool:
        """Tell whether `worker` has sat in a ring, by whose leases its pipeline reads."""
        observed = self._newest.get(worker)
        return observed is not None and observed.observation.leases_of > 0

    def generation(self, worker: str) -> int:
        """Return the newest generation that `worker` sits in or failed to enter; 0 before its first."""
        observed = self._newest.get(worker)
        return 0 if observed is None else observed.observation.generation

    def sits(self, worker: str, generation: int) -> bool:
        """Tell whether `worker` has entered the ring of `generation`, which had not failed when it was last seen."""
        observed = self._newest.get(worker)
        return (
            observed is not None
            and observed.observation.generation == generation
            and observed.observation.phase in SITTING
        )

    def trains(self, worker: str, generation: int) -> bool:
        """Tell whether `worker` sits in the ring of `generation`, and its script has not ended."""
        return self.sits(worker, generation) and self._newest[worker].observation.phase is Phase.TRAINING

    def has_booted(self, worker: str) -> bool:
        """Tell whether `worker` was seen to be able to enter a ring at once."""
        seen = self.observation(worker)
        return seen is not None and (seen.booted or seen.phase in (Phase.TRAINING, Phase.READY))

    def is_known(self, worker: str) -> bool:
        """Tell whether `worker` was seen, and its daemon knows its ring: a new daemon sees the step before the ring."""
        seen = self.observation(worker)
        return seen is not None and (seen.step == 0 or self.has_booted(worker))

    def breaks(self, worker: str, generation: int) -> bool:
        observed = self._newest.get(worker)
        return (
            observed is not None
            and observed.observation.phase is Phase.BROKEN
            and observed.observation.generation == generation
        )

    def void(self, worker: str, generation: int) -> Void | None:
        """Tell how the ring of `generation` failed `worker` in its mini-batch; None where none is known to."""
        observed = self._newest.get(worker)
        void = None if observed is None else observed.observation.void
        return void if void is not None and void.generation == generation else None

    def failed(self, worker: str, generation: int) -> bool:
        """Tell whether the ring of `generation` has failed `worker`, whose script may be in its mini-batch still."""
        return self.breaks(worker, generation) or self.void(worker, generation) is not None

    def awaits(self, worker: str, generation: int) -> tuple[str, bool]:
        """Tell what `worker` waits for in the ring of `generation`, or had waited for when that failed; empty: nothing
        that is known. And whether that is over, or has taken a step time-out.
        """
        void, seen = self.void(worker, generation), self.observation(worker)
        if void is not None and void.awaited:
            return void.awaited, True
        stands = None if seen is None else seen.whereabouts
        if seen is None or stands is None or (stands.generation, stands.step) != (generation, seen.step + 1):
            return "", False
        if seen.phase is Phase.FAILED and seen.reason == DIED:  # what it had told of may have been over
            return "", False
        return stands.awaits, stands.in_vain or seen.phase in (Phase.BROKEN, Phase.FAILED)

    def place(self, worker: str) -> str:
        """Say for people in which step the script of `worker`, which was seen, stands, and what else is known."""
        seen = self._newest[worker].observation
        step, whereabouts = seen.step + 1, seen.whereabouts
        at = f" at {whereabouts.place}" if whereabouts is not None and whereabouts.step == step else ""
        return f"{step}{at}" + (f"; {seen.halted}" if seen.halted else "")

    def marked(self, worker: str) -> tuple[int, int]:
        """Return the rebatching known to `worker`, and the step that it reads no further than; zeros without one."""
        observed = self._newest.get(worker)
        return (0, 0) if observed is None else observed.observation.marked

    def met(self, worker: str) -> tuple[int, ...]:
        """Return the newest call to a next ring known to `worker`, and the ranks of those it has not met there."""
        observed = self._newest.get(worker)
        return (0,) if observed is None else observed.observation.met

    def prepares(self, worker: str) -> bool:
        """Tell whether `worker` can form a ring beside the one that it sits in, as far as is known."""
        observed = self._newest.get(worker)
        return observed is not None and observed.observation.prepares

    def sends_state(self, worker: str) -> bool:
        """Tell whether `worker` can give its state to a newcomer, or be given it, beside a step, as far as is known."""
        observed = self._newest.get(worker)
        return observed is not None and observed.observation.sends_state

    def state_bytes(self, worker: str) -> int:
        """Return the bytes of state that `worker` can send over several steps; 0: all at once, or it is not known."""
        observed = self._newest.get(worker)
        return 0 if observed is None else observed.observation.state_bytes

    def prepared(self, worker: str, generation: int) -> str | None:
        """Return why the ring of `generation` does not stand at `worker`; empty if it does; None: not known yet."""
        observed = self._newest.get(worker)
        number, failure = (0, "") if observed is None else observed.observation.prepared
        return failure if number == generation else None

    def offer(self, worker: str, generation: int) -> int:
        """Return where newcomers get `worker`'s state in the ring of `generation`, if prepared; 0: nowhere."""
        observed = self._newest.get(worker)
        prepared = observed is not None and observed.observation.prepared == (generation, "")
        return observed.observation.offer if observed is not None and prepared else 0

    def saved_part(self, worker: str, number: int) -> PartInfo | None:
        """Return the part that `worker` has made durable for the saving; None: none, or not known."""
        observed = self._newest.get(worker)
        of, info = (0, None) if observed is None else observed.observation.saved_part
        return info if of == number else None

    def save_failed(self, worker: str, number: int) -> str:
        """Return why `worker` has no part for the saving; empty if it has not said so."""
        observed = self._newest.get(worker)
        of, failure = (0, "") if observed is None else observed.observation.save_failed
        return (failure or "no reason was given") if of == number else ""

    @property
    def any_failed(self) -> bool:
        return bool(self._broken or self._void)

    @property
    def broken(self) -> Collection[str]:
        return self._broken

    @property
    def late(self) -> Collection[str]:
        return self._missed

    def misses(self, worker: str, generation: int) -> bool:
        """Tell whether `worker` cannot make the switch to `generation`: it is behind its step, without samples."""
        observed = self._newest.get(worker)
        return observed is not None and observed.observation.missed == generation and not self.sits(worker, generation)

    def stable_step(self, workers: Iterable[str]) -> int | None:
        """Return the newest step that all of `workers` were seen to have applied; None when one was not seen yet."""
        stable = None
        for worker in workers:
            observed = self._newest.get(worker)
            if observed is None:
                return None
            step = observed.observation.step
            stable = step if stable is None or step < stable else stable
        return stable

    def up_to(self, step: int, workers: Iterable[str]) -> set[str]:
        """Return those of `workers` that were seen, but not beyond `step`."""
        newest = self._newest
        return {worker for worker in workers if worker in newest and newest[worker].observation.step <= step}

    def newest_step(self, workers: tuple[str, ...]) -> tuple[int, float]:
        """Return the newest step that any of `workers` was seen to have applied, and when; (-1, 0.0) when unseen."""
        if workers is not self._front.workers:
            self._front = Front(workers, self._newest)
        return self._front.newest

    def newest_late_s(self, workers: tuple[str, ...]) -> float:
        """Return how long the report of the newest step lay about, as the leader was busy: workers are farther now."""
        self.newest_step(workers)
        first = self._newest.get(self._front.first)
        return 0.0 if first is None else first.late_s

    def _late_s(self, worker: str, observation: Observation, now: float) -> float:
        """Return how late a report came. Clocks run nearly equally fast: the fastest report tells their difference."""
        if not observation.at:
            return 0.0
        took, last = now - observation.at, self._newest.get(worker)
        known = self._under_way.get(worker, took)
        if last is not None:
            known += DRIFT * (now - last.at)
        self._under_way[worker] = least = min(took, known)
        return took - least if took - least >= LATE_S else 0.0

    def step_time_s(self, workers: Iterable[str]) -> float:
        """Return the shortest step time that any of `workers` reports; 0 when none knows."""
        shortest = 0.0
        for worker in workers:
            observed = self._newest.get(worker)
            time_s = 0.0 if observed is None else observed.observation.step_time_s
            if time_s > 0 and (not shortest or time_s < shortest):
                shortest = time_s
        return shortest


def _is_failed(heard: Observation) -> bool:
    """Tell whether its ring has failed the worker; its script may be in the mini-batch for as long as it likes."""
    void = heard.void
    return heard.phase is Phase.BROKEN or (void is not None and void.generation == heard.generation)


def _same_step(heard: Observation, last: Observation) -> bool:
    return (heard.phase, heard.generation, heard.step) == (last.phase, last.generation, last.step)


def _keep(workers: set[str], worker: str, belongs: bool) -> None:
    if belongs:
        workers.add(worker)
    else:
        workers.discard(worker)
