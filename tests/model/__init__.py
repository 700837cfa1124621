"""Simulate whole jobs in one thread on a clock of its own, with the real machines of the leader and the trainers.

`SimJob` is a whole job, and `scenario` makes one of a number, faults and all. `SoloFeed` is what a generator of samples
needs of a job.
"""

from tests.model.model_checks import Violation
from tests.model.model_faults import Moment, Planned, SimFault
from tests.model.one_worker_data import SoloFeed
from tests.model.scenario import scenario
from tests.model.simulation import SimJob

__all__ = ["Moment", "Planned", "SimFault", "SimJob", "SoloFeed", "Violation", "scenario"]
