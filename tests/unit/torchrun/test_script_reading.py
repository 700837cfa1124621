"""What a reading of a script finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.torchrun.script_files import SourceFile, module_file, script_files
from edl.torchrun.script_reading import Kept, LineKind, Reading, read

BEGINS = """\
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import broadcast, send as push
from torch.nn.parallel import DistributedDataParallel as DDP
rank, world_size = dist.get_rank(), int(os.environ["WORLD_SIZE"])
"""


def reading(text: str, *more: str) -> Reading:
    files = [SourceFile("train.py", BEGINS + text)]
    return read([*files, *(SourceFile(f"more{number}.py", one) for number, one in enumerate(more))])


def kinds(text: str, *more: str) -> list[LineKind]:
    return [finding.kind for finding in reading(text, *more).findings]


@pytest.mark.parametrize(
    "text",
    [
        "mine = data[rank::world_size]",
        "n = 7\nmine = data[rank * n : (rank + 1) * n]",
        "mine = [data[at] for at in range(rank, len(data), world_size)]",
        "for at, one in enumerate(data):\n    if at % world_size != rank:\n        continue",
        "from datasets.distributed import split_dataset_by_node as cut\nmine = cut(data, rank=rank, world_size=3)",
        "mine = data.shard(num_shards=world_size, index=rank)",
        "mine = itertools.islice(data, rank, None, world_size)",
        "sampler = OwnSampler(data, world_size, rank)",
        'mine = np.load(f"part-{rank}.npy")',
        'name = "part-%d.bin" % rank\nmine = np.memmap(os.path.join(folder, name))',
        'mine = open(folder / f"{rank}.txt").read()',
        'mine = (folder / "part-{}.txt".format(rank)).read_text()',
        (
            "class Loader:\n    def __init__(self, number):\n        self.at = 8 * number\n    def next(self):\n"
            "        return self.tokens[self.at : self.at + 8]\nloader = Loader(rank)"
        ),
        "def part(data, me, of):\n    return data[me::of]\nmine = part(data, me=dist.get_rank(), of=world_size)",
        'me = int(os.environ.get("RANK", 0))\nmine = data[me::2]',
        'me = os.getenv("SLURM_PROCID")\nmine = data[int(me) :: 2]',
        "mine = shards[rank]",
        "mine = np.array_split(data, world_size)[rank]",
        "mine = data.chunk(world_size)[dist.get_rank()]",
        "lists = torch.utils.data.random_split(data, [5, 5])\nmine = lists[rank]",
        "mine = data[slice(rank, None, world_size)]",
        (
            "class Reader:\n    def __init__(self):\n        self.me = dist.get_rank()\n    def read(self):\n"
            "        return data[self.me :: 2]"
        ),
    ],
)
def test_a_share_that_the_script_cuts_itself_is_found(text: str) -> None:
    assert kinds(text) == [LineKind.SHARE]


@pytest.mark.parametrize(
    "text",
    [
        "sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=world_size, rank=rank)",
        "torch.manual_seed(7 + rank)",
        'device = torch.device(f"cuda:{local}")\nbatch = batch[:8].to(device)',
        "gathered = parts[rank]",
        "for epoch in range(epochs):\n    average = total / dist.get_world_size()",
        "def mean(one):\n    dist.all_reduce(one)\n    return one\n    one = one / dist.get_world_size()",
        "def mean(one):\n    size = dist.get_world_size()\n    dist.all_reduce(one)\n    one /= size",
        'print(f"rank {rank} of {world_size}")',
        "if dist.get_rank() == 0:\n    torch.save(model, 'model.pt')",
        "for _ in range(rank):\n    torch.rand(1)",
        "for batch in loader:\n    first = dist.get_rank() == 0",
        "text = ', '.join(names)\nbroadcast(one, 0)\nqueue.send(one)\nthread.join()",
        "def low(weight, rank):\n    return weight[rank:], weight[:, rank::2], 2 * rank\nlow(w, 8)",
        "def resized(image, size, world_size=2):\n    size *= 2\n    return image * world_size // size\nresized(a, 4)",
        "class Low:\n    def __init__(self, rank):\n        self.rank = rank\n        self.a = w[rank:]\nLow(8).rank",
        (
            "class Low:\n    def __init__(self, rank):\n        self.rank = rank\n    def cut(self):\n"
            "        return w[self.rank :]"
        ),
        "def best(scores):\n    rank = len(scores) // 2\n    if rank == 0:\n        return scores[rank:]",
        "group = dist.new_group(list(range(dist.get_world_size())))\nboth = dist.new_group()",
        "part = slice(rank)",
        'place = f"cuda:{rank}"\nmodel = torch.load("model.pt", map_location=place)',
        "name = names.split(',')[0]",
        "if not found:\n    save()",
    ],
)
def test_what_is_right_at_any_size_is_left_alone(text: str) -> None:
    assert kinds(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "accumulation //= world_size",
        "rate = 0.1 * dist.get_world_size()",
        "optimizer = SGD(model.parameters(), lr=rate * 32 * world_size / 256)",
        "for batch in loader:\n    average = total / world_size",
        (
            "def train():\n    size = dist.get_world_size()\n    for batch in loader:\n        dist.all_reduce(loss)\n"
            "        loss /= size"
        ),
        "class Trainer:\n    def __init__(self, workers):\n        self.batch = 64 // workers\nTrainer(world_size)",
        (
            "class Trainer:\n    def __init__(self, config):\n        config.size = dist.get_world_size()\n"
            "        self.batch = 64 // config.size"
        ),
    ],
)
def test_a_number_that_was_made_of_the_first_number_of_workers_is_found(text: str) -> None:
    assert kinds(text) == [LineKind.NUMBER]


def test_a_first_rank_that_is_kept_in_a_loop_is_found() -> None:
    assert kinds("for batch in loader:\n    first = rank == 0") == [LineKind.FIRST]
    assert kinds("master = not rank") == kinds("if not rank:\n    save()") == [LineKind.FIRST]


def test_files_by_rank_and_a_kept_first_rank_are_found() -> None:
    found = reading(
        'torch.save(state, f"state-{rank}.pt")\nlog = open(f"{rank}.log", "w")\nmaster = rank == 0\n'
        'path = os.path.join("out", f"{rank}")\nlogger.addHandler(logging.FileHandler(path))\n'
    ).findings
    assert [one.kind for one in found] == [LineKind.FILE, LineKind.FILE, LineKind.FIRST, LineKind.FILE]
    assert str(found[2]).startswith("train.py:10: `master = rank == 0` keeps whether it has rank 0: ")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dist.send(one, 1)", "no messages from one worker to another"),
        ("push(one, 1)", "no messages from one worker to another"),
        ("torch.distributed.all_to_all(a, b)", "take broadcast or all_gather"),
        ("group = dist.new_group([0])", "one group"),
        ("group = dist.new_group(ranks=[0, 1], backend='gloo')", "one group"),
        ("with model.join():\n    pass", "leave it away"),
        ("from torch.distributed.algorithms.join import Join\nwith Join([model]):\n    pass", "leave it away"),
        ("mp.spawn(main, nprocs=2)", "as torchrun wants it"),
        ("model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)", "leave it away"),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)", "holds the whole model"),
        ("from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))", "one group"),
    ],
)
def test_what_is_refused_where_it_is_reached_is_named_with_its_remedy(text: str, remedy: str) -> None:
    (finding,) = reading(text).of(LineKind.REFUSED)
    assert remedy in finding.remedy


def test_a_rank_is_followed_into_the_scripts_own_modules() -> None:
    assert kinds("cut(data, rank)", "def cut(data, number):\n    return data[number::2]") == [LineKind.SHARE]
    assert kinds("def begin():\n    global me\n    me = rank\nnumber = me\nmine = data[number::2]") == [LineKind.SHARE]
    assert kinds("config.number = rank", "def cut(data, config):\n    return data[config.number :: 2]") == [
        LineKind.SHARE
    ]


def test_of_what_is_done_where_a_kept_rank_is_0_the_first_line_is_told() -> None:
    text = "if rank == 0:\n    save()\nfor batch in loader:\n    if rank == 0 and batch:\n        save()"
    found = reading(text).findings
    assert [(one.line, one.kind) for one in found] == [(8, LineKind.FIRST)]


def test_variables_that_a_script_makes_of_its_rank_are_known() -> None:
    text = "pos = rank * 16\npos += 16 * world_size\nlocal = int(os.environ['LOCAL_RANK'])\nstep = 0"
    assert Kept([SourceFile("train.py", BEGINS + text)]).made_of_rank() == {"rank", "pos", "local"}


def test_a_long_expression_is_told_in_part() -> None:
    (finding,) = reading(f"rate = {' + '.join(f'part_{number}' for number in range(40))} * world_size").findings
    assert len(finding.text) == 80 and finding.text.endswith("...")


@pytest.mark.parametrize(
    ("text", "adds_up"),
    [
        ("for at, batch in enumerate(loader):\n    if (at + 1) % 4 == 0:\n        optimizer.step()", True),
        ("with model.no_sync():\n    pass", True),
        ("scaler(loss, optimizer, update_grad=(at + 1) % args.update_freq == 0)", True),
        ("loss = loss / args.gradient_accumulation_steps", True),
        ("for batch in loader:\n    optimizer.step()\n    if at % 10 == 0:\n        print(at)", False),
        ("if epoch % 10 == 0:\n    save()\nfor batch in loader:\n    optimizer.step()", False),
    ],
)
def test_a_script_that_may_make_one_update_of_several_batches_is_known(text: str, adds_up: bool) -> None:
    assert reading(text).adds_up is adds_up


def test_a_script_is_read_with_the_modules_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "train.py").write_text(
        "import os\nimport package.models\nfrom data import load\nfrom broken import no\n"
    )
    (tmp_path / "data.py").write_text("from package import train\nimport train")
    (tmp_path / "broken.py").write_text("def")
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("from . import layers\nfrom .layers import Layer")
    (package / "layers.py").write_text("from ..package.models import x")
    found = [one.name for one in script_files(tmp_path / "train.py", tmp_path)]
    assert found[0] == "train.py" and sorted(found[1:]) == [
        "data.py",
        "package/__init__.py",
        "package/layers.py",
        "package/models.py",
    ]
    assert module_file("package.models", tmp_path) == package / "models.py"
    assert module_file("os", tmp_path) is None


def test_a_script_that_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\nif x\n")
    with pytest.raises(UsageError, match=r"train\.py:2: this is no Python"):
        script_files(tmp_path / "train.py", tmp_path)
