"""The site: built as scripts/site builds it, without a warning, and looked into as a reader does."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from axe import serious_findings
from browser import Browser
from pace import patient
from sphinx.search.en import SearchEnglish

pytest.importorskip("sphinx_design")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SECTIONS = ["Get started", "Tutorials", "Guides", "Reference", "How it works", "Contribute"]
LOOKED_FOR = {
    "process group": "glossary",
    "restart": "checkpoints",
    "spot instance": "README",
    "preemption": "glossary",
    "elastic": "glossary",
}


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run([ROOT / "scripts/site", "--build"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ROOT / "out/docs"


@pytest.mark.slow
def test_the_sidebar_has_its_sections_in_order(site) -> None:
    page = (site / "README.html").read_text()
    assert re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]*)</span>', page) == SECTIONS


def test_each_name_of_a_face_has_a_page_and_code_can_be_copied(site) -> None:
    tree = ast.parse((ROOT / "edl/torch/__init__.py").read_text())
    lists = [one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    names = set(ast.literal_eval(lists[0])) - {"errors", "elastic", "run"}
    pages = {path.name for path in (site / "reference").glob("*.html")}
    assert {f"edl.torch.{name}.html" for name in names} <= pages
    assert "Leaves the job" in (site / "reference/edl.torch.shutdown.html").read_text() or "shutdown" in names
    assert "copybutton.js" in (site / "quickstart.html").read_text()
    assert "highlight-bash" in (site / "cli.html").read_text()


def found_by(site: Path, query: str) -> set[str]:
    """The pages that have all words, by the index that the page of results asks."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip(";\n").removesuffix(")"))
    stem = SearchEnglish({}).stem
    pages = [_pages(index["terms"], stem(word)) | _pages(index["titleterms"], stem(word)) for word in query.split()]
    return {index["docnames"][number] for number in set.intersection(*pages)}


def _pages(terms: dict[str, int | list[int]], word: str) -> set[int]:
    numbers = terms.get(word, [])
    return {numbers} if isinstance(numbers, int) else set(numbers)


@pytest.mark.parametrize("query", LOOKED_FOR)
def test_the_words_of_the_field_are_found(site, query) -> None:
    assert LOOKED_FOR[query] in found_by(site, query)


def test_a_listing_for_each_framework_is_a_tab_and_names_of_frameworks_lead_to_their_pages(site) -> None:
    page = (site / "quickstart.html").read_text()
    assert re.findall(r'data-sync-id="(\w+)"', page) == ["PyTorch", "TensorFlow", "Keras"]
    assert "https://docs.pytorch.org/docs/stable/" in (site / "reference/edl.torch.ElasticDataLoader.html").read_text()
    assert (
        "https://www.tensorflow.org/api_docs/" in (site / "reference/edl.tensorflow.elastic_dataset.html").read_text()
    )


def test_notebooks_are_shown_with_their_plots(site) -> None:
    for name in ("notebook-function", "notebook-sizes"):
        assert re.search(r'<img [^>]*src="_images/[^"]*\.png"', (site / f"{name}.html").read_text())


@pytest.mark.slow
def test_the_site_can_be_used_without_sight(site) -> None:
    found = []
    with Browser(1920) as browser:
        looks = [(1920, False), (375, True), (1920, True), (375, False)]  # each width and each light on each page
        for page, count in (("README", 4), ("quickstart", 2), ("notebook-sizes", 2), ("reference/edl.torch.init", 2)):
            browser.driver.get(f"file://{site}/{page}.html")
            for width, dark in looks[:count]:
                browser.resize(width)
                browser.look(dark=dark)
                found += [f"{page}, {width}: {line}" for line in serious_findings(browser.driver)]
                assert browser.fits(), (page, width)
    assert found == []


@pytest.mark.slow
def test_the_site_is_served_on_this_machine(site) -> None:
    command = [str(ROOT / "scripts/site"), "--port", "0"]  # any free one
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        lines = iter(served.stdout.readline, "")
        address = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line)))
        with urllib.request.urlopen(f"{address}/README.html", timeout=patient(30.0)) as page:
            assert b"Documentation" in page.read()
        served.terminate()


def test_the_workflow_builds_what_is_tested_here() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text())
    steps = workflow["jobs"]["site"]["steps"]
    assert any(step.get("run", "").startswith("scripts/site --build") for step in steps)
    assert [step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", "")] == ["out/docs"]
