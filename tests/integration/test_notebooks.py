"""The notebooks of the site: run anew by a kernel, cell after cell, each with its plot; and as they are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from pace import patient

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
CELL_S = 240.0
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def long_ones(path: Path) -> Any:
    """A notebook; soak: a second one by the same kernel."""
    return pytest.param(path, id=path.stem, marks=[pytest.mark.soak] if path.stem == "notebook-sizes" else [])


def plots(notebook: nbformat.NotebookNode) -> list[str]:
    """The pictures of all cells, as texts of base64."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.slow
@pytest.mark.parametrize("path", [long_ones(path) for path in NOTEBOOKS])
def test_a_notebook_runs_from_its_first_cell_to_its_plot(path, edl, tmp_path, monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("EDL_")]:
        monkeypatch.delenv(name)
    told = {"EDL_HOME": str(edl.home), "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    told |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "clone").mkdir()
    for name in ("data", "examples"):
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        notebook, timeout=int(patient(CELL_S)), resources={"metadata": {"path": str(tmp_path / "clone")}}
    )
    client.execute()  # raises CellExecutionError; a job that is left then ends with the fixture
    assert len(plots(notebook)) == 1
    if os.environ.get("KEEP_NOTEBOOKS"):
        for cell in notebook.cells:
            cell.metadata.clear()
        nbformat.write(notebook, path)


@every_notebook
def test_a_notebook_is_kept_with_its_plot_and_without_an_error(path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    [plot] = plots(notebook)
    assert len(plot) < 150_000
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code" and "print" in cell.source)


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["notebook-function", "notebook-sizes"]
