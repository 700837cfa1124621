"""The command line: parse the arguments, run the command, report the result in one line.

Owns: names of commands and flags, help, formats for people and for programs, and exit codes (0 done, 1 the job failed,
2 wrong use). Does not own: settings (`edl.config`), starting workers (`edl.launch`), asking a job
(`edl.outside.job_client`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from edl.cli.parser import parse
from edl.control_characters import one_line
from edl.errors import ConfigError, EdlError, UsageError

WRONG_USE = 2
FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    logging.getLogger("edl").addHandler(logging.NullHandler())  # errors are reported in one line, at the end
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        code: int = arguments.act(arguments)
        sys.stdout.flush()
        return code
    except (ConfigError, UsageError) as error:
        return _complain(str(error), WRONG_USE)
    except EdlError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", FAILED)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the flush at exit does not fail again
        return FAILED


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"edl: {one_line(message)}\n")
    return code
