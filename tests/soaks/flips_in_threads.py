"""Single flipped bits on one of three workers that are threads of one process: how many are noticed, and who is named.

    python -m tests.soaks.flips_in_threads [--flips 200] [--kinds weight gradient moment] [--steps 10000] [--share 0.01]
        [--within 100] [--every 100] [--virtual 8] [--seed 0] [--json]

The workers train a small model with AdamW by edl's own sums, trials of parts and digests of states, over a ring of
threads. `tests.soaks.flipped_bits` does it in a real job, which takes half a minute for each flip. A flip is noticed if
a worker is named within so many steps; it is absorbed if all states are equal at the end of these, as where rounding
has made it good: then nothing is left that could be noticed. Goals: at least 99 % of all others noticed, always the
right one, none named in `--steps` steps without a flip. Exit code 1 unless so.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from edl.core.worker.compute_check import ComputeVerdict, recomputed, rounds
from edl.core.worker.digest import leaves
from edl.core.worker.divergence_finder import difference, is_corrupt, next_check
from edl.errors import EdlError, RingBroken
from edl.protocol.data_nouns import held_by
from edl.torch.part_sums import TorchPartSums
from edl.torch.torch_fingerprints import fingerprints
from edl.torch.torch_tensors import TorchTensors
from edl.trainer.recomputed_parts import StepTrial
from edl.trainer.virtual_steps import PartOfStep, StepPlace, VirtualParts, VirtualSteps

WORKERS = 3
MICRO = 4
SAMPLES = 4096


class ThreadRing:
    """A ring of threads, which meet in each collective."""

    size = WORKERS

    def __init__(self) -> None:
        self._barrier = threading.Barrier(WORKERS, timeout=60)
        self._here: list[Any] = [None] * WORKERS
        self.rank = threading.local()

    def all(self, mine: Any) -> list[Any]:
        self._here[self.rank.value] = mine
        self._barrier.wait()
        found = list(self._here)
        self._barrier.wait()
        return found

    def sum_begun(self, tensor: torch.Tensor, _: str) -> Callable[[], object]:
        tensor.copy_(sum(self.all(tensor.clone())))
        return lambda: tensor

    def largest(self, values: Sequence[int]) -> list[int]:
        return [max(one) for one in zip(*self.all(list(values)), strict=True)]

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, RingBroken)


class Named(EdlError):
    def __init__(self, ranks: Sequence[int], by: str) -> None:
        super().__init__(by)
        self.ranks, self.by = tuple(ranks), by


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 10))
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


class ThreadWorker:
    """One worker: what `edl.trainer` does for a script, by the same parts, as far as it is about bits."""

    def __init__(self, rank: int, ring: ThreadRing, options: argparse.Namespace) -> None:
        self.rank, self.ring, self.options = rank, ring, options
        self.net, self.optimizer = made()
        self.step = 1
        drawn = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 64, generator=drawn)
        self.targets = self.inputs[:, :10].argmax(1)
        self.wish: Callable[[str, Any], None] = lambda kind, worker: None
        seat: Any = SimpleNamespace(step=lambda: self.step, before_reduce=lambda: None, voided=False, void=_fail)
        reducers: Any = [SimpleNamespace(begin_parts=self.net.zero_grad, note_summed=lambda: None)]
        named = lambda: iter(self.net.named_parameters())  # noqa: E731
        sums: Any = TorchPartSums(seat, ring, reducers, named, set)  # type: ignore[arg-type]
        sums.begin_part = lambda seed: None  # which seeds the whole process
        sums.seed = lambda seed: None
        port: Any = SimpleNamespace(
            parts_of_step=self._parts, adding_up=contextlib.nullcontext, step_of_all_lives=lambda: self.step,
            tell_bits=lambda _: None, corrupt_since=0, keeps_digests=False, trial=self._trial, ids_of=self._ids,
        )  # fmt: skip
        self.steps = VirtualSteps(sums, TorchTensors(), port, options.virtual)

    def _ids(self, virtual: int) -> Any:
        return np.random.default_rng(self.step * 1000 + virtual).integers(SAMPLES, size=MICRO)

    def _parts(self, _: Any) -> VirtualParts:
        first, last = held_by(self.rank, WORKERS, self.options.virtual)
        parts = tuple(
            PartOfStep(virtual, (virtual - first) * MICRO, (virtual - first + 1) * MICRO, 1.0)
            for virtual in range(first, last)
        )
        virtual = self.options.virtual
        return VirtualParts(StepPlace(7, 0, self.step), virtual, parts, MICRO * (last - first), MICRO * virtual)

    def _trial(self, *_: Any) -> StepTrial:
        virtual, step = self.options.virtual, self.step
        due = rounds(7, step, virtual, WORKERS, self.options.share)
        found, besides = (recomputed(7, step, virtual, WORKERS, count) for count in (due, 1))
        return StepTrial(found, self.rank, virtual, self._judge, besides)

    def _judge(self, found: ComputeVerdict) -> None:
        raise Named(found.wrong or found.suspects, "part")

    def state(self) -> list[Any]:
        return fingerprints([*self.net.state_dict().items(), *leaves(self.optimizer.state_dict(), "optimizer")])

    def train(self, until: int) -> None:
        """Raises Named."""
        self.ring.rank.value = self.rank
        first, last = held_by(self.rank, WORKERS, self.options.virtual)
        while self.step <= until:
            self.wish("weight", self)
            self.wish("moment", self)
            batch = np.concatenate([self._ids(virtual) for virtual in range(first, last)])
            for part, share in self.steps.parts(batch, None):
                loss = nn.functional.cross_entropy(self.net(self.inputs[part]), self.targets[part])
                (loss * share).backward()
                self.wish("part", self)
            self.wish("gradient", self)
            self.optimizer.step()
            self.steps.begin_anew()
            if next_check(self.step - 1, self.options.every, WORKERS, 0) == self.step:
                self._compare()
            self.step += 1

    def _compare(self) -> None:
        found = difference(self.ring.all(self.state()))
        if found is not None:
            raise Named(found.ranks if is_corrupt(found, self.options.share) else range(WORKERS), "state")


def _fail(error: BaseException) -> None:
    raise error


class Flip:
    def __init__(self, kind: str, rank: int, at: int, source: random.Random) -> None:
        self.kind, self.rank, self.at, self.source = kind, rank, at, source
        self.told: dict[str, Any] = {}

    def __call__(self, kind: str, worker: ThreadWorker) -> None:
        if self.told or (kind, worker.rank, worker.step) != (self.kind, self.rank, self.at):
            return
        if kind == "moment":
            states = worker.optimizer.state.values()
            tensors = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        else:
            tensors = [one if kind == "weight" else one.grad for one in worker.net.parameters()]
        chosen = self.source.choices(tensors, weights=[one.numel() for one in tensors])[0]
        at, bit = self.source.randrange(chosen.numel()), self.source.randrange(32)
        with torch.no_grad():
            before = chosen.view(-1)[at].item()
            chosen.view(-1).view(torch.int32)[at] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
            self.told = {"bit": bit, "before": before, "after": chosen.view(-1)[at].item()}


def trained(workers: Sequence[ThreadWorker], until: int) -> Named | None:
    """Train up to a step. Return who was named before; all name the same. Raises what else a worker does."""
    found: list[BaseException | None] = [None] * WORKERS

    def work(rank: int) -> None:
        try:
            workers[rank].train(until)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    other = next((one for one in found if one is not None and not isinstance(one, Named)), None)
    if other is not None:
        raise other
    named = [one for one in found if isinstance(one, Named)]
    if len({(one.ranks, one.by) for one in named}) > 1 or len(named) not in {0, WORKERS}:
        raise RuntimeError(f"the workers do not agree: {[one.ranks for one in named]}")
    return named[0] if named else None


def alike(workers: Sequence[ThreadWorker], like: int) -> None:
    """Give all the state of one."""
    good = workers[like]
    for one in workers:
        if one is not good:
            one.net.load_state_dict(good.net.state_dict())
            one.optimizer.load_state_dict(copy.deepcopy(good.optimizer.state_dict()))
            one.steps.scales.load_state_dict(good.steps.scales.state_dict())
        one.step = good.step


def one_flip(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train some steps, flip a bit, and go on until a worker is named, or for so many steps."""
    source = random.Random(f"{options.seed} {number}")
    ring = ThreadRing()
    workers = [ThreadWorker(rank, ring, options) for rank in range(WORKERS)]
    kind, rank = options.kinds[number % len(options.kinds)], source.randrange(WORKERS)
    at = source.randrange(5, 5 + options.every)
    flip = Flip(kind, rank, at, source)
    for one in workers:
        one.wish = flip
    named = trained(workers, at + options.within - 1)
    states = {tuple(value.digest for value in one.state()) for one in workers}
    return {
        "number": number, "kind": kind, "rank": rank, "step": at, **flip.told,
        "named": None if named is None else named.ranks, "by": None if named is None else named.by,
        "steps": workers[rank].step - at + 1, "absorbed": named is None and len(states) == 1,
    }  # fmt: skip


