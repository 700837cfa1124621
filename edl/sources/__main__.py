"""`python -m edl.sources FILES...`: count the records of files before a job does, and check them.

Results for large files are kept for the jobs of this host, so that no worker need wait for them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from edl.config import Settings
from edl.config.settings import check_home
from edl.errors import ConfigError, DataError, UsageError
from edl.sources.cache import Cache
from edl.sources.formats import FORMATS
from edl.sources.opening import open_files
from edl.sources.source_port import Source

BLOCK = 4096  # records read at a time
PATIENCE_S = 24 * 3600.0  # how long to wait for another process that counts the same files


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all is well, 1 if a file is bad, 2 after wrong use."""
    parser = argparse.ArgumentParser(prog="python -m edl.sources", description="Count the records of files.")
    parser.add_argument("files", nargs="+", metavar="FILES", help="paths, globs (quoted), folders, URLs")
    parser.add_argument("--format", help=f"where names do not say it: {', '.join(FORMATS)}")
    parser.add_argument("--check", action="store_true", help="also read every record, to find the first bad one")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        home = Settings.from_given({}, os.environ).home
        check_home(home, home / "data")
        source = open_files(options.files, options.format, Cache(home / "data", PATIENCE_S))
        if options.check:
            _read_all(source)
    except (DataError, UsageError, ConfigError) as error:
        sys.stderr.write(f"edl: {error}\n")
        return 1 if isinstance(error, DataError) else 2
    done = "counted and read" if options.check else "counted"
    sys.stdout.write(f"{len(source)} records {done} in {time.monotonic() - began:.1f} s ({source.fingerprint})\n")
    return 0


def _read_all(source: Source) -> None:
    for first in range(0, len(source), BLOCK):
        source.read(range(first, min(first + BLOCK, len(source))))


if __name__ == "__main__":
    sys.exit(main())
