"""Jobs on streams: each token of each document in exactly one committed step, whatever becomes of the workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter

import pytest
from saved_job import Life, durable, manifest
from stream_account import SEPARATED, steps_of, tokens_of, trained, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@contextlib.contextmanager
def slow_steps(job):
    """Let a job make few steps, so that its data lasts, while it is waited for a size."""
    job.out.mkdir(exist_ok=True)
    (job.out / "slow").touch()
    yield
    (job.out / "slow").unlink()


# soak: the other numbers of processes that read
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "loaders"),
    [
        ("hf", 0),
        ("webdataset", 4),
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in (("jsonl", 0), ("jsonl", 4), ("webdataset", 0), ("hf", 4))
        ),
    ],
)
def test_each_token_once_from_two_workers_to_four_and_less_and_in_another_life(edl, tmp_path, kind, loaders):
    """2 → 4 → kill -9 → 3 → a checkpoint → all dead → 1 worker."""
    if kind == "hf":
        pytest.importorskip("datasets")
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write_corpus(corpus, shards=64, documents=20, longest=500, kind=kind)
    script = ("torch_stream.py", "--source", f"{corpus}/*", "--kind", kind, "--loaders", str(loaders))
    framework = "transformers" if kind == "hf" else ""  # it has imported datasets
    pace = ("--step-time", "0.1", "--slow-time", "0.5")
    first = Life(edl, tmp_path, *script, *pace, checkpoint=tmp_path / "ck", framework=framework)
    with slow_steps(first):
        first.wait_size(2)
        first.wait_step(2)
        first.scale(4)
        first.wait_size(4)
    first.wait_step(first.step() + 3)
    os.kill(first.pid(3), signal.SIGKILL)
    first.wait_size(3)
    first.wait_step(first.step() + 3)
    shards = first.status()["data"]["stream"]
    assert sum(shards.values()) == 64
    assert edl("checkpoint", "ck", "--wait").returncode == 0
    first.wait_step(first.step() + 2)
    first.kill()
    saved = manifest(durable(tmp_path / "ck")[0])
    then = Life(edl, tmp_path, *script, "--step-time", "0", checkpoint=tmp_path / "ck", workers=1, framework=framework)
    err = then.finish()
    assert f"goes on from step {saved['step']}" in err
    found, there = trained(out), tokens_of(corpus)
    assert set(found.values()) == {1}
    assert found.keys() == there


SIZES = (3, 1, 4, 2, 3, 2, 4, 1, 3, 2)


# soak: ten changes instead of four, a thousand steps between two of them, and every other one with a death
@pytest.mark.parametrize(
    ("changes", "between", "window", "deadly"),
    [(4, 100, 300, False), pytest.param(10, 1000, 1000, True, marks=pytest.mark.soak)],
)
def test_two_corpora_are_mixed_as_asked_through_changes_of_size(edl, tmp_path, changes, between, window, deadly):
    """In each `window` steps a tenth of what is trained is of the smaller one, and each token of both comes once."""
    corpus, out, length, shards = tmp_path / "corpus", tmp_path / "out", 16, 16
    each = 7 * changes * between // (10 * shards) * length
    corpus.mkdir()
    write_corpus(corpus / "web", shards, 0, 60, seed=1, exactly=9 * each)
    write_corpus(corpus / "code", shards, 0, 60, seed=2, exactly=each)
    script = ("torch_stream.py", "--source", f"{corpus}", "--kind", "mixed", "--length", str(length), "--batch", "2")
    job = Life(edl, tmp_path, *script, "--step-time", "0.002", "--slow-time", "0.1")
    with slow_steps(job):
        job.wait_size(2)
    for number, size in enumerate(SIZES[:changes]):
        step, before = job.step(), job.status()["size"]
        if deadly and number % 2 and size < before:
            os.kill(job.pid(before - 1), signal.SIGKILL)
        with slow_steps(job) if size > before else contextlib.nullcontext():
            job.scale(size)
            job.wait_size(size)
        edl.wait(lambda until=step + between: job.step() >= until, f"{between} steps", timeout_s=max(60, between / 5))
    job.finish(timeout_s=max(60, between / 5))
    code = tokens_of(corpus / "code")
    assert trained(out) == Counter(code | tokens_of(corpus / "web"))
    of_code = [[item[0] in code for item in items] for items in steps_of(out)]
    assert len(of_code) > window + between
    for first in range(0, len(of_code) - window, 10):
        found = [one for items in of_code[first : first + window] for one in items]
        # In each shard the proportion is right up to one item, at both ends of these steps.
        assert abs(sum(found) - len(found) / 10) <= 2 * shards


# soak: Horovod's ring keeps the bits, at three workers of one: test_same_bits.py
@pytest.mark.slow
@pytest.mark.parametrize(("ring", "most"), [pytest.param("horovod", 4, marks=pytest.mark.soak), ("torch", 2)])
def test_with_virtual_workers_the_order_of_tokens_is_that_of_one_worker(edl, tmp_path, ring, most):
    """At two sizes, and through a death, with processes that read and without: each step has the same items in the same
    order, and the weights have the same bits.
    """
    corpus, found = tmp_path / "corpus", list[tuple[list[list[list[int]]], set[str]]]()
    write_corpus(corpus, shards=10, documents=30, longest=120)
    environ = {"EDL_VIRTUAL_WORKERS": "4", "OMP_NUM_THREADS": "1"}
    for size in (1, most):
        folder = tmp_path / str(size)
        folder.mkdir()
        script = (
            "torch_stream.py",
            "--source",
            f"{corpus}/*",
            "--length",
            "32",
            "--batch",
            "2",
            "--epochs",
            "2",
        )
        pace = ("--loaders", str(size // most), "--step-time", "0")
        job = Life(edl, folder, *script, *pace, workers=size, environ=environ, flags=("--ring", ring))
        if size > 1:
            with slow_steps(job):
                job.wait_size(most)
                job.wait_step(5)
                os.kill(job.pid(most - 1), signal.SIGKILL)
                job.wait_size(most - 1)
                job.wait_step(job.step() + 5)
                job.scale(max(1, most - 2))
                job.wait_size(max(1, most - 2))
                job.scale(most)
                job.wait_size(most)
                assert job.status()["bits"] == "held"
        job.finish()
        weights = {path.read_text() for path in (folder / "out").glob("weights-*.json")}
        assert len(weights) == 1
        found.append((steps_of(folder / "out"), weights))
    assert found[0] == found[1]
    assert trained(tmp_path / str(most) / "out") == Counter(dict.fromkeys(tokens_of(corpus), 2))


# soak: the Trainer's loop and Accelerate's read the same loader as Lightning's, and `fit` the same dataset as a loop
# over it
@pytest.mark.slow
@pytest.mark.parametrize(
    "library",
    ["lightning", "fit", *(pytest.param(one, marks=pytest.mark.soak) for one in ("trainer", "accelerate", "tf.data"))],
)
def test_a_stream_feeds_the_loop_of_a_library_through_a_change_of_size(edl, tmp_path, library):
    """Two workers become three; each item is trained once, and all that were trained had reached a model."""
    items, steps = 320, 32
    script = ("stream_libraries.py", "--library", library, "--items", str(items), "--steps", str(steps))
    job = Life(edl, tmp_path, *script, audit=True)
    job.wait_size(2)
    job.wait_step(3)
    job.scale(3)
    job.wait_size(3)
    (tmp_path / "out" / "changed").touch()
    job.finish(timeout_s=120)
    found = edl.json("data", "verify", str(job.audit))
    lines = [line for path in (tmp_path / "out").glob("seen-*.jsonl") for line in path.read_text().splitlines()]
    seen = {number for line in lines for number in json.loads(line)}
    assert not any(epoch["repeated"] for epoch in found["epochs"])
    if library == "trainer":  # it counts steps
        assert steps * 8 <= len(seen) <= items
    else:
        assert found["clean"] and seen == set(range(items))


# soak: the other ring, and fewer workers
@pytest.mark.slow
@pytest.mark.parametrize(("ring", "then"), [("torch", 3), pytest.param("horovod", 1, marks=pytest.mark.soak)])
def test_a_mixture_without_end_goes_on_at_another_size_where_it_was_saved(edl, tmp_path, ring, then):
    """2 workers are saved and killed; others go on and leave the loop: of each shard all that was trained lies in a row
    from its first token on, and in each 200 items so many are of the smaller corpus as was asked.
    """
    shards, window = 3, 200
    script = ("torch_stream.py", "--source", str(shards), "--kind", "endless", "--length", "32", "--until", "120")
    how = {"checkpoint": tmp_path / "ck", "flags": ("--ring", ring)}
    first = Life(edl, tmp_path, *script, **how)
    first.wait_size(2)
    first.wait_step(10)
    assert edl("checkpoint", "ck", "--wait").returncode == 0
    first.wait_step(first.step() + 3)
    first.kill()
    saved = manifest(durable(tmp_path / "ck")[0])
    second = Life(edl, tmp_path, *script, "--step-time", "0.01", workers=then, **how)
    err = second.finish()
    assert f"goes on from step {saved['step']}" in err
    items = [item for step in steps_of(tmp_path / "out") for item in step]
    for shard in range(2 * shards):
        tokens = sorted(token for item in items for token in item if token // SEPARATED == shard)
        assert tokens == [*range(shard * SEPARATED, shard * SEPARATED + len(tokens))]
    of_code = [item[0] // SEPARATED >= shards for item in items]
    assert len(of_code) > 2 * window
    for begin in range(len(of_code) - window):
        assert abs(sum(of_code[begin : begin + window]) - window / 10) <= 2 * shards


# soak: the other moments, the other ring, and with more shards than one
@pytest.mark.parametrize(
    ("moment", "shards", "ring"),
    [
        ("applied", 1, "torch"),
        *(
            pytest.param(moment, shards, ring, marks=pytest.mark.soak)
            for moment in ("begun", "computed", "applied", "committed")
            for shards, ring in ((1, "horovod"), (4, "torch"))
        ),
    ],
)
def test_a_worker_with_samples_is_killed_in_the_first_step(edl, tmp_path, moment, shards, ring):
    """Of two workers; of one shard it alone has read."""
    corpus = tmp_path / "corpus"
    write_corpus(corpus, shards=shards, documents=60, longest=50)
    script = ("torch_stream.py", "--source", f"{corpus}/*", "--length", "32", "--die", f"{moment} 1")
    Life(edl, tmp_path, *script, "--step-time", "0.01", flags=("--ring", ring)).finish()
    assert (tmp_path / "out" / "died").exists()
    assert trained(tmp_path / "out") == Counter(tokens_of(corpus))
