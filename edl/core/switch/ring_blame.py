"""Find the worker that cannot be part of a ring, from rings that failed, so that the others train on (I14).

Owns: which members are to blame when a ring makes no step though none of them is gone; which are left out of the next
one for that, and which for good. Pure. Does not own: what follows for the job (`edl.core.switch.faulty_members`), nor
the roster (`edl.core.switch.next_generation`). What was found out is on record, so that another leader does not begin
anew (I9).

A ring that fails says little: all its members fail with it. So three things count, in this order:

- **what each says**. If few say something of their own ("no route to host"), they are to blame. Others name a peer that
  they could not reach: to blame is the worker in most of such pairs, a newcomer before those that were in a ring
  together. An error that is no broken ring, met by a member of the ring before, is held against the newcomers. "Not all
  came", "reset by peer" and the like are what every member says, and point at none;
- **which are new**. Those of the ring before go back to it at once, without the newcomers that came to nothing with
  them. Each newcomer is tried once more, alone, when the others train again. Failing twice makes a worker unfit, once
  the others have a ring without it: if one of them turns out to be gone or unfit instead, that may have been the
  reason, and no worker is blamed for it. Nor are several that failed twice together. What a worker says of itself,
  and an error that another meets with it, need no such proof;
- **trying**. Where no newcomer is there to suspect, the same ring is tried once more; then one after another is left
  out, the most suspect first; a member that alone has the newest step, and is no newcomer either, comes last. If the
  ring makes a step without one, that one is unfit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from edl.errors import FAULT
from edl.protocol.record import Strike, Trials

ENOUGH: Final = 2  # so many failures make a worker unfit; so many unfit workers make a host suspect
FIRST_RINGS: Final = 3  # so many come to nothing for no known reason: then the job ends
RINGS: Final = 5  # the same of a job that has trained, once no member is left to try without
REMEMBERED: Final = 32  # unfit workers

# What a member says of a failure that may be any member's fault. The first of these: it has waited in vain.
WAITED: Final = ("not all members", "did not come", "timed out", "timeout")
EVERYBODY_SAYS: Final = (
    *WAITED,
    "aborted",
    "given up",
    "reset",
    "closed",
    "broken pipe",
    "gone",
    "rendezvous",
    "horovod said no",
    "holds on to a ring",
    "prepared",
    "unknown reason",
    "collective",
    "another process of this worker",
    "this worker's processes",
)
_UNREACHABLE: Final = re.compile(r"\bconnect(?:ing)?\b[^\[]*\[([0-9a-fA-F:.]+)\]:\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Evidence:
    generation: int
    roster: tuple[str, ...]
    base: tuple[str, ...]  # the ring that stood last; empty while the first one has not
    said: Mapping[str, str]  # why it failed, by those who have told
    came: frozenset[str]  # members that were seen to have tried
    addresses: Mapping[str, str]  # of the members' hosts
    minimum: int = 1
    ahead: frozenset[str] = frozenset()  # they alone have the newest step, of a ring that the leader never saw stand

    @property
    def newcomers(self) -> tuple[str, ...]:
        """Return the members that were not in the previous ring, and have no state that the others lack."""
        known = self.ahead.union(self.base)
        return tuple(worker for worker in self.roster if worker not in known) if self.base else ()

    @property
    def faults(self) -> dict[str, str]:
        """Return errors that are no broken ring, of members that trained without the newcomers, if there are any."""
        blameless = self.newcomers and set(self.roster).difference(self.newcomers)
        return {one: why for one, why in self.said.items() if blameless and one in blameless and is_fault(why)}

    @property
    def absent(self) -> frozenset[str]:
        """Return the members that were not seen to come, if the others report nothing but waiting."""
        waited = all(any(words in reason.lower() for words in WAITED) for reason in self.said.values())
        return frozenset(self.roster) - self.came if waited else frozenset()

    @property
    def silent(self) -> frozenset[str]:
        """Return the members of the ring before that neither came to this one nor told why not."""
        return frozenset(self.base).intersection(self.roster).difference(self.came, self.said)


@dataclass(frozen=True, slots=True)
class RingBlame:
    trials: Trials
    unfit: Mapping[str, str] = field(default_factory=dict)  # worker to reason
    hopeless: str = ""  # why no ring can follow


def is_own(reason: str) -> bool:
    """Tell whether a member says something that the others would not say of the same failure."""
    said = reason.lower()
    common = not said or unreachable(reason) or any(words in said for words in EVERYBODY_SAYS)
    return is_fault(reason) or not common


def is_fault(reason: str) -> bool:
    """Tell whether a `reason` is that of a ring that has raised what is no broken ring (`edl.errors.RingFault`)."""
    return FAULT in reason


def is_no_workers_own(reason: str) -> bool:
    """Tell whether a member says that the ring was not to stand: none is to blame, as orders may come late to any."""
    return "not booted" in reason or "not in the state of the planned step" in reason


def unreachable(reason: str) -> str:
    """Return the address that a member could not connect to, if it says so."""
    found = _UNREACHABLE.search(reason)
    return found.group(1) if found else ""


def accused(evidence: Evidence, proven: Sequence[str]) -> dict[str, str]:
    """Return the workers that the members' words point at, and why; none where they contradict each other."""
    own = {worker: reason for worker, reason in evidence.said.items() if is_own(reason)}
    for worker in evidence.faults:
        own.pop(worker)
    if own:
        return own if 2 * len(own) <= len(evidence.roster) else {}
    pairs = _pairs(evidence)
    most = max(map(len, pairs.values()), default=0)
    first = [worker for worker in pairs if most and len(pairs[worker]) == most]
    if len(first) > 1:
        first = [worker for worker in first if worker not in proven]
    return {worker: _why(worker, evidence, pairs[worker]) for worker in first} if len(first) == 1 else {}


