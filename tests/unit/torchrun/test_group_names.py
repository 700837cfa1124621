"""What the names of torch.distributed answer: to a newcomer, which is alone, and to a worker in a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from edl.errors import UsageError
from edl.protocol.assignment import Place
from edl.torchrun.group_names import GroupNames, _refuse_torchs_group, _refusing
from edl.torchrun.refusals import REFUSED
from edl.torchrun.worker_group import JobOutside, WorkerGroup


class Seat:
    def __init__(self, rank: int = 0, size: int = 1, generation: int = 0, local_rank: int = 0) -> None:
        self.at, self.of, self.number, self.local = rank, size, generation, local_rank

    def rank(self) -> int:
        return self.at

    def size(self) -> int:
        return self.of

    def local_rank(self) -> int:
        return self.local

    def generation(self) -> int:
        return self.number


class Words:
    """The others say what this worker says, times their rank and one."""

    def __init__(self, size: int) -> None:
        self.size, self.met = size, 0

    def meet(self) -> None:
        self.met += 1

    def by_rank(self, _name: str, says: Callable[[], Any]) -> list[Any]:
        said = says()
        return [said * (rank + 1) if isinstance(said, torch.Tensor) else said for rank in range(self.size)]

    def reduced(self, value: torch.Tensor, kind: str) -> torch.Tensor:
        parts = torch.stack(self.by_rank("", lambda: value))
        return parts.sum(0) if kind == "sum" else parts.mean(0)


def names(seat: Seat, size: int = 3, begun: int = 2) -> tuple[GroupNames, WorkerGroup, Words]:
    words = Words(size)
    group = WorkerGroup(seat, words, lambda: JobOutside(4, 7), begun)  # type: ignore[arg-type]
    return GroupNames(group), group, words


def test_a_newcomer_is_never_rank_0_and_begins_with_the_first_size() -> None:
    dist, group, _ = names(Seat())
    assert (dist.get_rank(), dist.get_world_size(), group.epoch_beside()) == (4, 2, 7)
    environ = group.environment({"EDL_JOB": "mnist"})
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["TORCHELASTIC_RUN_ID"]) == ("4", "2", "mnist")


def test_hosts_are_counted_as_torchrun_does() -> None:
    keys = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    place = Place(1, 3, 4, "w3", local_rank=1, local_size=2, cross_rank=1, cross_size=2)
    joined = WorkerGroup(Seat(3, 4, 1, 1), Words(4), place=lambda: place)  # type: ignore[arg-type]
    assert [joined.environment({})[key] for key in keys] == ["1", "2", "1", "2"]
    newcomer = WorkerGroup(Seat(local_rank=1), Words(4), lambda: JobOutside(4, 7), 4)  # type: ignore[arg-type]
    assert [newcomer.environment({})[key] for key in keys] == ["1", "2", "0", "1"]
    later = WorkerGroup(Seat(local_rank=3), Words(4), lambda: JobOutside(3, 7), 2)  # type: ignore[arg-type]
    assert later.environment({})["LOCAL_WORLD_SIZE"] == later.environment({})["WORLD_SIZE"] == "2"


@pytest.mark.parametrize(
    ("begun", "gpus", "told"),
    [(2, 0, "1"), (4, 0, "3"), (8, 0, "5"), (2, 8, "5"), (1, 0, "5")],
    ids=["beyond", "far beyond", "within", "a GPU for it", "of one worker"],
)
def test_without_gpus_a_newcomer_has_a_local_rank_of_the_beginning(
    monkeypatch: pytest.MonkeyPatch, begun: int, gpus: int, told: str
) -> None:
    """But for 0, by which scripts write files."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    group = WorkerGroup(Seat(local_rank=5), Words(4), lambda: JobOutside(3, 7), begun)  # type: ignore[arg-type]
    assert group.environment({})["LOCAL_RANK"] == told


def test_two_newcomers_of_one_host_have_two_ranks() -> None:
    assert {names(Seat(local_rank=local))[0].get_rank() for local in (4, 5)} == {4, 5}


