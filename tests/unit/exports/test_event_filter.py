"""An event is told by one line, whatever leaders come and go."""

from __future__ import annotations

from edl.exports.curves import Teller


def elected(worker: str) -> dict:
    return {"kind": "leader_elected", "worker": worker}


def joining(worker: str, host: str) -> dict:
    return {"kind": "worker_joining", "worker": worker, "host": host}


OTHER = {"kind": "epoch_ended"}
STORY = [elected("a"), {"kind": "job_started"}, joining("a", "one"), joining("b", "two"), OTHER, elected("b"), OTHER]


def numbers(host: str, story: list[dict], pieces: int = 1) -> list[int]:
    teller = Teller(host)
    found = [one for at in range(0, len(story), pieces) for one in teller.take(story[at : at + pieces])]
    assert teller.count == len(story)
    return [one.number for one in [*found, *teller.rest()]]


def test_the_line_where_the_leader_is_tells() -> None:
    for pieces in (1, 2, len(STORY)):
        assert numbers("one", STORY, pieces) == [1, 2, 3, 4, 5]
        assert numbers("two", STORY, pieces) == [6, 7]


def test_what_no_line_is_known_to_tell_is_told_at_the_end() -> None:
    assert numbers("one", [elected("ghost"), OTHER]) == [1, 2]