def judge(trials: Trials, evidence: Evidence) -> RingBlame:
    """Judge a ring whose members are all there still, and that has made no step."""
    blamed = accused(evidence, trials.proven or evidence.base)
    absent = evidence.absent
    if not blamed and absent.intersection(evidence.newcomers):
        blamed = {worker: _NEVER_CAME for worker in evidence.newcomers if worker in absent}
    elif not blamed and (absent or (evidence.silent and evidence.newcomers)):
        # The others have waited for an absent member, and so has the leader; or a silent one, which trained without the
        # newcomers, may yet tell that it could not come for no fault of theirs.
        return RingBlame(msgspec.structs.replace(trials, judged=evidence.generation))
    elif not blamed:
        blamed = {worker: _why_new(worker, evidence) for worker in evidence.newcomers}
    # A ring without a condemned worker came to nothing, too: that one was not to blame, or not alone.
    before = [strike for strike in trials.strikes if strike.times < ENOUGH or strike.worker in evidence.roster]
    strikes = _struck(before, blamed)
    enough = (strike for strike in strikes if strike.times >= ENOUGH)
    unfit = {strike.worker: strike.reason for strike in enough if not _is_to_be_seen(strike, evidence)}
    trials = msgspec.structs.replace(
        trials,
        judged=evidence.generation,
        strikes=tuple(strike for strike in strikes if strike.worker not in unfit),
    )
    if unfit:  # one of those that trained may have been why rings with newcomers came to nothing
        is_new = unfit.keys() <= set(evidence.newcomers)
        return RingBlame(undecided_no_more(trials) if is_new else not_proven(trials), unfit)
    return RingBlame(trials) if blamed else _try_without(trials, evidence)


def judge_unprepared(trials: Trials, evidence: Evidence, doubted: Sequence[str]) -> RingBlame:
    """`evidence` is of a ring that was to stand beside the one that trains; the `doubted` newcomers may be why not.

    The others have a ring without them, and lose nothing by it. So what a newcomer says of itself counts, as ever; else
    those that failed together are called one by one, and only a failure of a ring with one of them makes it unfit.
    """
    own = {one: why for one, why in evidence.said.items() if one in evidence.newcomers and is_own(why)}
    blamed = {one: _unprepared(one, evidence) for one in doubted} | own
    known = own if len(evidence.newcomers) > 1 else blamed
    strikes = _struck(trials.strikes, blamed) if blamed else trials.strikes
    unfit = {strike.worker: strike.reason for strike in strikes if strike.worker in known and strike.times >= ENOUGH}
    strikes = tuple(
        msgspec.structs.replace(strike, times=min(strike.times, ENOUGH - 1)) if strike.worker in blamed else strike
        for strike in strikes
        if strike.worker not in unfit
    )
    return RingBlame(msgspec.structs.replace(trials, strikes=strikes), unfit)


def _unprepared(worker: str, evidence: Evidence) -> str:
    said = evidence.said.get(worker) or next(iter(evidence.said.values()), _NEVER_CAME)
    return f"no ring with it comes to stand beside the one that trains: {said}"


def _try_without(trials: Trials, evidence: Evidence) -> RingBlame:
    """Try the same ring once more, then without one member after another: no fault is known."""
    failed, tried = trials.failed + 1, trials.tried
    if trials.left_out:
        tried = (*tried, trials.left_out)
    trials = msgspec.structs.replace(trials, failed=failed, left_out="", tried=tried)
    if not evidence.base:
        return RingBlame(trials, hopeless=_no_ring(evidence) if failed >= FIRST_RINGS else "")
    left = _most_suspect_first(evidence.roster if evidence.ahead else evidence.base, evidence, trials.proven)
    left = [worker for worker in left if worker not in tried and len(left) > max(evidence.minimum, 1)]
    if left and failed >= ENOUGH:
        return RingBlame(msgspec.structs.replace(trials, left_out=left[0]))
    return RingBlame(trials, hopeless=_no_ring(evidence) if failed >= RINGS and not left else "")


