"""The one part of the build that pyproject.toml has no words for; everything else is there."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Optional: where there is no compiler, the package installs without it. See edl/collectives/guard.py.
        Extension(
            "edl.collectives._guard",
            ["edl/collectives/_guard.cpp"],
            language="c++",
            extra_compile_args=["-std=c++17", "-O2", "-g0"],
            optional=True,
        )
    ]
)
