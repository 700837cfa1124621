"""A script's figures in MLflow or Weights & Biases: one run of the job's, whichever workers come and go.

As `docs/tracking.md` has it: a callback is made by all workers, and called by all for each committed step.

Owns: that one worker writes, the one of rank 0, each step once; and that all of them, newcomers and later lives of the
job, know of one run. Does not own: what a run looks like (the libraries' own names and environment variables say that).

A run's name in the job travels by `edl.register`: the first ring gives all workers that of its rank 0, newcomers get
it with the state, and a checkpoint has it. A step is written once another one is committed after it: the worker that
has applied a step may die with it, and the others then make the step once more.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import secrets
import threading
import time
from typing import Any, Final, Protocol

from edl.errors import ConfigError, UsageError

STEP: Final = "job/step"  # of all lives, in Weights & Biases: its own step counts calls
JOB: Final = "edl.job"
RUN: Final = "edl.run"
MOST: Final = 256  # entries under way to MLflow at once

logger = logging.getLogger("edl")


class ScriptSeat(Protocol):
    """What is used of `edl.torch` or `edl.tensorflow`."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def step(self) -> int: ...
    def resumed(self) -> Any: ...
    def register(self, **values: Any) -> Any: ...


class RunOfJob:
    """What both have in common. Call it once for each committed step, on all workers."""

    kind = ""

    def __init__(self, edl: ScriptSeat, every: int) -> None:
        if every < 1:
            raise UsageError(f"{type(self).__name__}(every={every}): must be 1 or more")
        self._edl, self._every = edl, every
        self._name = f"edl_run_{self.kind}"
        self._shared = edl.register(**{self._name: secrets.token_hex(8)})
        self._next: tuple[int, dict[str, float]] | None = None
        self._told = -1  # the newest step that the run has
        self._open = False
        self._failed = False
        atexit.register(self.close)

    @property
    def job(self) -> str:
        return os.environ.get("EDL_JOB") or "edl"

    @property
    def run(self) -> str:
        """The name of the run, the same on all workers and in all lives of the job."""
        return str(getattr(self._shared, self._name))

    def __call__(self, **figures: float) -> None:
        """Figures of the step that was just committed. Costs nothing on other ranks, and in other steps."""
        if self._edl.rank() != 0:
            self._leave()
            return
        self._write()
        origin = self._edl.resumed()
        step = self._edl.step() - 1 + (0 if origin is None else origin.step)
        if step % self._every == 0:
            self._next = step, {"size": float(self._edl.size()), **{name: float(one) for name, one in figures.items()}}

    def close(self) -> None:
        """Write what is left. At the script's end it happens by itself."""
        self._write()
        self._leave()

    def _write(self) -> None:
        if self._next is None:
            return
        (step, figures), self._next = self._next, None
        if not self._open:
            try:
                self._told = self._begin()
            except Exception as error:  # noqa: BLE001 - whatever a server raises: another rank 0 must not die of it, too
                self._warn(error)
                return
            self._open = True
        if step > self._told:  # else a life before has told it
            self._told = step
            try:
                self._log(step, figures)
            except Exception as error:  # noqa: BLE001 - as above
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Once. The job trains on."""
        if not self._failed:
            self._failed = True
            logger.warning("%s: figures are missing there: %s", type(self).__name__, error)

    def _leave(self) -> None:
        """Another worker has rank 0 now: it goes on."""
        self._next = None
        if self._open:
            self._open = False
            try:
                self._end()
            except Exception as error:  # noqa: BLE001 - as above: it comes between two steps
                self._warn(error)

    def _begin(self) -> int:
        """Open the run. The newest step that it has, -1: none."""
        raise NotImplementedError

    def _log(self, step: int, figures: dict[str, float]) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        """Until what was logged is written."""


class MlflowCallback(RunOfJob):
    """To MLflow: where its own variables, such as MLFLOW_TRACKING_URI, say."""

    kind = "mlflow"

    def __init__(
        self, edl: ScriptSeat, *, every: int = 10, experiment: str | None = None, tracking_uri: str | None = None
    ) -> None:
        """`every`: steps from one entry to the next. `experiment`: its name (default: MLFLOW_EXPERIMENT_NAME, else
        MLflow's default). `tracking_uri`: instead of MLFLOW_TRACKING_URI.
        """
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError(f"MlflowCallback needs {error.name}: pip install 'horovod-edl[mlflow]'") from None
        super().__init__(edl, every)
        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._id = ""
        self._entries: queue.Queue[tuple[str, list[Any]]] = queue.Queue(MOST)  # a store that stalls holds up rank 0
        threading.Thread(target=self._send, daemon=True, name="edl-mlflow").start()

    def _send(self) -> None:
        while True:
            run, metrics = self._entries.get()
            try:
                self._client.log_batch(run, metrics)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the job trains on
                self._warn(error)
            finally:
                self._entries.task_done()

    def _flush(self) -> None:
        self._entries.join()

    def _begin(self) -> int:
        known = self._client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known is not None else self._client.create_experiment(self._experiment)
        found = self._client.search_runs([place], f"tags.`{RUN}` = '{self.run}'")
        if not found:
            created = self._client.create_run(place, tags={JOB: self.job, RUN: self.run}, run_name=self.job)
            self._id = created.info.run_id
            return -1
        self._id = found[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")
        names = found[0].data.metrics
        return max((one.step for name in names for one in self._client.get_metric_history(self._id, name)), default=-1)

    def _log(self, step: int, figures: dict[str, float]) -> None:
        """By a thread, one entry after the other: MLflow's own threads lose some of them in a store of files."""
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in figures.items()]
        self._entries.put((self._id, metrics))

    def _end(self) -> None:
        self._flush()
        self._client.update_run(self._id, status="FINISHED")


class WandbCallback(RunOfJob):
    """To Weights & Biases: as its own variables, such as WANDB_PROJECT and WANDB_MODE, say."""

    kind = "wandb"

    def __init__(self, edl: ScriptSeat, *, every: int = 10, **init: Any) -> None:
        """`every`: steps from one entry to the next. `init`: more arguments of `wandb.init`, such as `project`."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(f"WandbCallback needs {error.name}: pip install 'horovod-edl[wandb]'") from None
        super().__init__(edl, every)
        self._wandb: Any = wandb
        self._init = init
        self._run: Any = None

    def _begin(self) -> int:
        """A worker that comes later goes on with the run of the same id; offline it has a folder of its own, and
        `wandb sync` brings them together.
        """
        known = {"id": self.run, "name": self.job, "resume": "allow", "config": {JOB: self.job}}
        self._run = self._wandb.init(**{**known, **self._init})
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return int(self._run.summary.get(STEP, -1))

    def _log(self, step: int, figures: dict[str, float]) -> None:
        self._run.log({STEP: step, **figures})

    def _end(self) -> None:
        self._run.finish()
