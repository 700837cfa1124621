"""The world of a worker's processes: its parts that need no second process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402

from edl.errors import ConfigError, UsageError  # noqa: E402
from edl.torch import within_worker  # noqa: E402
from edl.torch.within_worker import GroupWorld  # noqa: E402
from edl.trainer.exit_paths import EXPLAINED  # noqa: E402


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """Nothing of a group is left in this process or its environment."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_what_processes_tell_each_other_may_be_of_any_length(alone, tmp_path) -> None:
    world = GroupWorld(0, 1, tmp_path, 60.0)
    for payload in (b"", b"\0", b"names of tensors" * 1000):
        assert world.gather(payload) == [payload]
    assert world.exchange((1, 0, 0, 0, 0, 7)) == [(1, 0, 0, 0, 0, 7)]
    with pytest.raises(UsageError, match=r"leave torch.distributed.init_process_group\(\) away"):
        GroupWorld(0, 1, tmp_path, 60.0)


@pytest.mark.slow
def test_a_process_that_never_comes_is_one_line_with_a_remedy(alone, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(within_worker, "COME_S", 1.0)
    with pytest.raises(
        ConfigError, match=r"not all 2 processes of this worker came within 1 s \(.*\): let each call"
    ) as of:
        GroupWorld(0, 2, tmp_path, 60.0)
    assert "\n" not in str(of.value)


@pytest.mark.parametrize(("step_timeout_s", "bound_s"), [(60.0, 120.0), (600.0, 1200.0)])
def test_a_collective_of_the_script_waits_as_long_as_steps_may(alone, tmp_path, step_timeout_s, bound_s) -> None:
    GroupWorld(0, 1, tmp_path, step_timeout_s)
    of_script = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    assert of_script.total_seconds() == bound_s


def test_pytorch_still_says_what_edl_explains(alone) -> None:
    """Scripts that ask for groups, meshes and FSDP1 as they did under torchrun."""
    dist, mesh, heard = torch.distributed, torch.distributed.device_mesh, set()

    def says(line: str, *wrong: Callable[[], object]) -> None:
        for act in wrong:
            with pytest.raises((RuntimeError, ValueError)) as of:
                act()
            [part] = [part for part in EXPLAINED if part in str(of.value)]
            assert EXPLAINED[part].startswith(line)
            heard.add(part)

    says("edl forms no process", lambda: dist.init_process_group("gloo"), lambda: mesh.init_device_mesh("cpu", (1,)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    says("torch.distributed has its process group already", lambda: dist.init_process_group("gloo"))
    meshes = (lambda: mesh.init_device_mesh("cpu", (2, 2)), lambda: mesh.DeviceMesh("cpu", [0, 1]))
    says("a mesh or a group lies within", *meshes, lambda: dist.new_group([0, 1]), lambda: dist.new_group([1]))
    if not torch.accelerator.is_available():
        says("edl shards no model by Fully", lambda: FullyShardedDataParallel(torch.nn.Linear(1, 1)))
        assert heard == EXPLAINED.keys()
