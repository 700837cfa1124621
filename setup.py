"""What pyproject.toml has no words for: the parts in C, and the page and links of a release."""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

# With EDL_PURE=1 there are none: a wheel that was built so installs with any Python, on any machine.
PURE = os.environ.get("EDL_PURE", "") not in {"", "0"}
# For the stable ABI of 3.11: one wheel serves that Python and all newer ones.
ABI = [("Py_LIMITED_API", "0x030b0000")]

# Where edl is published; scripts/release sets it. Without it links of the README stay those of the checkout.
HOME = os.environ.get("EDL_HOMEPAGE", "").rstrip("/")
README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


def with_absolute_links(text: str, home: str, tag: str) -> str:
    """A registry shows the README apart from the files that it links to."""

    def absolute(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        return f"{picture}{words}({home}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)


def version() -> str:
    source = (Path(__file__).parent / "edl" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found is not None
    return found[1]


def urls() -> dict[str, str]:
    if not HOME:
        return {}
    at = f"{HOME}/blob/v{version()}"
    return {"Homepage": HOME, "Documentation": f"{at}/docs/README.md", "Changelog": f"{at}/CHANGELOG.md"}


def part(name: str, *options: str, **how: object) -> Extension:
    """Optional: where there is no compiler, the package installs without it."""
    return Extension(
        name, extra_compile_args=[*options, "-g0"], py_limited_api=True, define_macros=ABI, optional=True, **how
    )


setup(
    long_description=with_absolute_links(README, HOME, f"v{version()}") if HOME else README,
    long_description_content_type="text/markdown",
    project_urls=urls(),
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
    ext_modules=[]
    if PURE
    else [
        part("edl.collectives._guard", "-std=c++17", "-O2", sources=["edl/collectives/_guard.cpp"], language="c++"),
        part("edl.transport._count", "-std=c11", "-O2", sources=["edl/transport/_count.c"]),
        part("edl.core.worker._digest", "-std=c11", "-O3", sources=["edl/core/worker/_digest.c"]),
        part(
            "edl.core.worker._rounding", "-std=c11", "-O3", "-fno-math-errno", sources=["edl/core/worker/_rounding.c"]
        ),
        part("edl.coordination._gate", "-std=c11", "-O2", sources=["edl/coordination/_gate.c"]),
    ],
)
