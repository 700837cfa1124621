"""The page that compares policies: its command on a tiny trace, jobs that it draws, and what it makes of figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_traces import APPLICATIONS, TRACES

from benchmarks import policies
from benchmarks.policies import knows, of_ablations, of_loads, of_trace, ratios, replaced
from benchmarks.policies_runs import (
    COSTS,
    DOUBTS,
    FIXED,
    LENGTHS_S,
    NODES,
    SETTINGS,
    WINDOW_S,
    Arrivals,
    Found,
    Kept,
    PlannedRun,
    ablated,
    drawn,
    loaded,
    of_samples,
    on_trace,
    play,
    read_models,
    services,
    traces_in,
)
from edl.errors import ConfigError
from edl.simulator.course import Epochs
from edl.simulator.simulation_results import Summary
from edl.simulator.trace_files import read_trace

TINY = """name,submitted,workers,duration,speedup,deadline
a,0,1,100,1:1 2:1.8 4:3,500
b,10,2,200,1:1 2:1.8 4:3,250
c,20,4,50,2:1 4:1.9,
d,900,1,30,,
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "tiny.csv").write_text(TINY)
    return folder


def models_of(folder: Path) -> dict[str, Epochs]:
    """One model, whose step takes 0.1 s, and 0.1 s more for each eight samples of a worker."""
    app = folder / "applications" / "bert"
    app.mkdir(parents=True)
    times = [f"{placement},{batch},{0.1 + batch / 80},0.02" for placement in (1, 2, 3, 4, 44) for batch in (4, 8, 16)]
    (app / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *times]))
    far = [f"{nodes},{4 * nodes},{batch},{0.1 + batch / 80},0.02" for nodes in (3, 4) for batch in (4, 8, 16)]
    (app / "scalability.csv").write_text("\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *far]))
    for batch in (8, 128):
        (app / f"validation-{batch}.csv").write_text("progress,grad_sqr,grad_var\n100,1,1\n200,1,1\n")
    return read_models(folder / "applications")


def found(mean: float, in_window: int = 10, run: PlannedRun | None = None, **fields: object) -> Found:
    known = {
        "jobs": 12, "finished": 12, "mean": mean, "median": mean, "p95": 2 * mean, "p99": 3 * mean, "makespan": 9e3,
        "utilization": 0.5, "training": 0.4, "queueing": 1.0, "waiting": 1.0, "changes": 1.5, "slowdown": 1.0,
        "worst_slowdown": 2.0, "unfair": 0.25, "deadlines": 0, "deadlines_met": 0, "decisions": 7, **fields,
    }  # fmt: skip
    return Found(run or PlannedRun("dp", (1, 1)), False, Summary(**known), in_window)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- the command


def test_one_command_writes_the_page_and_goes_on_where_it_was(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    command = ["--traces", str(tiny), "--out", str(out), "--keep", str(keep), "--nodes", "2x2"]
    assert policies.main(command) == 0
    said = capsys.readouterr().err
    assert "1 of 11: tiny fifo" in said and "no ablations: they need workload-6.csv" in said and "no loads" in said
    page, picture = out / "policies.md", out / "pictures" / "policies-tiny.svg"
    text, drawing = page.read_text(), picture.read_bytes()
    assert "4 jobs on 2 nodes of 2 devices, 30 s for a change." in text
    assert "| goodput | true speeds | " in text and "| fifo | - | " in text and "](pictures/policies-tiny.svg)" in text
    rows = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ") for row in text.splitlines()}
    assert int(rows["dp"][2]) < int(rows["fifo"][2]) == 180  # its jobs grow; b waits for a, and c for b
    assert rows["fifo"][-1] == "2"  # deadlines met

    page.write_text(text.replace("# Policies compared\n", "# Policies compared\n\nWords of ours.\n"))
    monkeypatch.setattr(policies, "play", None)  # nothing is left to be played
    assert policies.main(command) == 0
    assert page.read_text() == text.replace("# Policies compared\n", "# Policies compared\n\nWords of ours.\n")
    assert picture.read_bytes() == drawing


def test_a_run_of_another_trace_is_played_anew(tiny: Path, tmp_path: Path) -> None:
    run = PlannedRun("fifo", (1, 4), trace="tiny.csv")
    kept = Kept(tmp_path / "keep", tiny)
    assert kept.find(run) is None
    kept.keep(play(run, tiny))
    assert kept.find(run) == play(run, tiny)
    assert kept.find(PlannedRun("fifo", (2, 4), trace="tiny.csv")) is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "tiny.csv").write_text(TINY.replace("900", "901"))
    assert Kept(tmp_path / "keep", other).find(run) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "has no trace"),
        ("a,b\n1,2\n", "has no trace"),
        ("submitted,workers\n1,2\n", "column duration is missing"),
        (TINY + "e,x,1,1,,\n", "row 6"),
    ],
)
def test_a_folder_that_is_of_no_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    if content is not None:
        (folder / "jobs.csv").write_text(content)
    assert policies.main(["--traces", str(folder), "--out", str(tmp_path), "--keep", str(tmp_path / "keep")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert said in told[-1] and "Traceback" not in "".join(told)


def test_the_environment_may_name_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--out", str(tmp_path), "--keep", str(tmp_path / "keep")]
    monkeypatch.delenv("EDL_TRACES", raising=False)
    with pytest.raises(SystemExit):
        policies.main(command)
    assert "required: --traces" in capsys.readouterr().err
    monkeypatch.setenv("EDL_TRACES", str(tmp_path))
    assert policies.main(command) == 2
    assert f"--traces {tmp_path}: has no trace" in capsys.readouterr().err


def test_tables_are_no_traces() -> None:
    found = ["elasticflow/jobs.csv", "plain.csv", "pollux/workloads/jobs.csv", "tiresias/jobs.csv"]
    assert traces_in(TRACES) == found
    with pytest.raises(ConfigError, match="has no trace"):
        traces_in(APPLICATIONS)


# ------------------------------------------------------------------------------------------------- jobs that are drawn


def test_who_asks_for_another_batch_comes_at_the_same_time_for_as_much(tmp_path: Path) -> None:
    models = models_of(tmp_path)
    traces = {asked: drawn(Arrivals(0.5, "validated", asked), models) for asked in ("smallest", "drawn", "largest")}
    stories = {
        asked: [(job.name, job.submitted, job.course.total) for job in trace.jobs] for asked, trace in traces.items()
    }
    assert stories["smallest"] == stories["drawn"] == stories["largest"]
    assert {job.batch for job in traces["smallest"].jobs} == {8}
    assert {job.batch for job in traces["largest"].jobs} == {128}
    assert len({job.batch for job in traces["drawn"].jobs}) > 10
    assert all(8 <= job.batch <= 128 for job in traces["drawn"].jobs)
    assert stories["drawn"] != [
        (job.name, job.submitted, job.course.total)
        for job in drawn(Arrivals(0.5, "validated", "drawn", 1), models).jobs
    ]


def test_a_load_of_one_is_what_all_devices_can_do(tmp_path: Path) -> None:
    models = models_of(tmp_path)
    found = []
    for seed in range(20):
        trace = drawn(Arrivals(1.0, "validated", "smallest", seed), models)
        assert all(0 < job.submitted < WINDOW_S for job in trace.jobs)
        alone = [job.course.steps(job.course.total, 8) * job.course.step((1,), 8).seconds for job in trace.jobs]
        assert min(alone) == pytest.approx(LENGTHS_S[0]) and max(alone) == pytest.approx(LENGTHS_S[-1])
        found.append(sum(alone) / (NODES[0] * NODES[1] * WINDOW_S))
    assert sum(found) / len(found) == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("ranges", ["validated", "wide"])
def test_a_sample_counts_the_same_at_each_batch(tmp_path: Path, ranges) -> None:
    course = of_samples(models_of(tmp_path)["bert"], 1000.0, ranges)
    assert course.span is not None
    assert (course.span.own, course.span.smallest) == ((8, 8) if ranges == "validated" else (4, 4))
    samples = {batch: batch * course.steps(course.total, batch) for batch in (course.span.smallest, 16, 100, 128)}
    assert samples == {batch: pytest.approx(samples[16]) for batch in samples}


def test_elastic_batches_are_done_sooner_where_little_comes(tmp_path: Path) -> None:
    models_of(tmp_path)
    means = {kind: play(run, tmp_path).summary.mean or 0.0 for kind, run in loaded("validated", 0.03, 0).items()}
    assert set(means) == {"elastic", "smallest", "drawn", "largest"}
    assert 0 < means["elastic"] <= means["drawn"] < means["smallest"]


def test_services_of_a_trace_are_what_its_jobs_would_have(tiny: Path) -> None:
    assert services(read_trace(tiny / "tiny.csv")) == "100,400,200,30"


# --------------------------------------------------------------------------------------------------- page and tables


def test_words_around_a_block_stay() -> None:
    text = replaced("# Title\n\nBefore.\n", "one", "| 1 |")
    assert text == "# Title\n\nBefore.\n\n## one\n\n<!-- measured: one -->\n\n| 1 |\n\n<!-- end: one -->\n"
    text = replaced(text + "\nAfter.\n", "two", "| 2 |")
    again = replaced(text, "one", r"| \1 |")
    assert again == text.replace("| 1 |", r"| \1 |") and "After." in again


def test_ratios_are_how_many_times_better_elastic_batches_are() -> None:
    seeds = [{"elastic": found(100, 20), "drawn": found(150, 10)}, {"elastic": found(300, 40), "drawn": found(650, 20)}]
    assert ratios(seeds, "drawn") == (2.0, 2.0)


def test_what_reaches_the_papers_figures_is_bold() -> None:
    row = {kind: found(mean, done) for kind, mean, done in
           (("elastic", 100, 30), ("smallest", 1000, 15), ("drawn", 999, 16), ("largest", 90, 31))}  # fmt: skip
    last = of_loads([(1.5, [row])], Path("x.svg")).splitlines()[2]
    assert last == "| 1.5 | 12 | 30 | 100 | **2.00** | **10.00** | 1.88 | 9.99 | 0.97 | 0.90 |"


def test_each_ablation_has_its_cell() -> None:
    planned = ablated("workload-6.csv")
    assert len(set(planned.values())) == len(COSTS) * len(FIXED) * len(DOUBTS)
    table = {key: found(100 + at, run=run) for at, (key, run) in enumerate(planned.items())}
    rows = of_ablations(table, Path("x.svg")).splitlines()[4:9]
    assert [row.split(" | ")[0] for row in rows] == ["| 0.2 s", "| measured", "| 3 s", "| 30 s", "| 120 s"]
    assert rows[0].split(" | ")[1] == "100 / 300 (1.5)" and rows[4].endswith("| 129 / 387 (1.5) |")


def test_others_figures_stand_below_and_jobs_that_never_end_are_said() -> None:
    runs = on_trace("workload-6.csv", (1, 1))
    assert [label for label, _ in runs] == [
        "fifo", "backfill", "tiresias", "tiresias, gittins", "elastic-tiresias", "gavel", "dp", "dp, batch fixed",
        "goodput", "elasticflow", "srtf", "optimus",
    ]  # fmt: skip
    rows = [(label, found(100, run=run, finished=11)) for label, run in runs]
    lines = of_trace(rows, SETTINGS["workload-6"], Path("x.svg")).splitlines()
    assert lines[0] == "12 jobs on 16 nodes of 4 devices, rounds of 60 s, 30 s for a change."
    assert "| 100 (11 of 12 jobs) |" in lines[4]
    assert "| *Pollux* |  | 2,472 | 985 | 7,021 | 36,893 | 58,376 |  |  |  |" in lines
    assert knows(rows[-1][1]) == "what is left, true speeds" and knows(rows[3][1]) == "how long jobs of the trace are"
