"""The site: every page of this folder as it is, and a page of the reference for each object, from the docstrings.

scripts/site --build
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.ext.autodoc.mock import mock

import edl
from edl.collectives import horovod_environment

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"  # made anew by each build
CONTENTS = ("README", "decisions/README")  # pages that lead to all others of their folder
# The very classes of edl.torch.
TOLD_BEFORE = {"edl.tensorflow": {"ElasticStream", "Knee", "Leaving", "RateTuner", "Warmup"}}
# Blocks without a language that are typed, by their first word.
COMMANDS = (
    r"edl|export|git|horovodrun|kill|kubectl|pip|python|sbatch|scripts/\w+|source|srun|ssh|sudo|\.venv/bin/\w+|\(umask"
)
TYPED = re.compile(rf"^```\n(?=(?:#.*\n|\w+=\S+ )*(?:{COMMANDS}) )", re.MULTILINE)

# A listing for each framework, one after the other under headings that begin so, becomes a tab of one set.
TABS = re.compile(r"(?:^#### (?:PyTorch|TensorFlow|Keras).*\n(?:(?!#{1,4} ).*\n)+){2,}", re.MULTILINE)
TAB = re.compile(r"^#### (.*)\n((?:(?!#{1,4} ).*\n)+)", re.MULTILINE)
# Names of others that docstrings show as code lead to their own documentation.
ELSEWHERE = {
    "torch.utils.data.DataLoader": "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    "torch.optim.Optimizer": "https://docs.pytorch.org/docs/stable/optim.html#torch.optim.Optimizer",
    "DistributedDataParallel": (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
    ),
    "tf.data.Dataset": "https://www.tensorflow.org/api_docs/python/tf/data/Dataset",
    "tf.GradientTape": "https://www.tensorflow.org/api_docs/python/tf/GradientTape",
    "tf.function": "https://www.tensorflow.org/api_docs/python/tf/function",
}
NAMED_ELSEWHERE = re.compile(rf"(?<![`\w\[])`({'|'.join(map(re.escape, ELSEWHERE))})`(?![`\w\]])")

project = "edl"
release = edl.__version__
html_title = f"edl {release}"
html_theme = "furo"
html_extra_path = ["site"]
root_doc = "README"  # as a git host shows it
exclude_patterns = ["site"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings as a git host makes them
nb_execution_mode = "off"  # notebooks are shown as they were run; a test runs them
copybutton_exclude = ".linenos, .gp, .go"  # of a session the lines that are typed
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
    """What a site needs and a git host would show as litter: tables of contents, highlighting, pages of objects."""
    if page in CONTENTS:
        text[0] = re.sub(r"^## (.*)\n(?:(?!^## ).*\n?)*", captioned, text[0], flags=re.MULTILINE)
        text[0] += "" if "{toctree}" in text[0] else toctree(text[0])
    if page == "api":
        text[0] = re.sub(r"^## `(edl[.\w]+)`$.*?(?=^## |\Z)", listed, text[0], flags=re.DOTALL | re.MULTILINE)
    text[0] = TYPED.sub("```bash\n", text[0])
    text[0] = TABS.sub(lambda found: tab_set(found[0]), text[0])
    text[0] = NAMED_ELSEWHERE.sub(lambda name: f"[`{name[1]}`]({ELSEWHERE[name[1]]})", text[0])


def tab_set(sections: str) -> str:
    """Return sections as tabs; a reader's choice holds on all pages."""
    tabs = [
        f"::::{{tab-item}} {title}\n:sync: {title.split()[0].rstrip(',')}\n\n{body.strip()}\n::::\n"
        for title, body in TAB.findall(sections)
    ]
    return ":::::{tab-set}\n" + "\n".join(tabs) + ":::::\n\n"


def link(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    """Link names of frameworks in a docstring to the frameworks' own pages."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = NAMED_ELSEWHERE.sub(lambda name: f"`{name[1]} <{ELSEWHERE[name[1]]}>`__", line)


def accessible(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:  # noqa: ARG001
    """Let the keyboard scroll listings, and screen readers know the sidebar's headings."""
    heading = 'role="heading"'
    added = {
        "body": ("<pre>", '<pre tabindex="0">'),
        "furo_navigation_tree": (heading, f'{heading} aria-level="2"'),
    }
    for name, (old, new) in added.items():
        if isinstance(context.get(name), str):
            context[name] = context[name].replace(old, new)


def captioned(section: re.Match[str]) -> str:
    """A section of the index, with the table of contents that stands under its heading in the sidebar."""
    return f"{section[0]}{toctree(section[0], section[1])}\n"


def toctree(text: str, caption: str = "") -> str:
    """Of all pages to which this text leads, in its order."""
    pages = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.(?:md|ipynb)\)", text))
    option = f":caption: {caption}\n" if caption else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{option}" + "\n".join(pages) + "\n```\n"


# ---------------------------------------------------------------------------------------------------- the reference


def listed(section: re.Match[str]) -> str:
    """A module's section of the reference, with a row for each of its objects."""
    rows = [
        f"- [`{name}`](reference/{section[1]}.{name}.rst): {first_sentence(thing)}"
        for name, thing in objects(section[1])
    ]
    pages = "\n".join(f"reference/{section[1]}.{name}" for name, _ in objects(section[1]))
    return f"{section[0]}\n" + "\n".join(rows) + f"\n\n```{{toctree}}\n:hidden:\n{pages}\n```\n\n"


def objects(module: str) -> list[tuple[str, Any]]:
    """The names that a module gives to its users, with what they are: `__all__`, or all of its own in their order."""
    with mock(autodoc_mock_imports):
        there = import_module(module)
    names = getattr(there, "__all__", None) or [
        name for name, thing in vars(there).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module and callable(thing)
    ]  # fmt: skip
    found = [(name, getattr(there, name)) for name in names if name not in TOLD_BEFORE.get(module, ())]
    return [(name, thing) for name, thing in found if not inspect.ismodule(thing)]


def first_sentence(thing: Any) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", text)[0]


def write_pages(app: Sphinx) -> None:  # noqa: ARG001 - Sphinx's signature
    """A file for each object, which autodoc fills. Files that are as they were keep their time."""
    modules = re.findall(r"^## `(edl[.\w]+)`$", (HERE / "api.md").read_text(), re.MULTILINE)
    pages = {
        f"{module}.{name}.rst": page_of(module, name, thing) for module in modules for name, thing in objects(module)
    }
    REFERENCE.mkdir(exist_ok=True)
    for path in REFERENCE.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for file, content in pages.items():
        path = REFERENCE / file
        if not path.exists() or path.read_text() != content:
            path.write_text(content)


def page_of(module: str, name: str, thing: Any) -> str:
    is_class = inspect.isclass(thing)
    kind = "exception" if is_class and issubclass(thing, BaseException) else "class" if is_class else "function"
    kind = kind if callable(thing) else "data"
    title = f"{module}.{name}"
    return f"{title}\n{'=' * len(title)}\n\n.. currentmodule:: {module}\n\n.. auto{kind}:: {title}\n"


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_pages)
    app.connect("env-get-outdated", lambda *_: ["api"])  # its lists follow from modules, not from its own text
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", link)
    app.connect("html-page-context", accessible, priority=900)  # after the theme's
