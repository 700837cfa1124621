"""Carry out each fault on a simulated job: on one of its workers, its leader, or its coordinator.

Owns: carrying out a fault, and that its leader notices that a host is gone. Does not own: the kinds of fault
(`tests.model.model_faults`), nor when one strikes, and whom (`tests.model.simulation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.core.job.leader_inputs import Vanished
from edl.core.worker.worker_inputs import LeaveWanted
from edl.protocol.record import OVER, WorkerState
from tests.model.model_faults import SimFault
from tests.model.model_rings import STEP_S
from tests.model.model_worker import KILLED, SESSION_S, SimWorker

if TYPE_CHECKING:
    from tests.model.model_leader import SimLeader
    from tests.model.simulation import SimJob

OF_THE_JOB = (SimFault.JOIN, SimFault.CHANGE_LEADER, SimFault.CRASH_LEADER, SimFault.SCALE, SimFault.AWAY)
SEEN_DEAD_S = 0.05  # at most, from a process's death until others of its host see it
KNOWN_S = 0.2  # at most, from there until the leader knows
AWAY_S = 2 * SESSION_S  # at most


class SimFaults:
    def __init__(self, job: SimJob) -> None:
        self.job = job

    def strike_job(self, fault: SimFault) -> None:
        match fault:
            case SimFault.JOIN:
                self.job.launcher.start()
            case SimFault.CHANGE_LEADER:
                self.job.daemons.repeat(self.job.leader.book)
                self.job.elect(self.job.leader)
            case SimFault.CRASH_LEADER:
                self.job.leader.crash(written=self.job.random.random() < 0.5)
                self.job.after(0.02 + self.job.random.random() * SESSION_S, self.job.elect, self.job.leader)
            case SimFault.SCALE:
                self.job.requests.ask(self.job.random.randint(1, 4))
            case SimFault.AWAY:
                self.job.node.was_away_s = AWAY_S * self.job.random.random()
                self.job.calm_at = self.job.node.away_until = self.job.now + self.job.node.was_away_s
            case _:
                pass

    def strike(self, fault: SimFault, victim: SimWorker) -> None:
        match fault:
            case SimFault.LEAVE:
                self.job.shells.tell(victim, LeaveWanted())
            case SimFault.KILL:
                self.die(victim)
                victim.hold_rest()
                victim.observed.died(KILLED)
                self.job.daemons.stir(victim)
            case SimFault.VANISH:
                self.die(victim)
                victim.daemon, victim.vanished = 0, True
                self.job.after(SESSION_S, self.expire, victim)
            case SimFault.KILL_WORKER:
                self.die(victim)
                victim.daemon = 0
                self.job.after(SESSION_S, self.expire, victim)
                self.job.after(SEEN_DEAD_S * self.job.random.random(), self._see_dead, victim)
            case SimFault.STALL:
                victim.stalled = True
                self.job.rings.missed(victim)
            case SimFault.STRAY:
                victim.astray = True
                self.job.rings.left(victim)
            case SimFault.BREAK_LIMB | SimFault.LOSE_LIMB:
                self._strike_limb(fault, victim)
            case SimFault.CUT_OFF:
                victim.cut_off = True
            case SimFault.CUT_STATE:
                victim.unsent = True
            case SimFault.DEAFEN:
                victim.deaf_until = self.job.now + 20 * STEP_S
            case SimFault.RENEW_DAEMON if victim.daemon:
                self.job.daemons.renew(victim)
            case _:
                pass

    def _strike_limb(self, fault: SimFault, victim: SimWorker) -> None:
        if fault is SimFault.LOSE_LIMB:
            victim.lose_limb()
            return
        victim.lost_state = True  # a ring that it is found unfit for may have broken so
        victim.breaks = self.job.limb_source.choice(("formed", "begins", "prepared"))

    def die(self, worker: SimWorker) -> None:
        worker.alive = False
        self.job.rings.missed(worker)
        self.job.next_rings.missed(worker)
        self.job.limb_rings.missed(worker)

    def expire(self, worker: SimWorker) -> None:
        """End a daemon's session. None ends while the coordinator is away, and all begin anew when it is back."""
        if self.job.node.is_away:
            self.job.after(self.job.node.away_until - self.job.now + SESSION_S, self.expire, worker)
            return
        self.job.daemons.lose_session(worker)
        self.job.call(Vanished(worker.id, "its daemon's session ended"))
        self.job.after(2 * SESSION_S, self._is_missed, worker, self.job.calm_at)

    def _see_dead(self, worker: SimWorker) -> None:
        """The other daemons of its host do; a session's end is not waited for then."""
        witnesses = self.job.daemons.see_dead(worker)
        if worker.id in self._members() and not self.job.node.is_away:
            telling = witnesses, self.job.leader
            self.job.after(KNOWN_S, self._is_known, worker, telling, self.job.calm_at)

    def _is_known(self, worker: SimWorker, telling: tuple[set[str], SimLeader], calm_at: float) -> None:
        """Check that the leader knows of a death, if a member's daemon has told it."""
        witnesses, leader = telling
        if self.job.leader is leader and witnesses & self._members():
            self._is_missed(worker, calm_at)

    def _members(self) -> set[str]:
        return {one.identity.id for one in self.job.durable.members if one.state is not WorkerState.DONE}

    def _is_missed(self, worker: SimWorker, calm_at: float) -> None:
        """Check that the leader has lost the worker, unless something else has happened meanwhile."""
        if calm_at == self.job.calm_at and self.job.durable.state not in OVER and self.job.leader.alive:
            self.job.checks.missed(worker)
