"""Causes, their domains and whether another try can help, from what is known of an end."""

from __future__ import annotations

import pytest

from edl.cluster.queue.end_causes import Domain, EndEvidence, classify, first
from edl.errors import WITH_ITS_JOB

TRACE = "Traceback (most recent call last):\n  File 't.py', line 1, in <module>\n    x\n"


@pytest.mark.parametrize(
    ("evidence", "code", "domain", "retry"),
    [
        (EndEvidence(), "lost", Domain.INFRASTRUCTURE, True),
        (EndEvidence(taken="Slurm has lost its node"), "taken", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=0, taken="Slurm has preempted it"), "taken", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=-9), "killed", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=137), "killed", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=-9, starved=True), "out-of-memory", Domain.WORKLOAD, True),
        (EndEvidence(code=-15), "ended", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=-11), "crash", Domain.WORKLOAD, True),
        (EndEvidence(code=-24), "limit", Domain.WORKLOAD, False),
        (EndEvidence(refused="No such file or directory: 'nope'"), "no-command", Domain.WORKLOAD, False),
        (EndEvidence(refused="Resource temporarily unavailable"), "host-limits", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=127, tail="sh: nope: not found"), "no-command", Domain.WORKLOAD, False),
        (EndEvidence(code=3, tail="hm"), "exit", Domain.WORKLOAD, True),
        (
            EndEvidence(code=1, tail="tar: No space left on device"),
            "full-disk",
            Domain.INFRASTRUCTURE,
            True,
        ),
        (
            EndEvidence(code=1, tail=TRACE + "RuntimeError: NCCL error"),
            "device",
            Domain.INFRASTRUCTURE,
            True,
        ),
        (EndEvidence(refused="Input/output error", unserved=True), "host-limits", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=1, tail=TRACE + "edl.errors.DataError: cut off"), "corrupt-data", Domain.DATA, False),
        (EndEvidence(code=1, tail=TRACE + "edl.errors.RingBroken: x"), "peer", Domain.INFRASTRUCTURE, True),
        (EndEvidence(code=1, tail=TRACE + "edl.errors.PeerError: killed"), "peer", Domain.INFRASTRUCTURE, True),
        (
            EndEvidence(code=1, tail=TRACE + f"KeyError: handled\n{WITH_ITS_JOB}nobody has the model\nmore words"),
            "peer",
            Domain.INFRASTRUCTURE,
            True,
        ),
        (EndEvidence(code=1, tail=TRACE + "KeyError: 'x'\nmore words"), "script-error", Domain.WORKLOAD, False),
    ],
)
def test_causes(evidence: EndEvidence, code: str, domain: Domain, *, retry: bool) -> None:
    cause = classify(evidence)
    assert cause is not None
    assert (cause.code, cause.domain, cause.retry) == (code, domain, retry)


@pytest.mark.parametrize(
    "evidence",
    [EndEvidence(code=0), EndEvidence(code=75), EndEvidence(code=1, told=True), EndEvidence(told=True, taken="x")],
)
def test_what_has_ended_well_or_as_it_was_told_has_none(evidence: EndEvidence) -> None:
    assert classify(evidence) is None


def test_the_last_traceback_counts_and_its_last_line_is_the_root() -> None:
    tail = TRACE + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE
    cause = classify(EndEvidence(code=1, tail=tail + "OSError: [Errno 98] Address already in use"))
    assert cause is not None
    assert (cause.code, cause.root) == ("port-in-use", "OSError: [Errno 98] Address already in use")


def test_what_follows_from_another_end_is_not_what_it_began_with() -> None:
    peer, bug = (classify(EndEvidence(code=1, tail=TRACE + line)) for line in ("RingBroken: x", "KeyError: y"))
    assert peer is not None
    assert bug is not None
    assert first([peer, bug]) is bug
    assert first([peer]) is peer
    assert first([]) is None
