"""Run a script of torchrun's as a worker of a job: `python -m edl.torchrun [-m] SCRIPT ARGS...`.

Owns: that everything stands in its place before the script begins. Does not own: what each part does.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import edl.torch as elastic
from edl.errors import ConfigError, UsageError
from edl.torch.buffers import OutsideGraphs
from edl.torch.loop_collectives import LoopCollectives
from edl.torch.torch_process import framework, trainer
from edl.torch.torch_reducer import USUAL
from edl.torchrun import parallel_model
from edl.torchrun.group_names import GroupNames
from edl.torchrun.parallel_model import DistributedDataParallel, GradientPauses
from edl.torchrun.range_loops import ScriptRange, makes_batches
from edl.torchrun.refusals import ACCUMULATE, SPAWN, TRIAL, TrialResult
from edl.torchrun.script_files import give_names, module_file, script_files
from edl.torchrun.script_numbers import NUMBERS, ScriptNumbers
from edl.torchrun.script_passes import Loaders, ScriptSteps
from edl.torchrun.script_reading import folder_of, made_of_rank
from edl.torchrun.script_trial import ScriptTrial
from edl.torchrun.training_objects import OUTSIDE, TrainingObjects, let_schedules_end
from edl.torchrun.worker_group import WorkerGroup, set_environment

logger = logging.getLogger("edl")


class ScriptOfTorchrun:
    """The stand-ins for torch's names in this process."""

    def __init__(self) -> None:
        self._words = LoopCollectives(
            framework, trainer, lambda: trainer.evaluate_shared if self.loaders.between else None
        )
        begun = os.environ.get("EDL_NP", "")
        self.group = WorkerGroup(
            trainer, self._words, begun=int(begun) if begun.isdecimal() else 0, place=lambda: framework.ring.place
        )
        self.objects = TrainingObjects(self._wrap, lambda name, value: trainer.register(**{name: value}))
        self.loaders = Loaders(self.group, self, _accumulated())
        self.own = ScriptSteps()
        self.pauses = GradientPauses()
        self.travels: dict[str, Any] = {}  # to newcomers, besides what training is made of
        self._told_rank = False
        self.makes_batches = False  # the script does, in loops over a range
        self.names = GroupNames(self.group, self.finish)

    def put(self) -> None:
        self.names.put()
        self.objects.watch()
        let_schedules_end()
        self.loaders.put()
        parallel_model.put()
        DistributedDataParallel.began = staticmethod(OutsideGraphs(self._began))

    def variables(self) -> dict[str, Any]:
        """Return names that stand beside those of Python in the script's module."""
        return {"enumerate": self.loaders.counted, **({"range": ScriptRange} if self.makes_batches else {})}

    def finish(self) -> None:
        """End the newest step of a script that makes its batches itself."""
        if self.loaders.passes is None:
            self.own.finish()

    def trains(self) -> bool:
        return any(model.training for model in DistributedDataParallel.known)

    def adds_up(self) -> bool:
        return self.pauses.only_add_up or not self.objects.has_scaler

    def kept(self) -> Callable[[], None]:
        return self.objects.kept()

    def end_pass(self) -> None:
        """Give all workers the buffers of rank 0: DistributedDataParallel does so in an evaluation's forward passes."""
        for model in DistributedDataParallel.known:
            if model.broadcast_buffers:
                self._words.share_buffers(model.module)

    def _wrap(self, optimizer: Any, model: torch.nn.Module) -> None:
        framework.wrap(trainer, optimizer, model, None, USUAL)

    def _began(self, model: DistributedDataParallel) -> None:
        """Note that a forward pass in training begins."""
        self.begin_pass()
        if self.loaders.passes is None:
            self.own.begin()
            self.take_numbers()
        self.pauses.follow(model)

    def begin_pass(self) -> None:
        """Give edl what the script has made by now."""
        wrapped = [one.module for one in DistributedDataParallel.known]
        self.objects.take(wrapped)
        if self.travels:
            return
        variables = vars(sys.modules["__main__"])
        is_late = not self.group.joined or trainer.step() > 1
        self.travels[NUMBERS] = ScriptNumbers(variables, made_of_rank(variables.get("__file__")), is_late=is_late)
        if outside := self.objects.outside(wrapped):
            self.travels[OUTSIDE] = outside
        self.registered = trainer.register(**self.travels)
        # Also so that what a newcomer gets so comes before its first mini-batch, and not beside it.
        trainer.on_resize(lambda _old, _new: self._tell_rank())

    def take_numbers(self) -> None:
        """Give the script what has come from another worker: to a newcomer, or where a mini-batch was void here."""
        if self.group.alone:
            return
        for name, mine in self.travels.items():
            found = getattr(self.registered, name)
            if found is not mine:
                if trainer.step() > 1:  # not at the job's beginning, when each has its own
                    mine.take(found)
                setattr(self.registered, name, mine)

    def _tell_rank(self) -> None:
        """Say once that this worker has rank 0 now, if its script may have read another one at its beginning."""
        if not self._told_rank and trainer.rank() == 0 and os.environ["RANK"] != "0":
            self._told_rank = True
            logger.warning(
                "this worker has rank 0 now: torch.distributed.get_rank() says so, and RANK=%s, which it began with, "
                "does not; a script that writes its files by RANK writes none from here on",
                os.environ["RANK"],
            )


