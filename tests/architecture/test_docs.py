"""What the documentation shows is what the code has: links, listings, commands, tables and quoted messages."""

from __future__ import annotations

import argparse
import ast
import configparser
import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml

from edl.cli.command_arguments import TWINS
from edl.cli.job_flags import job_named
from edl.cli.parser import build, parse
from edl.cluster.queue import queue_entries
from edl.config import TABLE
from edl.config.settings_table import MORE_VARIABLES
from edl.core.job import member_states
from edl.core.job.member_states import TRANSITIONS
from edl.core.worker import worker_states
from edl.events import Kind
from edl.facts import FACTS
from edl.protocol import node_paths

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BESIDE = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "data/README.md", "examples/README.md")
]
PAGES = sorted([*BESIDE, *DOCS.rglob("*.md")])
PICTURE = re.compile(r"^ +\(new\) .*?(?=\n\n|\n```)", re.DOTALL | re.MULTILINE)  # with the line above it left out
FILES = re.compile(r"(?:\.?[\w-]+/)*[\w-]+\.(?:py|md|toml|cpp)\b|(?:scripts|\.ci)/[\w-]+")
OF_USERS = {"train.py", "hosts.py"}  # stand for the reader's own script
NAMES = re.compile(r"(?<![\w./~-])(?:edl|tests|scripts|examples|benchmarks|data|docs)/[\w/.-]*\w")
MODULES = re.compile(r"python -m ((?:benchmarks|tests\.soaks)\.\w+)")
VARIABLE = "…"
TYPED = re.compile(r"(?:^|\$\(|[|;&] )(?:\w+\$ )?(?:\w+=\S+ )*edl ([^|;&)<>\n]*)", re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next heading of the same level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", page.read_text(), re.MULTILINE)
    assert found, f"{named(page)} has no section {title}"
    rest = page.read_text()[found.end() :]
    return re.split(rf"^#{{1,{len(found[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of all tables' rows, without the heads."""
    for table in re.findall(r"^\|.*\n\|[ |:-]+\|\n((?:\|.*(?:\n|$))*)", text, re.MULTILINE):
        for row in table.splitlines():
            yield [cell.strip() for cell in row.strip().strip("|").split(" | ")]


def fenced(page: Path, language: str) -> list[str]:
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in blocks if name == language]


def anchor(heading: str) -> str:
    """As the pages' readers make it of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# ------------------------------------------------------------------------------------------------- links and files


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, fragment in re.findall(r"\]\((?!https?:|mailto:)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{named(page)} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{named(page)} links to #{fragment} of {target}"


def test_every_page_is_reached_from_the_index() -> None:
    for index in (DOCS / "README.md", DOCS / "decisions" / "README.md"):
        listed = set(re.findall(r"\]\(([\w-]+\.md)\)", index.read_text()))
        assert listed == {page.name for page in index.parent.glob("*.md")} - {"README.md"}


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    for name in NAMES.findall(page.read_text()):
        assert (ROOT / name).exists(), f"{named(page)} names {name}"


@every_page
def test_commands_name_files_that_exist(page: Path) -> None:
    for block in (*fenced(page, ""), *fenced(page, "bash")):
        for name in FILES.findall(block):
            assert name in OF_USERS or (ROOT / name).exists() or (page.parent / name).exists(), f"{block}: {name}"
        for module in MODULES.findall(block):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{block}: {module}"


@every_page
def test_commands_that_are_typed_can_be_parsed(page: Path) -> None:
    for block in (*fenced(page, ""), *fenced(page, "bash")):
        for line in TYPED.findall(block.replace("\\\n", " ")):
            words = shlex.split(line, comments=True)
            if not {"...", "COMMAND..."} & set(words) and VARIABLE not in line:
                with contextlib.suppress(SystemExit):  # --version
                    parse(words)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_commands_and_flags_that_are_named_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for named_so in re.findall(r"`(?:\w+=\S+ )*edl ([a-z][^`\n]*)`", text):
        parser: argparse.ArgumentParser = commands()
        for word in job_named(named_so.split()):
            places = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
            if places and word in places[0]:
                parser = places[0][word]
            else:
                assert parser.prog != "edl", f"{named(page)}: edl {named_so}"
                break
        known = {flag for action in parser._actions for flag in action.option_strings}
        of_edl = re.split(r" (?:python|COMMAND|SCRIPT|train\.py)", named_so)[0]
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", of_edl)) <= known, f"{named(page)}: edl {named_so}"


@every_page
def test_python_listings_compile(page: Path) -> None:
    for block in fenced(page, "python"):
        margin = len(block) - len(block.lstrip(" "))
        lines = [line[margin:] for line in block.splitlines()]
        if lines[-1].endswith(":"):  # the head of a loop, to show how it begins
            lines.append("    ...")
        ast.parse("\n".join(lines))


@every_page
def test_shell_scripts_are_scripts(page: Path) -> None:
    for block in fenced(page, "bash"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert not done.stderr, f"{block}: {done.stderr}"


@every_page
def test_manifests_and_units_can_be_read(page: Path) -> None:
    for block in fenced(page, "yaml"):
        for manifest in yaml.safe_load_all(block):
            assert {"apiVersion", "kind", "metadata"} <= manifest.keys()
    for block in fenced(page, "ini"):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block)
        assert "ExecStart" in unit["Service"]


@pytest.mark.parametrize("name", ["plain-processes", "slurm", "kubernetes"])
def test_pages_about_launching_name_variables_that_exist(name: str) -> None:
    known = {variable for setting in TABLE for variable in setting.variables}
    assert set(re.findall(r"EDL_[A-Z_]+", (DOCS / f"{name}.md").read_text())) <= known


def test_each_variable_of_edl_is_known_to_the_check_for_mistyped_ones() -> None:
    build()
    known = {*MORE_VARIABLES, *TWINS, *(variable for setting in TABLE for variable in setting.variables)}
    texts = [path.read_text() for path in [*(ROOT / "edl").rglob("*.py"), DOCS / "setup.md"]]
    assert {name for text in texts for name in re.findall(r"\bEDL_[A-Z_]*[A-Z]\b", text)} <= known


# ------------------------------------------------------------------------------------------------ what the code has


def transitions(page: Path, title: str) -> list[tuple[str, str, str]]:
    """The transitions in a section's table, whose first cell may name several states."""
    return [(state, cause, to) for of, cause, to in rows(section(page, title)) for state in of.split(", ")]


def test_transitions_are_those_of_the_code() -> None:
    shown = transitions(DOCS / "states-and-events.md", "States of a member")
    assert len(set(shown)) == len(shown)
    assert set(shown) == {(state.value, cause.value, to.value) for (state, cause), to in TRANSITIONS.items()}


def test_a_cluster_jobs_phases_are_those_of_the_code() -> None:
    shown = transitions(DOCS / "cluster.md", "A job")
    assert len(set(shown)) == len(shown)
    assert set(shown) == {
        (phase.value, turn.value, to.value) for (phase, turn), to in queue_entries.TRANSITIONS.items()
    }


def test_a_trainers_states_are_those_of_the_code() -> None:
    shown = transitions(DOCS / "states-and-events.md", "States of a trainer")
    told = {(state.value, change.value, to.value) for (state, change), to in worker_states.TRANSITIONS.items()}
    from_any = {worker_states.StateChange.OBEYS.value, worker_states.StateChange.ENDED.value}  # said in a sentence
    assert len(set(shown)) == len(shown)
    assert set(shown) == {row for row in told if row[1] not in from_any}


def test_the_picture_of_a_members_states_is_that_of_the_code() -> None:
    pictures = [
        PICTURE.search(text) for text in (member_states.__doc__ or "", (DOCS / "states-and-events.md").read_text())
    ]
    drawn = [[line.strip() for line in picture[0].splitlines()] for picture in pictures if picture]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]