def flips(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for number in range(options.flips):
        yield one_flip(number, options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=["weight", "gradient", "moment"])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--within", type=int, default=100)
    parser.add_argument("--every", type=int, default=100, help="steps from one comparison of states to the next")
    parser.add_argument("--virtual", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for one in flips(options):
        found.append(one)
        if options.json or one["named"] != (one["rank"],):
            print(json.dumps(one), flush=True)
    ring = ThreadRing()
    false = trained([ThreadWorker(rank, ring, options) for rank in range(WORKERS)], options.steps)
    for kind in options.kinds:
        of_kind = [one for one in found if one["kind"] == kind]
        seen = [one for one in of_kind if one["named"]]
        by_part, absorbed = sum(one["by"] == "part" for one in seen), sum(one["absorbed"] for one in of_kind)
        print(f"{kind}: {len(seen)} of {len(of_kind)} noticed, {by_part} by a part, {absorbed} absorbed")
    noticed = [one for one in found if one["named"]]
    right = sum(one["named"] == (one["rank"],) for one in noticed)
    left = sum(not one["absorbed"] for one in found)
    words = "none" if false is None else f"ranks {false.ranks}"
    print(f"{len(noticed)} of the {left} that were not absorbed are noticed, {right} with the right worker")
    print(f"{words} named in {options.steps} steps without a flip")
    return 0 if len(noticed) >= 0.99 * left and right == len(noticed) and false is None else 1


if __name__ == "__main__":
    sys.exit(main())
