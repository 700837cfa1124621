"""Jobs that are saved while they train, and go on from that: `edl run --checkpoint`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Edl
from saved_job import Life, copied, durable, leaves_nothing_shared, manifest

from edl.core.audit.sample_account import account
from edl.trainer.data.audit_files import read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SLOWLY = ("--step-time", "0.1")  # so that it does not come to its end before it is killed
EVERY = ("--checkpoint-every", "15steps")


@pytest.fixture
def leaving_nothing(edl):
    """Also of a life that was killed: the next one sweeps."""
    with leaves_nothing_shared(edl):
        yield


@pytest.mark.usefixtures("leaving_nothing")
@pytest.mark.parametrize("ring", ["horovod", pytest.param("torch", marks=pytest.mark.soak)])
def test_torch_goes_on_bit_for_bit(edl, tmp_path, ring):
    """At the same size, whatever the number of processes that load; at others, each sample is trained once over both
    lives.
    """
    script = ("torch_saved.py", "--epochs", "4")
    environ = {"EDL_RING": ring}
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0", environ=environ)
    whole.finish()
    first = Life(
        edl, tmp_path / "first", *script, *SLOWLY, checkpoint=tmp_path / "ck", flags=EVERY, audit=True, environ=environ
    )
    first.wait_event("checkpoint_durable")
    time.sleep(0.4 * random.random())
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
            "--loaders",
            "2",
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


@pytest.mark.slow
@pytest.mark.parametrize("ring", ["horovod", pytest.param("torch", marks=pytest.mark.soak)])
def test_a_script_with_data_of_its_own_goes_on_bit_for_bit(edl, tmp_path, ring):
    """Its first mini-batch is computed on what it begins with, before anything of edl is asked: that one is void."""
    script = ("torch_saved.py", "--own", "120")
    environ = {"EDL_RING": ring}
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0", environ=environ)
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=EVERY, environ=environ)
    first.wait_event("checkpoint_durable")
    time.sleep(0.4 * random.random())
    first.kill()
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", environ=environ)
    then.finish()
    assert then.results() == whole.results()
    assert then.steps() == {1 + 120 - manifest(durable(tmp_path / "ck")[-1])["step"]}


@pytest.mark.soak  # Horovod's state of a model of Keras, below, is saved and goes on in the same way
@pytest.mark.parametrize("way", ["dataset", "fit", "function", "graph"])
def test_tensorflow_goes_on_bit_for_bit(edl, tmp_path, way):
    script = ("tf_saved.py", "--way", way)
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, *SLOWLY, checkpoint=tmp_path / "ck", flags=EVERY, audit=True)
    first.wait_event("checkpoint_durable")
    time.sleep(0.4 * random.random())
    first.kill()
    saved = manifest(durable(tmp_path / "ck")[0])
    before = first.trained(saved["step"])
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    assert f"goes on from step {saved['step']}" in then.finish()
    assert set((before + then.trained()).values()) == {1}
    assert then.results() == whole.results()


def end_saved(life: Life, by: str) -> None:
    """Once a checkpoint is durable."""
    life.wait_event("checkpoint_durable")
    if by == "kill":
        time.sleep(0.4 * random.random())
        life.kill()
    else:
        life.launcher.terminate()
        life.finish(75)


@pytest.mark.slow
@pytest.mark.parametrize("ends_by", ["kill", pytest.param("preempt", marks=pytest.mark.soak)])
@pytest.mark.parametrize("per_commit", ["1", pytest.param("5", marks=pytest.mark.soak)])
def test_a_script_of_horovods_elastic_names_goes_on_bit_for_bit(edl, tmp_path, ends_by, per_commit):
    """Its values, sampler, schedule, scaler, and what its loader's process draws; the function begins where it was."""
    script = ("horovod_saved.py", "--per-commit", per_commit)
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, *SLOWLY, checkpoint=tmp_path / "ck", flags=EVERY, audit=True)
    end_saved(first, ends_by)
    saved = manifest(durable(tmp_path / "ck")[0])
    before = first.trained(saved["step"])
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    then.finish()
    assert set((before + then.trained()).values()) == {1}
    assert len(before + then.trained()) == 4 * 203
    assert then.results() == whole.results()
    [[epoch, batch, _, size], *_] = json.loads(next(then.out.glob("calls-*")).read_text())
    assert (size, 13 * epoch + batch) == (2, saved["step"])