def test_events_are_those_of_the_code() -> None:
    """Each kind, when it is told, and all that its fact says."""
    shown = list(rows(section(DOCS / "states-and-events.md", "Events")))
    assert sorted(row[0].strip("`") for row in shown) == sorted(kind.value for kind in Kind) == sorted(FACTS)
    for kind, when, besides in shown:
        fact = FACTS[Kind(kind.strip("`"))]
        assert re.sub(r" \(\[.*\]\(.*\)\)", "", when) == in_a_cell(fact.__doc__ or ""), kind
        fields = {field.encode_name for field in msgspec.structs.fields(fact)} - {"numbers"}
        assert fields <= set(re.findall(r"`(\w+)`", besides)), kind


def in_a_cell(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:].rstrip(".")


def test_the_tree_in_zookeeper_is_that_of_the_code() -> None:
    shown = {
        path for row in rows(section(DOCS / "coordination.md", "What lies in ZooKeeper")) for path in quoted(row[0])
    }
    job = "<job>"
    paths = {
        node_paths.record(job),
        node_paths.secret(job),
        node_paths.leader(job),
        node_paths.worker(job, "<id>"),
        f"{node_paths.events(job)}/e-<n>",
    }
    assert paths <= shown
    assert all(path.startswith(node_paths.root(job)) for path in shown)