def _is_to_be_seen(strike: Strike, evidence: Evidence) -> bool:
    """Tell whether a newcomer is blamed by what others say, or for being new, and enough are left to see whether they
    have a ring.
    """
    is_new = strike.worker in evidence.newcomers
    return is_new and not _says_so_itself(strike) and len(evidence.base) >= max(evidence.minimum, 1)


def _says_so_itself(strike: Strike) -> bool:
    return strike.reason != _NEVER_CAME and is_own(strike.reason)


def condemned(trials: Trials) -> set[str]:
    return {strike.worker for strike in trials.strikes if strike.times >= ENOUGH}


def not_proven(trials: Trials) -> Trials:
    """A member is gone, perhaps since before others noticed: rings may have come to nothing for its sake.

    What workers have said of themselves, and errors that others met with them, stay.
    """
    own = tuple(strike for strike in trials.strikes if _says_so_itself(strike))
    return undecided_no_more(msgspec.structs.replace(trials, strikes=own))


def undecided_no_more(trials: Trials) -> Trials:
    """Clear what was undecided, as a member is found to be at fault, or is gone: it is asked anew."""
    return msgspec.structs.replace(trials, failed=0, left_out="", tried=())


def stood(trials: Trials, roster: Sequence[str]) -> RingBlame:
    """A ring of `roster` has made a step: its members are fit, and one that was left out is not.

    Of several that came to nothing together it is not known which is to blame: each is tried once more, alone.
    """
    unfit = {trials.left_out: "a ring stood without it, and none with it"} if trials.left_out else {}
    out = condemned(trials).difference(roster)
    if len(out) == 1:
        unfit |= {strike.worker: strike.reason for strike in trials.strikes if strike.worker in out}
    left = [strike for strike in trials.strikes if strike.worker not in roster and strike.worker not in unfit]
    strikes = tuple(msgspec.structs.replace(strike, times=min(strike.times, ENOUGH - 1)) for strike in left)
    return RingBlame(undecided_no_more(msgspec.structs.replace(trials, strikes=strikes)), unfit)


def suspects(trials: Trials, roster: Sequence[str]) -> dict[str, int]:
    return {strike.worker: strike.times for strike in trials.strikes if strike.worker not in roster}


def _struck(strikes: Sequence[Strike], blamed: Mapping[str, str]) -> tuple[Strike, ...]:
    before = {strike.worker: strike.times for strike in strikes}
    others = tuple(strike for strike in strikes if strike.worker not in blamed)
    return others + tuple(Strike(worker, before.get(worker, 0) + 1, reason) for worker, reason in blamed.items())


def _pairs(evidence: Evidence) -> dict[str, set[str]]:
    """Return pairs of peers that could not connect. Workers of one host are all meant by its address."""
    pairs: dict[str, set[str]] = {}
    for worker, reason in evidence.said.items():
        address = unreachable(reason)
        for peer in evidence.roster:
            if address and peer != worker and evidence.addresses.get(peer) == address:
                pairs.setdefault(worker, set()).add(peer)
                pairs.setdefault(peer, set()).add(worker)
    return pairs


def _why_new(worker: str, evidence: Evidence) -> str:
    """Say why a newcomer is blamed that has not accused itself: the others trained without it."""
    for told, reason in evidence.faults.items():
        return f"with it {told} meets {reason}"
    return evidence.said.get(worker, _NEVER_CAME)


def _why(worker: str, evidence: Evidence, peers: set[str]) -> str:
    if unreachable(evidence.said.get(worker, "")):
        return evidence.said[worker]
    told = next(peer for peer in sorted(peers) if peer in evidence.said)
    return f"{told} could not reach it: {evidence.said[told]}"


def _most_suspect_first(whole: Sequence[str], evidence: Evidence, proven: Sequence[str]) -> list[str]:
    pairs = _pairs(evidence)

    def trust(worker: str) -> tuple[bool, bool, int, bool, bool, int]:
        says, met = is_own(evidence.said.get(worker, "")), -len(pairs.get(worker, ()))
        ahead = worker in evidence.ahead  # without it a step would be lost (I5)
        return ahead, worker in evidence.came, met, not says, worker in proven, -whole.index(worker)

    return sorted(whole, key=trust)


def _no_ring(evidence: Evidence) -> str:
    silent = {worker: _CAME if worker in evidence.came else _NEVER_CAME for worker in evidence.roster}
    said = "; ".join(f"{worker} says: {evidence.said.get(worker, silent[worker])}" for worker in evidence.roster)
    return f"no ring of the workers that are here comes to a step: {said}"


_CAME: Final = "it came to its ring"
_NEVER_CAME: Final = "it never came to its ring"
