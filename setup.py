"""The one part of the build that pyproject.toml has no words for; everything else is there."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Optional: where there is no compiler, the package installs without it. See edl/collectives/forming.py.
        Extension(
            "edl.collectives._forming",
            ["edl/collectives/_forming.cpp"],
            language="c++",
            extra_compile_args=["-std=c++17", "-O2", "-g0"],
            optional=True,
        )
    ]
)
