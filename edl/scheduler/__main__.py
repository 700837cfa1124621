"""`python -m edl.scheduler keeper`, `scheduler NUMBER`, `agent NODE` or `http`: a process of EDL_HOME's cluster."""

from __future__ import annotations

import os
import sys

from edl.config import Settings
from edl.scheduler.cluster_home import OWN, ClusterHome
from edl.scheduler.cluster_processes import main

if __name__ == "__main__":
    settings = Settings.from_environment({"EDL_HOME": os.environ["EDL_HOME"]})
    sys.exit(main(sys.argv[1], "".join(sys.argv[2:3]), ClusterHome(settings.home, os.environ.get(OWN))))
