"""The site: every page of this folder as it is, and the reference from the docstrings.

python -m sphinx docs out/docs --fail-on-warning
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import edl
from edl.collectives import horovod_environment

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CONTENTS = ("README", "decisions/README")  # pages that lead to all others of their folder
TOLD_BEFORE = {"edl.tensorflow": "Knee, Leaving, RateTuner, Warmup"}  # the very classes of edl.torch

project = "edl"
release = edl.__version__
html_title = f"edl {release}"
html_theme = "furo"
html_extra_path = ["site"]
root_doc = "README"  # as a git host shows it
exclude_patterns = ["site"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4  # links to headings as a git host makes them
highlight_language = "none"

# Frameworks are not imported, nor what holds a ring of theirs: the docstrings are all that is wanted.
autodoc_mock_imports = [
    "horovod",
    "keras",
    "tensorflow",
    "torch",
    "edl.tensorflow.tf_framework",
    "edl.torch.torch_framework",
]
horovod_environment.has_horovod = lambda _: True  # as if it were there
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True, "undoc-members": True}
default_role = "literal"  # `name` in a docstring


def complete(app: Sphinx, page: str, text: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    """What a site needs and a git host would show as litter: a table of contents, and directives of the reference."""
    if page in CONTENTS:
        text[0] += toctree(text[0])
    if page == "api":
        text[0] = re.sub(r"^## `(edl[.\w]+)`$.*?(?=^## |\Z)", reference, text[0], flags=re.DOTALL | re.MULTILINE)


def toctree(text: str) -> str:
    """Of all pages that this one leads to, in its order."""
    pages = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md\)", text))
    return "\n\n```{toctree}\n:hidden:\n" + "\n".join(pages) + "\n```\n"


def reference(section: re.Match[str]) -> str:
    without = f"   :exclude-members: {TOLD_BEFORE[section[1]]}\n" if section[1] in TOLD_BEFORE else ""
    return f"{section[0]}\n```{{eval-rst}}\n.. automodule:: {section[1]}\n{without}```\n\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", complete)
