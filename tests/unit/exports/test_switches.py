"""What a switch was made of, by its events."""

from __future__ import annotations

from typing import Any

from edl.exports.switches import Attributes, Part, Switches


def event(ts: float, kind: str, generation: int = 1, **details: object) -> dict:
    return {"ts": ts, "job": "j", "kind": kind, "term": 1, "generation": generation, "step": 5, **details}


def ready(ts: float, worker: str, joining_ms: int | None = 2000, warming_ms: int | None = 500) -> dict:
    return event(ts, "worker_ready", worker=worker, joining_ms=joining_ms, warming_ms=warming_ms)


def planned(ts: float, newcomers: int, generation: int = 2) -> dict:
    return event(ts, "switch_scheduled", next_generation=generation, after_step=9, size=3, newcomers=newcomers)


def scaled(ts: float, /, generation: int = 2, **details: object) -> dict:
    return event(ts, "scaled", generation, **({"from": 2, "to": 3, "pause_ms": 60.0, "forced": False} | details))


def test_a_growth_has_all_six_parts() -> None:
    parts_ms: dict[str, Any] = {"leave_ms": 10.0, "enter_ms": 30.0, "state_ms": 20.0, "asked_ms": 4000}
    story = [ready(13.0, "n"), planned(13.5, 1), scaled(14.0, **parts_ms)]
    (found,) = Switches().take(story)
    about: Attributes = {"edl.worker": "n"}
    assert [part.name for part in found.parts] == ["boot", "rehearsal", "plan", "leave", "enter", "state"]
    assert found.parts[:3] == (
        Part("boot", 10.5, 12.5, about), Part("rehearsal", 12.5, 13.0, about), Part("plan", 13.5, 13.94)
    )  # fmt: skip
    assert [(round(part.began, 3), round(part.ended, 3)) for part in found.parts[3:]] == [
        (13.94, 13.95), (13.95, 13.98), (13.98, 14.0)
    ]  # fmt: skip
    assert (found.number, found.began, found.ended) == (3, 10.0, 14.0)
    assert found.attributes == {
        "edl.job": "j", "edl.generation": 2, "edl.term": 1, "edl.step": 5, "edl.workers.before": 2,
        "edl.workers.after": 3, "edl.forced": False, "edl.pause_ms": 60.0,
    }  # fmt: skip


def test_a_newcomer_belongs_to_the_switch_that_takes_it_and_one_that_is_gone_to_none() -> None:
    switches = Switches()
    story = [ready(1, "lost"), event(2, "worker_lost", worker="lost"), ready(3, "a"), ready(4, "b")]
    first, second = switches.take(
        [*story, planned(5, 1), scaled(6), planned(7, 1, generation=3), scaled(8, generation=3)]
    )
    assert {part.attributes.get("edl.worker") for part in first.parts if part.attributes} == {"a"}
    assert {part.attributes.get("edl.worker") for part in second.parts if part.attributes} == {"b"}


def test_a_plan_that_is_made_anew_began_when_it_was_made_first() -> None:
    (found,) = Switches().take([planned(5, 0), planned(7, 0), scaled(9, pause_ms=None, to=1)])
    assert [(part.name, part.began, part.ended) for part in found.parts] == [("plan", 5, 9)]


def test_of_a_broken_ring_there_is_what_is_known() -> None:
    unknown: dict[str, Any] = {"forced": True, "leave_ms": None, "enter_ms": 40.0, "pause_ms": 900.0}
    (found,) = Switches().take([scaled(9, to=1, **unknown)])
    assert [part.name for part in found.parts] == ["enter"]
    assert found.attributes["edl.forced"] is True
    assert round(found.began, 3) == 8.1


def test_another_life_begins_with_no_newcomer_of_the_one_before() -> None:
    switches = Switches()
    assert switches.take([ready(1, "old"), planned(2, 1), event(3, "life_begun")]) == []
    (found,) = switches.take([planned(5, 1), scaled(6)])
    assert {part.name for part in found.parts} == {"plan"}
