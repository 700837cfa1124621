"""A copy of Horovod that failed late to start refuses ever after: rings form in the other copy, in line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pace import patient

from edl.collectives.horovod_engine import REFUSED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCRIPT = """
import ctypes, functools, json, msgspec
from edl.collectives import horovod_engine
from edl.errors import RingBroken
from edl.protocol.assignment import solo
from edl.torch.torch_horovod_ring import TorchHorovodRing

right = horovod_engine.GENTLE_INIT
wrong = (None, 0, (ctypes.c_int * 1)(0), (ctypes.c_int * 1)(1), 1)  # a set of processes that there is already
ring = TorchHorovodRing()

def said(act, generation, arguments=right):
    horovod_engine.GENTLE_INIT = arguments
    try:
        act(msgspec.structs.replace(solo("w", 0), generation=generation), 20.0)
    except RingBroken as error:
        return str(error)
    return ""

first = [said(ring.enter, 1), ring.prepares]
prepare = functools.partial(ring.prepare, all_prepare=True)
refused = [said(prepare, 2, wrong), said(prepare, 3), ring.prepares, ring.largest([7])]
horovods = bool(ring._spare._native.horovod_init(*right))
in_line = [said(ring.enter, 4), ring.size, ring.largest([8])]
both = [said(ring.enter, 5, wrong), said(ring.enter, 6)]
print(json.dumps([first, refused, horovods, in_line, both]))
"""


@pytest.mark.slow
def test_a_copy_that_said_no_is_not_asked_again() -> None:
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=patient(60))
    assert result.returncode == 0, result.stderr
    first, refused, horovods, in_line, both = json.loads(result.stdout.splitlines()[-1])
    assert first == ["", True]
    assert refused == [
        "the ring did not form: Horovod said no",
        "ring 3 cannot form beside one that stands",
        False,
        [7],
    ]
    assert not horovods, "or Horovod can be started again by now, and none of this is needed"
    assert in_line == ["", 1, [8]]
    assert both == ["the ring did not form: Horovod said no", REFUSED]
