"""A thousand members say that their ring broke, and that they sit in the next: a leader looks at all of them seldom."""

from __future__ import annotations

import pytest
from machine_job import Job

from edl.core.switch.generation_switch import GenerationSwitch
from edl.protocol.leader_messages import Phase


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[GenerationSwitch]:
    """The looks at all members, as one finds whether another generation is needed."""
    seen: list[GenerationSwitch] = []
    follow = GenerationSwitch.follow

    def counted(switching: GenerationSwitch) -> None:
        seen.append(switching)
        follow(switching)

    monkeypatch.setattr(GenerationSwitch, "follow", counted)
    return seen


def test_the_looks_at_all_members_do_not_grow_with_the_ring(looks: list[GenerationSwitch]) -> None:
    size = 200
    job = Job(np=size)
    workers = [f"w{number}" for number in range(size)]
    for worker in workers:
        job.join(worker)
    for worker in workers:
        job.see(worker, Phase.TRAINING, 1)
    looks.clear()
    for worker in workers:
        job.see(worker, Phase.BROKEN, 1, reason="reset by peer")
    plan = job.machine.record.plan
    assert plan is not None
    for worker in workers:
        job.see(worker, Phase.TRAINING, plan.generation, leases_of=1)
    assert job.machine.record.generation == plan.generation
    assert len(job.machine.record.voided) == size, "each void mini-batch is on record"
    assert len(looks) < 40, "all until the plan, then the first who came and the last"
