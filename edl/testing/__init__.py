"""Tools for testing elastic jobs without machines: a simulated job on a clock of its own.

`edl.clock.ManualClock`, `edl.coordination.memory_store.MemoryServer` and `edl.transport.memory_transport.MemoryNetwork`
are the fakes of single ports. `SoloFeed` here is what a generator of samples needs of a job; `SimJob` is a whole job,
and `scenario` makes one of a number, faults and all.
"""

from edl.testing.model_checks import Violation
from edl.testing.model_faults import Moment, Planned, SimFault
from edl.testing.one_worker_data import SoloFeed
from edl.testing.scenario import scenario
from edl.testing.simulation import SimJob

__all__ = ["Moment", "Planned", "SimFault", "SimJob", "SoloFeed", "Violation", "scenario"]
