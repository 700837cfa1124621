"""Jobs on streams: each token of each document in exactly one committed step, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal

import pytest
from saved_job import Life, durable, manifest
from stream_account import tokens_of, trained, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


# soak: what comes from a package that is not everywhere, and the other numbers of processes that read
@pytest.mark.parametrize(
    ("kind", "loaders"),
    [
        ("jsonl", 0),
        ("webdataset", 4),
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in (("jsonl", 4), ("webdataset", 0), ("hf", 0), ("hf", 4))
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
    first = Life(edl, tmp_path, *script, "--step-time", "0.5", checkpoint=tmp_path / "ck")
    first.wait_size(2)
    first.wait_step(4)
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
    then = Life(edl, tmp_path, *script, "--step-time", "0", checkpoint=tmp_path / "ck", workers=1)
    err = then.finish()
    assert f"goes on from step {saved['step']}" in err
    found, there = trained(out), tokens_of(corpus)
    assert set(found.values()) == {1}
    assert found.keys() == there
