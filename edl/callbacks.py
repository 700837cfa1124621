"""Callbacks that write a script's figures to MLflow or Weights & Biases: one run per job, whichever workers come and
go.

All workers make the callback and call it for each committed step (`docs/tracking.md`).

Owns: that only the worker of rank 0 writes, each step once, and that all workers, newcomers and later resumes included,
know of one run. Does not own: what a run looks like (the libraries' own names and environment variables say that).

The run's name travels as a value of `edl.register`: the first ring gives all workers the name that rank 0 has made,
newcomers get it with the state, and a checkpoint holds it. A step is written once the next one is committed: the worker
that has applied a step may die with it, and the others then make that step once more.

Only one thread calls the library. A server that stalls, or that is unreachable and is called again and again, holds up
no training: while `MOST` steps wait to be written, later steps are left out.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from typing import Any, Final, NamedTuple, Protocol

from edl import ownership
from edl.errors import ConfigError, UsageError

STEP: Final = "job/step"  # counted over all lives of the job; the step of Weights & Biases itself counts calls
JOB: Final = "edl.job"
RUN: Final = "edl.run"
MOST: Final = 256  # steps that wait to be written; later ones are left out
END_S: Final = 30.0  # at the script's end, for the figures that still wait

logger = logging.getLogger("edl")


class ScriptSeat(Protocol):
    """The functions of `edl.torch` or `edl.tensorflow` that a callback uses.

    >>> seat: ScriptSeat = edl  # the module is one
    >>> seat.rank()
    0
    """

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def step(self) -> int: ...
    def resumed(self) -> Any: ...
    def register(self, **values: Any) -> Any: ...


class FiguresOfStep(NamedTuple):
    """The figures of one step, as they are written to a run.

    >>> FiguresOfStep(step=7, ts=0.0, figures={"loss": 0.3}).figures["loss"]
    0.3
    """

    step: int
    ts: float
    figures: dict[str, float]


class RunOfJob:
    """Base class of both callbacks. Call it once for each committed step, on all workers.

    >>> issubclass(MlflowCallback, RunOfJob) and issubclass(WandbCallback, RunOfJob)
    True
    """

    kind = ""

    def __init__(self, edl: ScriptSeat, every: int) -> None:
        if every < 1:
            raise UsageError(f"{type(self).__name__}(every={every}): must be 1 or more")
        self._edl, self._every = edl, every
        self._name = f"edl_run_{self.kind}"
        self._shared = edl.register(**{self._name: secrets.token_hex(8)})
        self._next: FiguresOfStep | None = None
        self._writes = False  # something was given to the thread since this worker has rank 0
        self._left = threading.Event()  # set once all figures are written that this worker took while it had rank 0
        self._left.set()
        self._waiting: queue.SimpleQueue[FiguresOfStep | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told = -1  # the newest step that the run has; only the thread uses it
        self._open = False  # only the thread uses it
        self._failed = False
        ownership.at_exit(self.close)

    @property
    def job(self) -> str:
        return os.environ.get("EDL_JOB") or "edl"

    @property
    def run(self) -> str:
        """The name of the run, equal on all workers and in all lives of the job."""
        return str(getattr(self._shared, self._name))

    def __call__(self, **figures: float) -> None:
        """Take the figures of the step that was just committed. The call costs nothing on other ranks, nor in steps
        that are not written.
        """
        if self._edl.rank() != 0:
            self._next = None
            self._leave()
            return
        self._write()
        origin = self._edl.resumed()
        step = self._edl.step() - 1 + (0 if origin is None else origin.step)
        if step % self._every == 0:
            given = {"size": float(self._edl.size()), **{name: float(one) for name, one in figures.items()}}
            self._next = FiguresOfStep(step, time.time(), given)
            if self._thread is None:  # not in `close`: from Python 3.12 on, a process that ends can start no thread
                self._thread = threading.Thread(target=self._serve, daemon=True, name=f"edl-{self.kind}")
                self._thread.start()

    def close(self) -> None:
        """Write the figures that still wait, for up to `END_S`. It is called automatically at the script's end."""
        self._write()
        self._leave()
        if not self._left.wait(END_S):
            self._left.set()  # a script that has called `close` must not wait again at its end
            self._warn(f"not written after {END_S:g} s")

    def _write(self) -> None:
        if self._next is None:
            return
        given, self._next = self._next, None
        self._writes = True
        if self._waiting.qsize() < MOST:
            self._waiting.put(given)
        else:
            self._warn(f"{MOST} steps wait to be written")

    def _leave(self) -> None:
        """End this worker's part of the run: another worker has rank 0 now, and goes on with the run."""
        if self._writes:
            self._writes, self._left = False, threading.Event()
            self._waiting.put(self._left)

    def _warn(self, reason: object) -> None:
        """Warn once per process; the job trains on."""
        if not self._failed:
            self._failed = True
            logger.warning("%s: figures are missing there: %s", type(self).__name__, reason)

    # ------------------------------------------------------------------------------------------------- in the thread

    def _serve(self) -> None:
        while True:
            one = self._waiting.get()
            try:
                self._end_part() if isinstance(one, threading.Event) else self._take(one)
            except Exception as error:  # noqa: BLE001 - a library or server may raise anything: later steps are tried
                self._warn(error)
            finally:
                if isinstance(one, threading.Event):
                    one.set()

    def _take(self, given: FiguresOfStep) -> None:
        if not self._open:
            self._told = self._begin()
            self._open = True
        if given.step > self._told:  # else an earlier life of the job has written this step
            self._told = given.step
            self._log(given)

    def _end_part(self) -> None:
        if self._open:
            self._open = False
            self._end()

    def _begin(self) -> int:
        """Open the run. Return the newest step that the run has, or -1."""
        raise NotImplementedError

    def _log(self, given: FiguresOfStep) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class MlflowCallback(RunOfJob):
    """Write figures to MLflow, at the server that MLflow's own variables, such as MLFLOW_TRACKING_URI, name.

    >>> callback = MlflowCallback(edl, tracking_uri="file:runs")
    >>> callback(loss=0.3)  # after each committed step, on all workers
    """

    kind = "mlflow"

    def __init__(
        self, edl: ScriptSeat, *, every: int = 10, experiment: str | None = None, tracking_uri: str | None = None
    ) -> None:
        """Configure the callback.

        `every` is the number of steps from one entry to the next. `experiment` is the experiment's name (default:
        MLFLOW_EXPERIMENT_NAME, else MLflow's default). `tracking_uri` replaces MLFLOW_TRACKING_URI.
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

    def _log(self, given: FiguresOfStep) -> None:
        """Write one entry after the other, because MLflow's own threads lose some entries when the
        store is a folder.
        """
        at_ms = int(given.ts * 1000)
        self._client.log_batch(
            self._id, [self._metric(name, value, at_ms, given.step) for name, value in given.figures.items()]
        )

    def _end(self) -> None:
        self._client.update_run(self._id, status="FINISHED")


class WandbCallback(RunOfJob):
    """Write figures to Weights & Biases, as its own variables, such as WANDB_PROJECT and WANDB_MODE, say.

    >>> callback = WandbCallback(edl, project="mnist", mode="offline")
    >>> callback(loss=0.3)  # after each committed step, on all workers
    """

    kind = "wandb"

    def __init__(self, edl: ScriptSeat, *, every: int = 10, **init: Any) -> None:
        """Configure the callback. `every` is the number of steps from one entry to the next; `init` holds more
        arguments of `wandb.init`, such as `project`.
        """
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(f"WandbCallback needs {error.name}: pip install 'horovod-edl[wandb]'") from None
        super().__init__(edl, every)
        self._wandb: Any = wandb
        self._init = init
        self._run: Any = None

    def _begin(self) -> int:
        """Open or resume the run whose id is `self.run`. Offline, each worker has a folder of its own for that run, and
        `wandb sync` merges them.
        """
        known = {"id": self.run, "name": self.job, "resume": "allow", "config": {JOB: self.job}}
        self._run = self._wandb.init(**{**known, **self._init})
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return int(self._run.summary.get(STEP, -1))

    def _log(self, given: FiguresOfStep) -> None:
        self._run.log({STEP: given.step, **given.figures})

    def _end(self) -> None:
        self._run.finish()
