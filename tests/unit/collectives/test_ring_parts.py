"""The ring's parts that need no Horovod: environment, shares, messages."""

from __future__ import annotations

import os

import pytest

from edl.collectives.horovod_environment import prepare_environment, variables
from edl.collectives.library_guard import Guard, plain
from edl.collectives.ring_port import GradientWeight
from edl.protocol.assignment import Place, solo

PLACE = Place(3, 1, 4, "w7", "127.0.0.1:4711/token", interface="eth0", local_rank=1, local_size=2)


def test_each_worker_passes_for_a_host_of_its_own() -> None:
    found = variables(PLACE, 2.5)
    assert (found["HOROVOD_RANK"], found["HOROVOD_SIZE"], found["HOROVOD_HOSTNAME"]) == ("1", "4", "w7")
    assert (found["HOROVOD_LOCAL_RANK"], found["HOROVOD_LOCAL_SIZE"], found["HOROVOD_CROSS_SIZE"]) == ("0", "1", "1")
    assert (found["HOROVOD_GLOO_RENDEZVOUS_ADDR"], found["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (
        "127.0.0.1:4711/token",
        "0",
    )
    assert found["HOROVOD_GLOO_IFACE"] == "eth0"
    assert found["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "4"  # whole seconds, and later than ours


def test_a_solo_ring_has_no_rendezvous() -> None:
    found = variables(solo("w0"), 1.0, keep_elastic=True)
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] is None
    assert found["HOROVOD_ELASTIC"] is None  # with it, Horovod would ask a rendezvous that is not there


def test_elastic_is_hidden_while_a_ring_forms_unless_nccl_needs_it() -> None:
    assert variables(PLACE, 1.0)["HOROVOD_ELASTIC"] is None
    assert "HOROVOD_ELASTIC" not in variables(PLACE, 1.0, keep_elastic=True)


def test_without_a_guard_the_process_lends_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.collectives.library_guard._load", lambda copied: None)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    monkeypatch.setenv("HOROVOD_RANK", "its launcher's")
    monkeypatch.delenv("HOROVOD_SIZE", raising=False)
    with Guard("no library").environment({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_ELASTIC": None}):
        assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]) == ("3", "4")
        assert "HOROVOD_ELASTIC" not in os.environ
    assert (os.environ["HOROVOD_RANK"], os.environ["HOROVOD_ELASTIC"]) == ("its launcher's", "1")
    assert "HOROVOD_SIZE" not in os.environ


def test_what_users_set_stays() -> None:
    environ = {"HOROVOD_LOG_LEVEL": "debug", "HOROVOD_CYCLE_TIME": "3"}
    prepare_environment(environ)
    assert (environ["HOROVOD_LOG_LEVEL"], environ["HOROVOD_CYCLE_TIME"]) == ("debug", "3")
    tuned = {"HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CPU_OPERATIONS", "HOROVOD_LOG_LEVEL"}
    assert not tuned & set(variables(PLACE, 1.0))


@pytest.mark.parametrize("size", [1, 3, 7, 49])
def test_an_even_share_costs_no_multiplication(size: int) -> None:
    share = GradientWeight()
    assert share.factor(size) == 1.0
    share.set(1 / size)
    assert share.factor(size) == 1.0


def test_an_uneven_share() -> None:
    share = GradientWeight()
    share.set(3 / 8)
    assert share.factor(2) == 0.75
    share.set(0.0)
    assert share.factor(2) == 0.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        share.set(1.5)


def test_messages_without_places_in_sources() -> None:
    message = (
        "[/tmp/wheel/horovod_1/third_party/gloo/pair.cc:589] Read error [127.0.0.1]:1218: Connection reset by peer"
    )
    assert plain(message) == "Read error [127.0.0.1]:1218: Connection reset by peer"


def test_the_time_out_that_gloo_names_after_a_hurry_is_left_out() -> None:
    place = "[/tmp/wheel/horovod_1/third_party/gloo/unbound_buffer.cc:83] "
    assert plain(f"{place}Timed out waiting 61000ms for recv operation to complete") == "no answer of a peer"
    assert plain(f"{place}Timed out waiting 5ms for send operation to complete") == "no answer of a peer"


def test_a_failed_request_of_horovods_is_the_daemons_silence() -> None:
    message = "HTTP GET request failed too many times, aborting. See exception message above."
    assert plain(message) == "its daemon did not answer"


def test_horovods_guesses_are_left_out() -> None:
    guess = "This was caused by an exception on one of the ranks or an attempt to allreduce a tensor. See the log."
    assert plain(f"Horovod has been shut down. {guess}") == "Horovod has been shut down."
    assert plain(f"Horovod has been shut down. {guess}\n\t [[node]]") == "Horovod has been shut down.\n\t [[node]]"