@pytest.mark.parametrize("face", ["torch", "tensorflow"])
def test_every_public_name_is_told_of(face: str) -> None:
    """Read, not imported: a framework takes seconds."""
    shown = {
        re.split(r"\W", name)[0] for row in rows(section(DOCS / "quickstart.md", "Names")) for name in quoted(row[0])
    }
    has = public_names(ROOT / "edl" / face / "__init__.py")
    ours = {
        "GradientTape",
        "KerasCallback",
        "ElasticDataLoader",
        "ElasticDataset",
        "elastic_dataset",
        "add_gradients",
        "summed_gradients",
        "prepare",
        "voidable",
    }  # of one face
    assert shown - ours == has - ours
    assert has <= shown


@pytest.mark.parametrize("row", list(rows(section(DOCS / "architecture.md", "Layers"))), ids=lambda row: row[0])
def test_every_package_is_in_its_layer(row: list[str]) -> None:
    for path in quoted(row[0]):
        assert (ROOT / path).exists()


def test_no_package_is_missing_among_the_layers() -> None:
    shown = {path.strip("/") for row in rows(section(DOCS / "architecture.md", "Layers")) for path in quoted(row[0])}
    packages = {f"edl/{path.parent.name}" for path in (ROOT / "edl").glob("*/__init__.py")}
    modules = {f"edl/{path.name}" for path in (ROOT / "edl").glob("*.py")} - {"edl/__init__.py"}
    assert shown == packages | modules


def test_every_invariant_is_in_the_table() -> None:
    shown = [row[0] for row in rows(section(DOCS / "architecture.md", "Where the invariants live"))]
    cited = {name for file in sources() for name in re.findall(r"\bI(?:1[0-9]|[1-9])\b", file.read_text())}
    assert shown == sorted(set(shown), key=lambda name: int(name[1:]))
    assert cited <= set(shown)


@pytest.mark.parametrize("message", [row[0] for row in rows((DOCS / "troubleshooting.md").read_text())])
def test_quoted_messages_are_what_the_code_says(message: str) -> None:
    for line in quoted(message):
        parts = [part for part in line.split(VARIABLE) if part.strip()]
        if len(line.split()) < 4 or line.startswith("No module"):  # a name, or what Python itself says
            continue
        assert any(all(part in said for part in parts) for said in all_said()), line


# ------------------------------------------------------------------------------------------------------ small parts


commands = cache(build)


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sources() -> list[Path]:
    return [*(ROOT / "edl").rglob("*.py"), ROOT / "horovod_edl.py"]


def public_names(file: Path) -> set[str]:
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
    raise AssertionError(f"{file} has no __all__")


@cache
def all_said() -> frozenset[str]:
    """Every string of the code, with what is put in later as `VARIABLE`."""
    trees = (ast.parse(file.read_text()) for file in sources())
    return frozenset(text for one in trees for node in ast.walk(one) for text in _strings(node))


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARIABLE for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"%[dsr]", VARIABLE, node.value)