@pytest.mark.slow
@pytest.mark.parametrize("ends_by", ["preempt", pytest.param("kill", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "state",
    ["KerasState", *(pytest.param(one, marks=pytest.mark.soak) for one in ("TensorFlowState", "TensorFlowKerasState"))],
)
def test_each_of_horovods_states_of_tensorflow_goes_on_bit_for_bit(edl, tmp_path, state, ends_by):
    """With its plain values; the function begins where it was."""
    script = ("tf_horovod_saved.py", "--state", state)
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    first = Life(edl, tmp_path / "first", *script, *SLOWLY, checkpoint=tmp_path / "ck", flags=EVERY, audit=True)
    end_saved(first, ends_by)
    saved = manifest(durable(tmp_path / "ck")[0])
    before = first.trained(saved["step"])
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    assert f"goes on from step {saved['step']}" in then.finish()
    assert set((before + then.trained()).values()) == {1}
    assert len(before + then.trained()) == 8 * 203
    assert then.results() == whole.results()
    [[batch, seen, size], *_] = json.loads(next(then.out.glob("calls-*")).read_text())
    assert (batch, len(seen), size) == (saved["step"], 3, 2)


@pytest.mark.soak  # what scripts ask for: tests/simulation/test_savings.py; a client asks in test_migrate.py
def test_a_script_asks_for_a_checkpoint_and_hears_what_it_goes_on_from(edl, tmp_path):
    """All workers ask at one step, which is one request; a newcomer of the next life hears the same as the others. What
    the loader has told of its place by then is where it goes on.
    """
    rare, places = ("--checkpoint-every", "100000steps"), tmp_path / "places"
    places.mkdir()
    script = ("torch_saved.py", "--epochs", "16", "--places", str(places), "--ask", "20")
    first = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=rare)
    first.wait_event("checkpoint_durable")
    first.wait_step(80)
    first.kill()
    [begun] = first.events("checkpoint_begun")
    assert begun["why"] == "asked" and 20 <= begun["step"] < 80
    assert not list((tmp_path / "first").rglob("origin-*"))
    saved = str(durable(tmp_path / "ck")[0])

    then = Life(edl, tmp_path / "then", *script[:-2], checkpoint=tmp_path / "ck", flags=rare, workers=1)
    then.wait_size(1)
    assert then.status()["base"] == begun["step"]
    then.scale(2)
    then.wait_size(2)
    then.finish()
    told = [json.loads(file.read_text()) for file in then.out.glob("origin-*")]
    assert len(told) == 2
    for path, step, life, epoch, (_, first_epoch) in told:
        assert (path, step, life) == (saved, begun["step"], 2)
        assert epoch <= first_epoch
    assert any(first == [1, epoch] for *_, epoch, first in told)
    kept = json.loads((places / f"{begun['step']}.json").read_text())
    assert kept["steps"] == begun["step"], kept
    refused = [file.read_text() for file in then.out.glob("refused-*")]
    assert len(refused) == 2
    assert all(f"goes on from step {begun['step']}: save" in line and "\n" not in line for line in refused), refused


@pytest.mark.soak
@pytest.mark.parametrize(
    "script",
    [
        ("torch_saved.py", "--epochs", "4"),
        ("torch_saved.py", "--own", "150"),
        *(("tf_saved.py", "--epochs", "4", "--way", way) for way in ("dataset", "fit", "function", "graph")),
    ],
    ids=lambda script: "-".join(script[::2]),
)
def test_preempted_again_and_again_it_ends_bit_for_bit(edl, tmp_path, script):
    """At random moments, at one size. Each sample is trained once over all lives, and no step is lost. Beyond what is
    leased: `test_order_of_samples.py`.
    """
    whole = Life(edl, tmp_path / "whole", *script, "--step-time", "0")
    whole.finish()
    audits = []
    for number in range(int(os.environ.get("EDL_TEST_PREEMPTIONS", "3"))):
        life = Life(edl, tmp_path / str(number), *script, "--step-time", "0.3", checkpoint=tmp_path / "ck", audit=True)
        life.wait_size(2)
        edl.wait(lambda life=life: life.status()["step"] > 1, "a job that trains", timeout_s=90)
        time.sleep(0.4 * random.random())
        life.launcher.send_signal(signal.SIGTERM)
        assert re.search(r"; step \d+ is saved: ", life.finish(75).splitlines()[-1])
        audits.append(life.audit)
    then = Life(edl, tmp_path / "then", *script, "--step-time", "0", checkpoint=tmp_path / "ck", audit=True)
    assert "goes on from step " in then.finish()
    assert then.results() == whole.results()
    if "--own" not in script:
        found = account([one for folder in (*audits, then.audit) for one in read(folder)])
        assert found.clean and all(epoch.over for epoch in found.epochs), found
        assert len(found.lives) == len(audits) + 1 and len(found.epochs) == 4


# ------------------------------------------------------------------------------------------------------------ faults


def leader_of(status):
    return next(worker for worker in status["workers"] if worker["id"] == status["leader"])


@pytest.mark.soak  # who needs it: tests/unit/core/checkpoint/test_checkpoints.py
@pytest.mark.usefixtures("leaving_nothing")
def test_what_a_job_went_on_from_may_be_gone_when_others_come(edl, tmp_path):
    """Newer checkpoints take its place, and newcomers have no need of it; nor has a daemon in the place of another."""
    script = ("torch_saved.py", "--epochs", "1000", *SLOWLY)
    first = Life(edl, tmp_path / "first", *script, workers=1, checkpoint=tmp_path / "ck", flags=EVERY)
    first.wait_event("checkpoint_durable")
    first.kill()
    began = durable(tmp_path / "ck")[0]
    often = ("--checkpoint-every", "5steps", "--keep", "1")
    then = Life(edl, tmp_path / "then", *script, workers=1, checkpoint=tmp_path / "ck", flags=often)
    edl.wait(lambda: not began.exists(), "it has made way", timeout_s=60)
    then.scale(2)
    [one, _] = then.wait_size(2)["workers"]
    os.kill(one["daemon_pid"], signal.SIGKILL)

    def goes_on() -> bool:
        found = {worker["id"]: worker for worker in then.status()["workers"]}
        return one["id"] in found and found[one["id"]]["daemon_pid"] != one["daemon_pid"]

    edl.wait(goes_on, "another daemon of the same worker", timeout_s=60)
    then.wait_step(then.step() + 5)
    assert then.events("worker_lost") == []
    then.interrupt()


@pytest.mark.soak  # at each moment of it: tests/simulation/test_savings.py
def test_who_dies_while_a_saving_is_under_way_costs_a_checkpoint_at_most(edl, tmp_path):
    """A trainer, a daemon, the leader's daemon; and the next ring is planned."""
    script = ("torch_saved.py", "--epochs", "1000", "--large", "300000")
    environ = {"EDL_MAX_RESTARTS": "2", "EDL_MAX_NP": "3"}
    job = Life(edl, tmp_path / "first", *script, checkpoint=tmp_path / "ck", flags=EVERY, environ=environ)
    job.wait_size(2)
    for victim in ("trainer", "daemon", "leader's daemon", "none"):
        job.wait_event("checkpoint_begun", len(job.events("checkpoint_begun")))
        status = job.status()
        leader = leader_of(status)
        [other] = [worker for worker in status["workers"] if worker["id"] != leader["id"]]
        if victim == "none":
            job.scale(3)
        else:
            pids = {"trainer": other["pid"], "daemon": other["daemon_pid"], "leader's daemon": leader["daemon_pid"]}
            os.kill(pids[victim], signal.SIGKILL)
        job.wait_durable_after(victim)
        job.wait_size(3 if victim == "none" else 2)
    job.wait_durable_after("all of that")
    assert len(job.events("checkpoint_failed")) <= 4
    job.interrupt()
    newest = manifest(durable(tmp_path / "ck")[0])
    assert newest["size"] == 3


@pytest.fixture
def small_disk(tmp_path):
    """Eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, how: str) -> int:
    """0: done. It is refused while a file there is open for writing."""
    return subprocess.run(["mount", "-o", f"remount,{how}", str(place)], capture_output=True, check=False).returncode


# soak: as a folder has it: test_checkpoint_faults.py; as a job: tests/unit/core/checkpoint/test_checkpoints.py
@pytest.mark.soak
def test_a_disk_that_is_full_or_read_only_and_a_folder_that_is_gone_are_told_and_cost_no_training(
    edl, tmp_path, small_disk
):
    folder = small_disk / "ck"
    script = ("torch_saved.py", "--epochs", "1000", "--large", "50000", "--touch", str(tmp_path / "touch"))
    job = Life(edl, tmp_path / "first", *script, checkpoint=folder, flags=EVERY)
    job.wait_event("checkpoint_durable")

    (small_disk / "other").write_bytes(bytes(0))
    with contextlib.suppress(OSError), (small_disk / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    reason = job.wait_failure()
    assert "No space left on device" in reason
    told, times = job.status()["saving"]["failed"]
    assert times >= 1 and "No space left on device" in told
    line = r"\n  checkpoints fail: the last .* came to nothing, .*: .*No space left on device"
    assert re.search(line, edl("status", "ck").stdout)
    (small_disk / "other").unlink()
    job.wait_durable_after("there is room again")
    edl.wait(lambda: job.status()["saving"]["failed"] is None, "nothing fails by now")
    assert "checkpoints fail" not in edl("status", "ck").stdout

    edl.wait(lambda: not remount(small_disk, "ro"), "no file is being written", timeout_s=60)
    assert "Read-only file system; name a folder that can be written" in job.wait_failure()
    assert "Read-only file system" in edl("status", "ck").stdout
    assert not remount(small_disk, "rw")
    job.wait_durable_after("it can be written again")

    folder.rename(small_disk / "aside")
    folder.write_text("a file")
    reason = job.wait_failure()
    assert reason.endswith("is a symbolic link or no folder")
    folder.unlink()
    job.wait_durable_after("the folder can be made again")

    (tmp_path / "touch").touch()
    reason = job.wait_failure()
    assert "the script changed the model outside of an update while it was copied" in reason
    (tmp_path / "touch").unlink()
    job.wait_durable_after("the script is right again")
    assert not {event["kind"] for event in job.events()} & {"batch_voided", "worker_lost", "diverged"}
    job.interrupt()


# ------------------------------------------------------------------------------------------------------ wrong inputs


@pytest.fixture(scope="module")
def kept(warm, tmp_path_factory):
    """A folder with two checkpoints of a job of torch that is over."""
    place = tmp_path_factory.mktemp("kept")
    edl, script = Edl(place / "home", place, warm), ("torch_saved.py", "--step-time", "0.08")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDL_HOME", str(edl.home))
        life = Life(edl, place / "life", *script, checkpoint=place / "ck", flags=("--checkpoint-every", "5steps"))
        life.wait_event("checkpoint_durable", 1)
        life.kill()
        edl.clean_up()
    assert len(durable(place / "ck")) == 2
    return place / "ck"


def refused(edl, tmp_path, *arguments: str, script=("torch_saved.py",), code=1, **how: Any) -> str:
    """What is said of it in one line."""
    life = Life(edl, tmp_path / "life", *script, "--step-time", "0", *arguments, **how)
    err = life.finish(code)
    assert not life.results()
    return err


@pytest.mark.slow
def test_what_cannot_be_gone_on_from_is_refused_in_one_line(edl, tmp_path, kept):
    copied(kept, tmp_path / "ck")
    before = lambda *flags, **how: refused(edl, tmp_path, flags=flags, **how)  # noqa: E731

    for flags, where, words, code in (
        (("--resume", "must"), "none", "no checkpoint of job ck in", 1),
        (("--checkpoint-every", "0s"), "ck", "--checkpoint-every 0s", 2),
        (("--resume", str(tmp_path / "nowhere")), "ck", "nowhere", 2),
    ):
        err = before(*flags, checkpoint=tmp_path / where, code=code)
        assert err.count("\n") == 1 and words in err, err
    (tmp_path / "file").touch()
    err = before(checkpoint=tmp_path / "file", code=2)
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (("torch_saved.py", "--width", "9"), "does not go with this script: the checkpoint is of another model"),
        (("torch_saved.py", "--optimizer", "SGD"), "optimizer 0 is SGD here, Adam in the checkpoint"),
        (("torch_saved.py", "--samples", "210"), "trains on other data than what was saved"),
        pytest.param(("torch_saved.py", "--epochs", "3"), "epochs=3 for 4", marks=pytest.mark.soak),
        pytest.param(
            ("tf_saved.py", "--way", "function", "--batch", "8"),
            "is one of torch, and this script trains with tensorflow",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_another_script_is_refused_and_says_why(edl, tmp_path, kept, script, words):
    folder = copied(kept, tmp_path / "ck")
    err = refused(edl, tmp_path, script=script, checkpoint=folder)
    last = err.splitlines()[-1]
    assert words in last
    assert "; with --resume never the job begins anew; logs: " in last
    assert "Traceback" not in err
    assert not [event for event in edl.events("ck") if event["kind"] == "worker_lost"]
    assert len(durable(folder)) == 2


def test_a_broken_checkpoint_is_named_and_passed_over(edl, tmp_path, kept):
    folder = copied(kept, tmp_path / "ck")
    newest, older = durable(folder)
    step = manifest(older)["step"]
    part = next(newest.glob("part-*"))
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(content)
    life = Life(edl, tmp_path / "life", "torch_saved.py", "--step-time", "0", checkpoint=folder)
    err = life.finish()
    assert f"edl: checkpoint {newest} is broken: {part.name} is not as it was written" in err
    assert f"goes on from step {step}, {older}" in err


# -------------------------------------------------------------------------------------------------------- a good end


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        ("torch_saved.py", "--epochs", "1"),
        pytest.param(("tf_saved.py", "--way", "dataset"), marks=pytest.mark.soak),
        pytest.param(("tf_saved.py", "--way", "function"), marks=pytest.mark.soak),
        pytest.param(("tf_saved.py", "--way", "graph"), marks=pytest.mark.soak),
    ],
    ids=lambda script: script[-1],
)
def test_after_a_good_end_the_same_line_trains_nothing_and_ends_with_the_same_model(edl, tmp_path, script):
    """What the script does after its loop it does again, on the model that was saved last."""
    flags = ("--checkpoint-every", "1000s")
    first = Life(edl, tmp_path / "first", *script, "--step-time", "0.02", checkpoint=tmp_path / "ck", flags=flags)
    first.finish()
    assert len(durable(tmp_path / "ck")) == 1
    again = Life(edl, tmp_path / "again", *script, "--step-time", "0", checkpoint=tmp_path / "ck", flags=flags)
    err = again.finish()
    assert err.splitlines()[-1] == "edl: job ck has finished: nothing is left to train"
    assert again.results() == first.results()
    assert again.steps() <= {0, 1}
    assert len(durable(tmp_path / "ck")) == 1
