"""edl: data-parallel training that grows and shrinks while it runs.

Training scripts import one of the two faces, which offer the same names: ``edl.torch`` or ``edl.tensorflow``.
This module stays empty, so that the daemon, which needs neither framework, starts without them.
"""

__version__ = "0.1.0"
__distribution__ = "horovod-edl"  # tells this package from the other one that is called `edl`; see horovod_edl.py
