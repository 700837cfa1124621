"""Jobs that are saved while they train, and go on from that: `edl run --checkpoint`."""

from __future__ import annotations

import random
import time

import pytest
from saved_job import Life, copied, durable, manifest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
EVERY = ("--checkpoint-every", "15steps")


@pytest.mark.parametrize("ring", ["horovod", "torch"])
def test_torch_goes_on_bit_for_bit(edl, tmp_path, ring):
    script = ("torch_saved.py", "--epochs", "4")
    environ = {"EDL_RING": ring}
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0", environ=environ)
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=EVERY, audit=True, environ=environ)
    first.wait_event("checkpoint_durable")
    time.sleep(random.random())
    first.kill()
    saved = manifest(durable(tmp_path / "ck")[0])
    before = first.trained(saved["step"])
    for size in (2, 1, 3) if ring == "horovod" else (2,):
        folder = copied(tmp_path / "ck", tmp_path / f"ck{size}")
        then = Life(
            edl,
            tmp_path / str(size),
            *script,
            "--step-time",
            "0",
            checkpoint=folder,
            workers=size,
            audit=True,
            environ=environ,
        )
        err = then.finish()
        assert f"goes on from step {saved['step']}" in err
        assert set((before + then.trained()).values()) == {1}
        assert len(before + then.trained()) == 4 * 203
        if size == 2:
            assert then.results() == whole.results()


@pytest.mark.parametrize("ring", ["horovod", "torch"])
def test_own(edl, tmp_path, ring):
    script = ("torch_saved.py", "--own", "120")
    environ = {"EDL_RING": ring}
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0", environ=environ)
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=EVERY, environ=environ)
    first.wait_event("checkpoint_durable")
    time.sleep(random.random())
    first.kill()
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", environ=environ)
    then.finish()
    assert then.results() == whole.results()
    assert then.steps() == {1 + 120 - manifest(durable(tmp_path / "ck")[-1])["step"]}


@pytest.mark.parametrize("way", ["function", "dataset", "fit", "graph"])
def test_tensorflow_goes_on_bit_for_bit(edl, tmp_path, way):
    script = ("tf_saved.py", "--way", way)
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=EVERY, audit=True)
    first.wait_event("checkpoint_durable")
    time.sleep(random.random())
    first.kill()
    saved = manifest(durable(tmp_path / "ck")[0])
    before = first.trained(saved["step"])
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    assert f"goes on from step {saved['step']}" in then.finish()
    assert set((before + then.trained()).values()) == {1}
    assert then.results() == whole.results()
