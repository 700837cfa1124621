"""docs/benchmarks.md is what `benchmarks.report` makes of the kept results."""

from __future__ import annotations

import pytest

from benchmarks import report

PARTS = {"title", "command", "date", "machine", "reading", "figures"}
RESULT = {
    "title": "A pause",
    "command": "python -m benchmarks.pause",
    "date": "2026-11-28",
    "machine": "two cores",
    "reading": "It is short.",
    "figures": [{"ring": "torch", "ms": 3}, {"ring": "horovod", "stock, ms": 4261}],
}


def test_the_page_is_what_the_kept_results_make_of_it() -> None:
    assert report.PAGE.read_text() == report.page(report.kept()), "run python -m benchmarks.report"


def test_each_kept_result_is_on_the_page() -> None:
    assert report.unplaced(list(report.kept())) == set()


def test_a_result_that_no_section_shows_is_named() -> None:
    assert report.unplaced([*report.kept(), "forgotten"]) == {"forgotten"}


@pytest.mark.parametrize("name", sorted(report.kept()))
def test_a_kept_result_says_what_was_measured_when_and_where(name: str) -> None:
    result = report.kept()[name]
    assert result.keys() - {"columns"} == PARTS
    assert all(result.values())


def test_a_row_without_a_figure_has_an_empty_cell_there() -> None:
    assert report.shown(RESULT) == (
        "**A pause** (2026-11-28; two cores). It is short.\n\n"
        "| ring | ms | stock, ms |\n|---|---|---|\n| torch | 3 |  |\n| horovod |  | 4,261 |\n"
    )


def test_a_result_may_name_the_columns_that_are_shown() -> None:
    assert "| ms |\n|---|\n| 3 |\n|  |\n" in report.shown({**RESULT, "columns": ["ms"]})
    assert all(
        set(result.get("columns", [])) <= {name for row in result["figures"] for name in row}
        for result in report.kept().values()
    )
