"""Tools for testing elastic jobs without machines: a simulated job on a clock of its own.

`edl.clock.ManualClock`, `edl.coordination.memory.MemoryServer` and `edl.transport.memory.MemoryNetwork` are the fakes
of single ports; `SimJob` here is a whole job.
"""

from edl.testing.simulation import Fault, SimJob

__all__ = ["Fault", "SimJob"]