def _makes_batches(name: str, *, module: bool) -> bool:
    folder = folder_of(Path(name), module=module).resolve()
    path = module_file(name, folder) if module else Path(name)
    return path is not None and makes_batches(script_files(path, folder))


def _refuse_without_model(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if not DistributedDataParallel.known:
        raise UsageError(
            f"the script updates a model by {type(optimizer).__name__} without DistributedDataParallel, so nothing "
            "averages gradients over the workers: wrap the model, or run the script by itself"
        )


def _refuse_spawn(*_given: Any, **_named: Any) -> NoReturn:
    raise UsageError(SPAWN)


def _accumulated() -> int:
    """Return the batches of an update, as the command line says."""
    text = os.environ.get(ACCUMULATE) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{ACCUMULATE}={text}: must be a whole number of at least 1")
    return int(text)


def _line_of_script(error: UsageError) -> str:
    """Name the line of the script, or of a module beside it, that has led to `error`."""
    here = sys.path[0] + os.sep
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    lines = lines or [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(Path(sys.argv[0]).absolute())
    ]
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}: " if lines else ""


def main(argv: Sequence[str]) -> None:
    module = list(argv[:1]) == ["-m"]
    words = list(argv[1:] if module else argv)
    if not words:
        raise SystemExit("usage: python -m edl.torchrun [-m] SCRIPT ARGS...")
    if not module and not Path(words[0]).is_file():
        raise SystemExit(f"edl: there is no script {words[0]}")
    if trial := os.environ.pop(TRIAL, ""):
        _try_script(ScriptTrial(*map(int, trial.split())), words, module=module)
    elastic.init()
    script = ScriptOfTorchrun()
    try:
        _run_script(script, words, module=module)
    except UsageError as error:
        sys.exit(f"edl: {_line_of_script(error)}{error}")
    script.finish()
    if not trainer.committed and not trainer.rehearsing():
        sys.stderr.write("edl: the script has ended without a mini-batch\n")


def _try_script(script: ScriptTrial, words: Sequence[str], *, module: bool) -> NoReturn:
    try:
        _run_script(script, words, module=module)
    except UsageError as error:
        script.end(TrialResult(refused=f"{_line_of_script(error)}{error}"))
    except SystemExit as error:
        script.end(TrialResult(ended=True, failed=f"exit code {error.code}" if error.code else ""))
    except Exception as error:  # noqa: BLE001 - told to who asked for the trial
        script.end(TrialResult(failed=f"{type(error).__name__}: {error}".partition("\n")[0]))
    script.end(TrialResult(ended=True))


def _run_script(script: ScriptOfTorchrun | ScriptTrial, words: Sequence[str], *, module: bool) -> None:
    set_environment(script.group)
    script.put()
    register_optimizer_step_pre_hook(_refuse_without_model)
    for name in ("spawn", "start_processes"):
        setattr(torch.multiprocessing, name, _refuse_spawn)
    sys.argv[:] = words
    sys.path[0] = str(Path.cwd() if module else Path(words[0]).resolve().parent)
    if isinstance(script, ScriptOfTorchrun):
        script.makes_batches = _makes_batches(words[0], module=module)
    give_names(script.variables())
    if module:
        runpy.run_module(words[0], script.variables(), "__main__", alter_sys=True)
    else:
        runpy.run_path(str(Path(words[0]).absolute()), script.variables(), "__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
