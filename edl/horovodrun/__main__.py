"""Entry point of the stand-in's process."""

import sys

from edl.horovodrun.stand_in import main

sys.exit(main(sys.argv[1:]))
