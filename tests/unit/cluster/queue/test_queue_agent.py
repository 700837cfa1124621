"""An agent's rules: each worker at most once, no two on a device, whatever it is told."""

from __future__ import annotations

from edl.cluster.queue.agent_machine import (
    KILL_EVERY_S,
    AgentLooked,
    AgentMachine,
    BarOne,
    EndOne,
    OrdersCame,
    StartOne,
    WorkerBegan,
    WorkerClaimed,
    WorkerFound,
    WorkerGone,
)
from edl.cluster.queue.end_causes import EndEvidence
from edl.cluster.queue.queue_entries import WorkerOrder, WorkerWish


def order(id_: str, device: int = 0, wish: WorkerWish = WorkerWish.RUN) -> WorkerOrder:
    return WorkerOrder(id_, "j", device, wish)


def test_it_starts_what_it_is_told_once() -> None:
    agent = AgentMachine()
    assert agent.handle(OrdersCame((order("a"),)), 0) == [StartOne(order("a"))]
    assert agent.handle(OrdersCame((order("a"),)), 1) == []
    agent.handle(WorkerBegan("a", 7), 1)
    agent.handle(WorkerGone("a", EndEvidence(code=1)), 2)
    assert agent.handle(OrdersCame((order("a"),)), 3) == []
    assert [(seen.gone, seen.evidence) for seen in agent.report] == [(True, EndEvidence(code=1))]


def test_a_device_is_given_on_once_its_process_is_gone() -> None:
    agent = AgentMachine()
    agent.handle(OrdersCame((order("a"),)), 0)
    assert agent.handle(OrdersCame((order("b"),)), 1) == [EndOne("a", kill=True)]
    assert agent.handle(WorkerGone("a", EndEvidence(code=-9)), 2) == [StartOne(order("b"))]
    agent.validate()


def test_what_is_to_go_before_it_began_never_begins() -> None:
    agent = AgentMachine()
    assert agent.handle(OrdersCame((order("a", wish=WorkerWish.LEAVE),)), 0) == [BarOne("a")]
    assert not agent.report[0].gone  # another agent may have been paused just before it starts it
    assert agent.handle(AgentLooked(), 0.5) == [BarOne("a")]  # until it is answered
    agent.handle(WorkerGone("a", EndEvidence()), 1)
    [seen] = agent.report
    assert (seen.gone, seen.evidence) == (True, EndEvidence(told=True))
    assert agent.handle(OrdersCame((order("a"),)), 1) == []


def test_what_another_agent_has_claimed_is_not_told_to_be_gone_before_it_was_barred() -> None:
    agent = AgentMachine()
    assert agent.handle(OrdersCame((order("a"),)), 0) == [StartOne(order("a"))]
    assert agent.handle(WorkerClaimed("a"), 0) == [BarOne("a")]
    assert not agent.report[0].gone
    assert agent.handle(WorkerFound("a", (0,), 7, None), 1) == []  # it runs: as if this agent had started it
    assert agent.handle(OrdersCame(()), 2) == [EndOne("a", kill=True)]


def test_it_asks_to_leave_once_and_kills_again_and_again() -> None:
    agent = AgentMachine()
    agent.handle(OrdersCame((order("a"),)), 0)
    assert agent.handle(OrdersCame((order("a", wish=WorkerWish.LEAVE),)), 1) == [EndOne("a", kill=False)]
    assert agent.handle(AgentLooked(), 50) == []
    assert agent.handle(OrdersCame((order("a", wish=WorkerWish.DIE),)), 51) == [EndOne("a", kill=True)]
    assert agent.handle(AgentLooked(), 51.5) == []
    assert agent.handle(AgentLooked(), 51 + KILL_EVERY_S) == [EndOne("a", kill=True)]
    agent.handle(WorkerGone("a", EndEvidence(code=-9)), 60)
    assert agent.report[0].evidence == EndEvidence(code=-9, told=True)


def test_one_that_comes_back_finds_its_workers_and_kills_strays() -> None:
    agent = AgentMachine()
    agent.handle(WorkerFound("a", (0,), 5, None), 0)
    agent.handle(WorkerFound("b", (1,), 6, None), 0)
    agent.handle(WorkerFound("c", (2,), 7, EndEvidence(code=3)), 0)
    assert agent.handle(OrdersCame((order("a"), order("c", 2))), 1) == [EndOne("b", kill=True)]
    assert [seen.id for seen in agent.report if seen.gone] == ["c"]
    agent.handle(OrdersCame((order("a"),)), 2)
    assert [seen.id for seen in agent.report] == ["a", "b"]  # c was heard of


def test_one_that_comes_back_does_nothing_before_it_was_told_anything() -> None:
    agent = AgentMachine()
    assert agent.handle(WorkerFound("a", (0,), 5, None), 0) == []
    assert agent.handle(AgentLooked(), 100) == []
    assert agent.handle(OrdersCame(()), 101) == [EndOne("a", kill=True)]