@pytest.mark.parametrize("passes_over", [False, True])
def test_to_who_is_alone_a_collective_answers_with_its_own_values(passes_over: bool) -> None:
    seat = Seat(0, 3, 5) if passes_over else Seat()
    dist, group, words = names(seat)
    group.passes_over = passes_over
    mine = torch.tensor([1.0, 2.0])
    dist.all_reduce(mine)
    assert mine.tolist() == [1.0, 2.0]
    gathered = [torch.zeros(2) for _ in range(3)]
    dist.all_gather(gathered, mine)
    gathered[dist.get_rank()] = mine  # as torchmetrics does
    assert [one.tolist() for one in gathered] == [[1.0, 2.0]] * (dist.get_rank() + 1)
    told = ["mine"]
    dist.broadcast_object_list(told, src=0)
    dist.barrier()
    assert told == ["mine"] and words.met == 0
    assert dist.get_rank() != 0


def test_in_a_ring_it_answers_with_those_of_all() -> None:
    dist, _, words = names(Seat(1, 3, 5))
    assert (dist.get_rank(), dist.get_world_size()) == (1, 3)
    for op, expected in {
        ReduceOp.SUM: 6,
        ReduceOp.AVG: 2,
        ReduceOp.MIN: 1,
        ReduceOp.MAX: 3,
        ReduceOp.PRODUCT: 6,
    }.items():
        for one in (torch.tensor(1), torch.tensor(1.0)):
            dist.all_reduce(one, op)
            assert one.item() == expected
    into = torch.zeros(3, 1)
    dist.all_gather_into_tensor(into, torch.tensor([2.0]))
    assert into.flatten().tolist() == [2.0, 4.0, 6.0]
    work = dist.barrier(async_op=True)
    assert work is not None and work.wait() and words.met == 1


def test_a_list_has_as_many_entries_as_there_were_workers() -> None:
    dist, _, _ = names(Seat(0, 2, 5), size=2)
    found: list[Any] = [None] * 3  # one is lost meanwhile
    dist.all_gather_object(found, {"rank": 0})
    assert found == [{"rank": 0}] * 2
    found = [torch.zeros(1)]
    dist.all_gather(found, torch.ones(1))
    assert [one.item() for one in found] == [1.0, 2.0]


def test_a_group_is_that_of_all_workers_or_refused() -> None:
    dist, _, _ = names(Seat(0, 3, 5))
    group = dist.new_group([2, 0, 1])
    dist.barrier(group=group)
    assert dist.get_world_size(dist.new_group()) == 3
    with pytest.raises(UsageError, match="one group, of all workers"):
        dist.new_group([0, 1])
    with pytest.raises(UsageError, match="one group"):
        dist.all_reduce(torch.ones(1), group="half")


def test_a_group_of_its_own_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's has a barrier with a time limit, and ends after it."""
    dist, _, words = names(Seat(0, 3, 5))
    dist.init_process_group("gloo")
    monkeypatch.setattr(torch.distributed, "barrier", dist.barrier)
    group = dist.new_group()
    group.monitored_barrier()
    dist.destroy_process_group(group)
    assert words.met == 1 and dist.is_initialized()


def test_what_is_not_there_is_said_with_its_remedy() -> None:
    for name, remedy in REFUSED.items():
        with pytest.raises(UsageError, match=f"torch.distributed.{name}: ") as caught:
            _refusing(name, remedy)(torch.ones(1), dst=1)
        assert "\n" not in str(caught.value)


def test_what_needs_torchs_own_group_is_refused() -> None:
    with pytest.raises(UsageError, match=r"FSDP and device meshes.*DistributedDataParallel"):
        _refuse_torchs_group()


def test_nccl_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    dist, _, _ = names(Seat())
    with pytest.raises(UsageError, match="finds no GPU"):
        dist.init_process_group("nccl")
    assert not dist.is_initialized()
    dist.init_process_group()
    assert dist.is_initialized() and dist.get_backend() == "gloo"
    dist.destroy_process_group()
    assert not dist.is_initialized()
