"""The one part of the build that pyproject.toml has no words for; everything else is there."""

from setuptools import Extension, setup

setup(
    # Optional: where there is no compiler, the package installs without them.
    ext_modules=[
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
    ]
)
