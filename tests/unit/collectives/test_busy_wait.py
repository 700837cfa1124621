"""How long a wait for a collective keeps a core busy."""

from __future__ import annotations

import pytest

from edl.collectives.horovod_engine import LONG_S, SETTLING_S, SHORT_S, spinning


@pytest.mark.parametrize(
    ("workers", "cores", "found"), [(1, 2, LONG_S), (2, 2, LONG_S), (3, 2, SHORT_S), (9, 8, SHORT_S)]
)
def test_it_is_short_where_there_is_no_core_for_each_worker(workers, cores, found):
    assert spinning(workers, {}, cores) == (found, SETTLING_S)


def test_what_was_said_counts_from_a_rings_first_moment():
    assert spinning(1, {"EDL_SPIN_MS": "2.5"}, 8) == (0.0025, 0.0)
    assert spinning(9, {"EDL_SPIN_MS": "50"}, 8) == (0.05, 0.0)
    assert spinning(9, {"EDL_SPIN_MS": "0"}, 8) == (0.0, 0.0)
