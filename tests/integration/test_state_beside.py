"""Newcomers get their state from one survivor while all compute the first step, and are equal after it."""

from __future__ import annotations

import operator

import pytest
from elastic_job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
TORCH, TENSORFLOW = ("torch_beside.py",), ("tf_beside.py",)
FIT, EAGER = (*TENSORFLOW, "--way", "fit"), (*TENSORFLOW, "--way", "eager")


def one_difference_after_growth(job: Job) -> dict:
    """From two workers to three, and to the end: the event, where nothing else went wrong."""
    job.grow(3)
    job.wait_size(3)
    job.wait_steps(10)
    (diverged,) = [event for event in job.finish() if event["kind"] in ("batch_voided", "diverged", "worker_lost")]
    assert len(job.results()) == 3
    return diverged


@pytest.mark.parametrize(
    ("script", "ring"),
    [
        pytest.param(TORCH, "horovod", id="torch"),
        # soak: a state travels beside either ring, by tests/unit/transport/test_state_stream.py
        pytest.param(TORCH, "torch", id="torch-own", marks=pytest.mark.soak),
        pytest.param(TENSORFLOW, "horovod", id="function", marks=pytest.mark.soak),
        # soak: eagerly and in `fit` it is the same, by tests/unit/tensorflow/test_tensorflow_apart.py
        pytest.param(EAGER, "horovod", id="eager", marks=pytest.mark.soak),
        pytest.param(FIT, "horovod", id="fit", marks=pytest.mark.soak),
    ],
)
def test_newcomers_are_equal_bit_for_bit_after_their_first_step(edl, tmp_path, script, ring):
    """Several come, each as it is ready: states of 8 MB, learning rates and an average beside them."""
    job = Job(edl, tmp_path / "out", workers=2, script=script, EDL_RING=ring, EDL_CHECK_WEIGHTS="5")
    job.wait_size(2)
    job.wait_steps(10)  # a switch in the first steps may have the state in line
    job.grow(4)
    job.wait_size(4)
    job.wait_steps(5)
    assert [event for event in job.finish() if event["kind"] in ("batch_voided", "diverged", "worker_lost")] == []
    results = job.results()
    assert len(results) == 4
    assert sum(result["own"][0] == 0 for result in results) == 2, "newcomers have no samples as their state comes"
    assert all(any(result["own"]) for result in results)
    assert all(result["rate"] == results[0]["rate"] for result in results)
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ring"),
    [
        # soak: it is sent as above, and as TensorFlow's below
        pytest.param(TORCH, "horovod", id="torch", marks=pytest.mark.soak),
        pytest.param(TORCH, "torch", id="torch-own", marks=pytest.mark.soak),
        pytest.param(TENSORFLOW, "horovod", id="function"),
        pytest.param(FIT, "horovod", id="fit", marks=pytest.mark.soak),
    ],
)
def test_a_large_state_comes_over_several_steps_and_is_equal_after_the_last(edl, tmp_path, script, ring):
    """160 MB for two newcomers; an average of the weights beside."""
    large = (*script, "--ballast-mb", "160")
    job = Job(edl, tmp_path / "out", workers=2, script=large, EDL_RING=ring, EDL_CHECK_WEIGHTS="20")
    job.wait_size(2)
    job.wait_steps(20)  # so that it is known how long one takes
    job.grow(4)
    job.wait_size(4)
    job.wait_steps(10)
    events = job.finish()
    assert [event for event in events if event["kind"] in ("batch_voided", "diverged", "worker_lost")] == []
    switches = [event for event in events if event["kind"] == "switch_scheduled" and event["next_generation"] > 1]
    stood_by = [switch.get("portions", 1) for switch in switches for _ in range(switch["newcomers"])]
    assert max(stood_by) > 1
    empty = sorted(next(step for step, own in enumerate(result["own"]) if own) for result in job.results())
    assert empty[:2] == [0, 0]
    assert all(map(operator.ge, empty[2:], sorted(stood_by))), "newcomers have no samples as their state comes"
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.slow
def test_a_newcomer_is_equal_to_those_that_have_thawed_a_layer_and_is_given_again_what_came_too_early(edl, tmp_path):
    """Its script adds the thawed layer to its optimizer, too. An average that is updated after `notify_batch_end()` is
    behind at the newcomer.
    """
    job = Job(edl, tmp_path / "out", workers=2, script=(*TORCH, "--thaws", "--late"), EDL_CHECK_WEIGHTS="5")
    job.wait_size(2)
    job.wait_steps(15)
    diverged = one_difference_after_growth(job)
    assert diverged["first"].startswith("edl.register(average=...)")
    assert (diverged["action"], len(diverged["workers"]), diverged["compared"] > diverged["differing"]) == (
        "heal",
        1,
        1,
    )
    results = job.results()
    assert all(result["rate"] == results[0]["rate"] for result in results)
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.soak  # so it is in tests/unit/trainer/test_divergence_check.py, and with what is registered above
@pytest.mark.parametrize("way", ["function", "eager", "fit"])
def test_a_model_whose_forward_pass_changes_weights_is_given_again(edl, tmp_path, way):
    script = (*TENSORFLOW, "--way", way, "--spectral")
    job = Job(edl, tmp_path / "out", workers=2, script=script, EDL_CHECK_WEIGHTS="5")
    job.wait_size(2)
    diverged = one_difference_after_growth(job)
    assert (diverged["action"], len(diverged["workers"])) == ("heal", 1)
    job.expect_equal_models()
    job.expect_exactly_once()


@pytest.mark.soak  # so it is in tests/simulation/test_wrong_sending.py, tests/unit/transport/test_state_stream.py
@pytest.mark.parametrize(
    ("script", "ring"),
    [(TORCH, "torch"), (TENSORFLOW, "horovod"), ((*TORCH, "--ballast-mb", "400", "--kill-at", "2"), "horovod")],
    ids=["torch", "tensorflow", "in its second portion"],
)
def test_the_sender_is_killed_in_the_middle(edl, tmp_path, script, ring):
    """The others form another ring at once, in which the newcomer is given the state of who is left."""
    kill = tmp_path / "kill"
    job = Job(
        edl, tmp_path / "out", workers=2, script=(*script, "--kill", str(kill)), EDL_RING=ring, EDL_MAX_RESTARTS="1"
    )
    job.wait_size(2)
    job.wait_steps(20)  # so that it is known how long one takes
    kill.touch()
    job.grow(3)
    edl.wait(lambda: not kill.exists(), "a state that is sent", timeout_s=90)
    job.wait_size(3)
    job.wait_steps(5)
    events = job.finish()
    assert [event["kind"] for event in events].count("worker_lost") == 1
    assert any(event["forced"] for event in events if event["kind"] == "scaled")
    assert len(job.results()) == 3
    job.expect_equal_models()
    job.expect_exactly_once()
