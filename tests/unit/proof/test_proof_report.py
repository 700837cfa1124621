"""The report of `edl prove`: what is a fault, and its two files."""

from __future__ import annotations

import json

import msgspec
import pytest
from seen_proof import MACHINE, PROOF

from benchmarks.report import of_proof
from edl.proof.proof_report import (
    HorovodTurns,
    Kill,
    Proof,
    ProofHost,
    as_json,
    as_page,
    rows,
)


def test_a_whole_report_has_no_fault_and_its_json_is_read_back() -> None:
    found = json.loads(as_json(PROOF))
    assert found["holds"] is True and found["faults"] == [] and found["version"] == 1
    assert msgspec.json.decode(as_json(PROOF), type=Proof) == PROOF


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"exit_code": 1}, "the job ended with exit code 1"),
        ({"lost": 1}, "1 samples were lost"),
        ({"repeated": 1}, "1 samples were trained twice"),
        ({"wrong": 1}, "1 mini-batches had samples of another place"),
        ({"states_different": 1}, "workers had different weights after 1 changes"),
    ],
)
def test_each_broken_promise_is_a_fault_on_the_page_and_in_the_file(changed, words) -> None:
    broken = msgspec.structs.replace(PROOF, outcome=msgspec.structs.replace(PROOF.outcome, **changed))
    assert broken.faults() == [words]
    assert json.loads(as_json(broken))["holds"] is False
    assert words in as_page(broken) and "does not hold" in as_page(broken)


def test_steps_that_kills_lost_are_a_fault_and_times_are_none() -> None:
    slow = msgspec.structs.replace(PROOF, kills=[Kill(0, 9e6, 9e6, 0, 1), Kill(1, 1.0, 1.0, 1, 1)])
    assert slow.faults() == ["1 steps were lost by kills"]


def test_figures_are_the_median_with_the_least_and_the_greatest() -> None:
    told = dict(rows(PROOF))
    assert told["2 → 3 workers: pause beyond a step, ms"] == "6.0 (4.0 to 8.0, of 2)"
    assert told["3 → 2 workers: pause beyond a step, ms"] == "6.0 (6.0 to 6.0, of 1)"
    assert told["edl over torchrun"] == "1.100 (1.000 to 1.200, of 2)"


def test_the_page_loads_nothing_and_escapes_what_it_is_told() -> None:
    page = as_page(PROOF)
    assert "2.13.0&lt;cpu&gt;" in page and "<cpu>" not in page
    assert "<script" not in page and "default-src 'none'" in page and "http" not in page.split("</style>")[1]


def test_a_report_becomes_a_row_of_the_benchmarks() -> None:
    row = of_proof(as_json(PROOF))
    assert row["machine"] == "2 cores, 8 GB, Linux x86_64, PyTorch 2.13.0<cpu>, load 1.5"
    assert (row["pause, ms"], row["a step over DDP's"], row["holds"]) == ("6 (at most 8)", 1.1, "yes")


def test_a_report_of_hosts_names_each_of_them() -> None:
    hosts = [ProofHost(name, slots, MACHINE, 0.2) for name, slots in (("n<1>", 2), ("n2", 1))]
    there = msgspec.structs.replace(PROOF, hosts=hosts)
    assert msgspec.json.decode(as_json(there), type=Proof) == there
    where = "2 hosts (2 + 1 workers at most), the first: 2 cores, 8 GB, Linux x86_64, PyTorch 2.13.0<cpu>"
    assert there.where() == where and of_proof(as_json(there))["machine"] == f"{where}, load 1.5"
    page = as_page(there)
    assert "host n&lt;1&gt;" in page and "host n2" in page and "; 2 workers at most" in page


def test_horovod_is_compared_where_it_was_tried() -> None:
    assert "edl over Horovod" not in dict(rows(PROOF))
    beside = msgspec.structs.replace(PROOF, horovod=HorovodTurns([11.0, 10.0], [10.0, 10.0]))
    assert dict(rows(beside))["edl over Horovod"] == "1.050 (1.000 to 1.100, of 2)"
    assert "Horovod under horovodrun" in as_page(beside)
