"""Traces are read as they are, and whatever is wrong with one is a line that names the row and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import JOBS_60, JOBS_195, TRACES, WORKLOAD, needs_published
from small_traces import APPLICATIONS, ELASTICFLOW, PLAIN, POLLUX, THROUGHPUTS, TIRESIAS

from edl.errors import ConfigError
from edl.simulator.course import Epochs, Iterations
from edl.simulator.trace_files import read_trace

HEAD = "submitted,workers,duration"
HEAD_POLLUX = "name,time,application,num_replicas,batch_size"
HEAD_ELASTICFLOW = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu"


def written(folder: Path, *lines: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_plain_trace(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "name,submitted,workers,duration,min_workers,max_workers,speedup,batch,deadline,user,priority",
        "late,50,4,100,,,,,,,",
        "early,0,2,60,1,4,1:1 2:1.8 4:3,128,90,ada,3",
    )
    early, late = read_trace(path).jobs
    assert (early.name, early.request, early.smallest, early.largest, early.batch) == ("early", 2, 1, 4, 128)
    assert (early.deadline, early.user, early.priority, early.row) == (90.0, "ada", 3, 3)
    assert early.course.step((2,), 0).seconds == pytest.approx(1)
    assert early.course.step((2, 2), 0).seconds == pytest.approx(1.8 / 3)
    assert early.course.step((3,), 0).seconds == pytest.approx(1.8 / 2.4)
    assert (late.name, late.smallest, late.largest, late.deadline) == ("late", 4, 4, None)


def test_the_name_of_a_job_may_be_left_out(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD, "0,1,1", "0,1,1"))
    assert [job.name for job in trace.jobs] == ["job-1", "job-2"]


def test_each_format_by_the_columns_of_its_file() -> None:
    plain, tiresias, elasticflow, pollux = (read_trace(path) for path in (PLAIN, TIRESIAS, ELASTICFLOW, POLLUX))
    assert [len(trace.jobs) for trace in (plain, tiresias, elasticflow, pollux)] == [4, 20, 24, 20]
    assert (plain.jobs[0].name, plain.jobs[0].deadline, plain.jobs[1].user) == ("a", 900.0, "ben")

    assert all(job.smallest == job.request == job.largest for job in tiresias.jobs)  # what they ask for, and no others
    assert (tiresias.jobs[1].request, tiresias.jobs[1].course.total) == (4, 63.0)

    speech, words = elasticflow.jobs[:2]
    assert (speech.request, speech.batch, speech.deadline, speech.largest) == (1, 32, 1120.0, 32)
    assert (words.request, words.batch, words.deadline, words.largest) == (2, 64, 1265.0, 64)
    assert isinstance(words.course, Iterations)
    assert (words.course.total, words.course.rate(1), words.course.rate(3)) == (
        473,
        3.0,
        pytest.approx(6.395, rel=1e-3),
    )

    vision, _, ncf = pollux.jobs[:3]
    assert pollux.node_size == 4
    assert (vision.request, vision.batch, vision.largest) == (6, 2048, 4096 // 32)
    assert (ncf.request, ncf.largest) == (1, 1)
    assert isinstance(vision.course, Epochs)


def test_tables_elsewhere_are_named(tmp_path: Path) -> None:
    copy = written(tmp_path, *POLLUX.read_text().splitlines())
    with pytest.raises(ConfigError, match=r"tables of .* are not beside it: name their folder by --applications"):
        read_trace(copy)
    assert len(read_trace(copy, applications=APPLICATIONS).jobs) == 20


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((HEAD,), "has no jobs: it needs at least one row below its head"),
        (("submitted,workers", "0,1"), "row 1: column duration is missing; it needs submitted, workers, duration"),
        (("a,b", "0,1"), "row 1: is no trace; one of your own needs the columns submitted, workers, duration"),
        ((HEAD, "0,1,5", "-1,1,5"), "row 3: submitted -1: must be a number of at least 0"),
        ((HEAD, "0,1,0"), "row 2: duration 0: must be a number above 0"),
        ((HEAD, "0,1,nan"), "row 2: duration nan: must be a number above 0"),
        ((HEAD, "0,0,1"), "row 2: workers 0: must be a number of at least 1"),
        ((HEAD, "0,1.5,1"), "row 2: workers 1.5: must be a whole number"),
        ((HEAD, "0,,1"), "row 2: workers is empty: fill it in"),
        ((HEAD, "0,1"), "row 2: has fewer cells than the head: mend it"),
        ((HEAD, "0,1,1,1"), "row 2: has more cells than the head: mend it"),
        (("name," + HEAD, "a,0,1,1", "a,0,1,1"), "row 3: a is the name of row 2 too: give it another"),
        (
            (HEAD + ",max_workers", "0,1,1,4"),
            "row 2: it may have 1 to 4 workers, and speedup is known for 1 to 1: add",
        ),
        ((HEAD + ",min_workers", "0,1,1,2"), "row 2: workers 1: must lie between min_workers 2 and max_workers 1"),
        ((HEAD + ",speedup", "0,1,1,fast"), "row 2: speedup fast: must be pairs of workers and speed, such as `1:1"),
        ((HEAD + ",speedup", "0,2,1,1:1 4:3"), "row 2: speedup 1:1 4:3: says nothing of the 2 workers"),
        ((HEAD + ",deadline", "9,1,1,5"), "row 2: deadline 5: must be a number of at least 9"),
        ((HEAD_POLLUX, "a,0,gpt9,1,64"), "row 2: application gpt9 has no folder in "),
        ((HEAD_POLLUX, "a,0,../ncf,1,64"), "row 2: application ../ncf has no folder in "),
        ((HEAD_POLLUX, "a,0,vision,1,64"), "row 2: batch_size 64: vision was measured from 128 to 4096"),
        ((HEAD_POLLUX, "a,0,vision,9,256"), "row 2: num_replicas 9: a batch of 256 is enough for 8"),
        ((HEAD_ELASTICFLOW, "a,0,9,gpt9,9,64,1"), "row 2: model_name gpt9 has no table in "),
        ((HEAD_ELASTICFLOW, "a,0,9,words,9,65,1"), "row 2: batch_size 65: "),
        ((HEAD_ELASTICFLOW, "a,0,9,speech,9,32,64"), "row 2: num_gpu 64: "),
        ((HEAD_ELASTICFLOW, "a,0,0,words,9,64,1"), "row 2: num_iteration 0: must be a number above 0"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_row_and_the_remedy(
    tmp_path: Path, lines: tuple[str, ...], said: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(ConfigError) as raised:
        read_trace(path, APPLICATIONS, THROUGHPUTS)
    assert str(raised.value).startswith(f"{path} {said}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("placements.csv", "placement,local_bsz,step_time\n1,8,0.1\n", "row 1: column sync_time is missing"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n40,8,0.1,0\n", "row 2: placement 40: must be the"),
        (
            "placements.csv",
            "placement,local_bsz,step_time,sync_time\n4,8,0.1,0.2\n",
            "row 2: sync_time 0.2 is not less",
        ),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n", "has no rows"),
        ("validation-8.csv", "progress,grad_sqr,grad_var\n5,1,1\n4,1,1\n", "progress must grow from row to row"),
        ("validation-8.csv", "progress,grad_sqr,grad_var\n5,0,0\n", "row 2: grad_sqr and grad_var are both 0"),
        ("validation-x.csv", "progress,grad_sqr,grad_var\n5,1,1\n", "must be named validation-BATCH.csv"),
    ],
)
def test_tables_that_are_wrong_are_named_too(tmp_path: Path, file: str, content: str, said: str) -> None:
    folder = tmp_path / "applications" / "toy"
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,8,0.1,0\n1,16,0.2,0\n")
    (folder / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
    (folder / "validation-8.csv").write_text("progress,grad_sqr,grad_var\n5,1,1\n")
    path = written(tmp_path, HEAD_POLLUX, "a,0,toy,1,8")
    assert read_trace(path).jobs[0].course.total == 5
    (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")) as raised:
        read_trace(path)
    assert str(folder / file) in str(raised.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b""])
def test_a_file_that_is_no_text_or_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be read as a CSV file|is no trace"):
        read_trace(path)


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder: name a trace in it"):
        read_trace(tmp_path)
    with pytest.raises(ConfigError, match="there is no trace"):
        read_trace(tmp_path / "none.csv")


# ----------------------------------------------------------------------------------------------- as they were published


@needs_published
def test_the_195_jobs() -> None:
    trace = read_trace(JOBS_195)
    assert len(trace.jobs) == 195
    first = trace.jobs[0]
    assert (first.request, first.batch, first.deadline, first.largest) == (1, 32, 3716178.0, 32)
    assert isinstance(first.course, Iterations)
    assert first.course.rate(1) == pytest.approx(3.0231577845960493)
    assert first.course.total == 3249


@needs_published
def test_the_60_jobs_have_the_workers_that_they_ask_for() -> None:
    jobs = read_trace(JOBS_60).jobs
    assert len(jobs) == 60
    assert all(job.smallest == job.request == job.largest for job in jobs)
    assert (jobs[1].request, jobs[1].course.total) == (8, 147.0)


@needs_published
def test_a_workload_of_pollux() -> None:
    trace = read_trace(WORKLOAD)
    assert (len(trace.jobs), trace.node_size) == (160, 4)
    cifar = next(job for job in trace.jobs if job.name == "cifar10-0")
    assert (cifar.request, cifar.batch, cifar.largest) == (6, 2048, 4096 // 32)
    ncf = next(job for job in trace.jobs if job.name == "ncf-6")
    assert (ncf.request, ncf.largest) == (1, 1)
    assert isinstance(cifar.course, Epochs)


@needs_published
def test_tables_of_a_workload_of_pollux_elsewhere(tmp_path: Path) -> None:
    copy = written(tmp_path, *WORKLOAD.read_text().splitlines())
    assert len(read_trace(copy, applications=TRACES / "pollux" / "applications").jobs) == 160
