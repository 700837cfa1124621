"""The one part of the build that pyproject.toml has no words for; everything else is there."""

import os

from setuptools import Extension, setup

# With EDL_PURE=1 there are none: a wheel that was built so installs with any Python, on any machine.
PURE = os.environ.get("EDL_PURE", "") not in {"", "0"}

setup(
    # Optional: where there is no compiler, the package installs without them.
    ext_modules=[]
    if PURE
    else [
        Extension(  # see edl/collectives/guard.py
            "edl.collectives._guard",
            ["edl/collectives/_guard.cpp"],
            language="c++",
            extra_compile_args=["-std=c++17", "-O2", "-g0"],
            optional=True,
        ),
        Extension(  # see edl/transport/count.py
            "edl.transport._count",
            ["edl/transport/_count.c"],
            extra_compile_args=["-std=c11", "-O2", "-g0"],
            optional=True,
        ),
        Extension(  # see edl/core/worker/digest.py
            "edl.core.worker._digest",
            ["edl/core/worker/_digest.c"],
            extra_compile_args=["-std=c11", "-O3", "-g0"],
            optional=True,
        ),
        Extension(  # no module of Python's: see edl/coordination/gate.py
            "edl.coordination._gate",
            ["edl/coordination/_gate.c"],
            extra_compile_args=["-std=c11", "-O2", "-g0"],
            optional=True,
        ),
    ]
)
