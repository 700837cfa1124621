from edl.core.worker.rounding import add_all_rounded as add_all_rounded
from edl.core.worker.rounding import add_rounded as add_rounded
from edl.core.worker.rounding import mean_of as mean_of
