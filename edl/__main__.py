"""`python -m edl` is the command `edl`."""

import sys

from horovod_edl import main

if __name__ == "__main__":
    sys.exit(main())
