"""Tools for testing elastic jobs without machines: a simulated job on a clock of its own.

`edl.clock.ManualClock`, `edl.coordination.memory.MemoryServer` and `edl.transport.memory.MemoryNetwork` are the fakes
of single ports. `SoloFeed` here is what a generator of samples needs of a job; `SimJob` is a whole job, and `scenario`
makes one of a number, faults and all.
"""

from edl.testing.checks import Violation
from edl.testing.faults import Moment, Planned, SimFault
from edl.testing.scenario import scenario
from edl.testing.simulation import SimJob
from edl.testing.solo import SoloFeed

__all__ = ["Moment", "Planned", "SimFault", "SimJob", "SoloFeed", "Violation", "scenario"]
