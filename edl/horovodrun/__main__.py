"""Entry point of the stand-in's process."""

import sys

from edl.horovodrun.worker_proxy import main

sys.exit(main(sys.argv[1:]))
