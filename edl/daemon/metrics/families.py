"""Compute the metrics of a scrape as values: a pure function of a daemon's state.

Owns: names, units and labels of all metrics. Does not own: the text that Prometheus reads
(`edl.daemon.metrics.exposition`), nor access to it (`edl.daemon.metrics.metrics_server`).

Labels have few values: the job, the ids of workers that are members now, and causes from closed lists. A counter is the
job's, from its record, so that it goes on growing under the next leader. A leader that does not know the ring's
progress yet, as it has only just taken over, leaves those lines out: a gap is no reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from edl.protocol.leader_messages import Observation
from edl.protocol.record import JobState, Status, WorkerStatus
from edl.protocol.tally import BADPUT, Growth, LossCause, Tally


class Type(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


Sample = tuple[dict[str, str], float]


class Family(msgspec.Struct, frozen=True):
    """A metric and its values. The name of a counter is without its `_total`."""

    name: str
    type: Type
    help: str
    samples: tuple[Sample, ...]


class DaemonSeen(msgspec.Struct, frozen=True):
    """A daemon's state, as its metrics show it."""

    job: str
    worker: str
    version: str  # of edl
    leads: bool
    observation: Observation
    refused: Mapping[str, int]


STATES: Final = tuple(JobState)
ACTIVITIES: Final = ("compute", "data", "wait")


def families(own: DaemonSeen, status: Status | None, wall: float) -> list[Family]:
    """`status`: of the job, if this daemon leads it. `wall`: now."""
    return [*of_daemon(own), *([] if status is None else of_job(status, wall))]


# ------------------------------------------------------------------------------------------------------- the daemon


def of_daemon(own: DaemonSeen) -> list[Family]:
    labels = {"job": own.job, "worker": own.worker}
    usage = own.observation.usage
    found = [
        _gauge(
            "edl_daemon_info", "Always 1; which version of edl serves this.", ({**labels, "version": own.version}, 1)
        ),
        _gauge("edl_daemon_leading", "1 where this daemon leads the job, and serves its metrics.", (labels, own.leads)),
        _gauge("edl_daemon_step", "Newest step that this worker has applied.", (labels, own.observation.step)),
        _gauge(
            "edl_daemon_generation",
            "Generation of the ring that this worker sits in, or failed to enter.",
            (labels, own.observation.generation),
        ),
        _counter(
            "edl_daemon_refused_messages",
            "Messages that this daemon has refused.",
            *(({**labels, "reason": reason}, count) for reason, count in sorted(own.refused.items())),
        ),
    ]
    if usage is None:
        return found
    return [
        *found,
        _counter("edl_daemon_trainer_cpu_seconds", "CPU time of the trainer.", (labels, usage.cpu_s)),
        _gauge("edl_daemon_trainer_memory_bytes", "Memory that the trainer holds.", (labels, usage.memory)),
    ]


# ---------------------------------------------------------------------------------------------------------- the job


def of_job(status: Status, wall: float) -> list[Family]:
    """Return the job's metrics, as its leader serves them."""
    job = {"job": status.job}
    tally = status.tally
    return [
        *_progress(status, job),
        *_size(status, job),
        *_changes(tally, job),
        *_time(tally, job),
        *_checkpoints(status, tally, job, wall),
        *_data(status, job),
        *_workers(status.workers, job),
        *_reported(status.workers, job),
    ]


def _progress(status: Status, job: dict[str, str]) -> list[Family]:
    stable, rate = status.stable, status.rate
    found = []
    if stable is not None:
        steps, samples = (job, status.base + stable.step), (job, stable.samples)
        found = [
            _counter("edl_job_steps", "Steps that all workers of the ring have applied, of all lives.", steps),
            _counter("edl_job_samples", "Samples trained by then.", samples),
        ]
    if rate is not None:
        found += [
            _gauge("edl_job_samples_per_second", "Throughput at the present size.", (job, rate.samples_s)),
            _gauge("edl_job_step_seconds", "Mean time of a step at the present size.", (job, rate.step_s)),
        ]
    found.append(_gauge("edl_job_epoch", "Pass over the data that is in progress.", (job, status.epoch)))
    return found


def _size(status: Status, job: dict[str, str]) -> list[Family]:
    states = (({**job, "state": state.value}, state is status.state) for state in STATES)
    return [
        _gauge("edl_job_state", "1 for the state that the job is in.", *states),
        _gauge("edl_job_size", "Workers of the ring that trains.", (job, status.size)),
        _gauge("edl_job_target_size", "Workers asked for.", (job, status.target)),
        _gauge("edl_job_members", "Workers known to the leader, newcomers among them.", (job, len(status.workers))),
        _gauge("edl_job_generation", "Number of the present ring.", (job, status.generation)),
        _gauge("edl_job_term", "Number of the present leader's reign.", (job, status.term)),
        _gauge("edl_job_start_time_seconds", "When the job began, in seconds since 1970.", (job, status.started)),
    ]


def _changes(tally: Tally, job: dict[str, str]) -> list[Family]:
    scalings = (({**job, "reason": one.value}, tally.scalings.get(one.value, 0)) for one in Growth)
    lost = (({**job, "cause": one.value}, tally.lost.get(one.value, 0)) for one in LossCause)
    return [
        _counter("edl_job_scalings", "Rings that took over from another one.", *scalings),
        _counter("edl_job_pause_seconds", "The longest pause of each of them, together.", (job, tally.pause_s)),
        _counter("edl_job_workers_lost", "Workers that are gone without leave.", *lost),
        _counter("edl_job_workers_unfit", "Workers that could be part of no ring.", (job, tally.unfit)),
        _counter("edl_job_batches_voided", "Mini-batches whose ring failed, for each worker.", (job, tally.voided)),
        _counter("edl_job_divergences", "Times that workers were found to differ.", (job, tally.diverged)),
        _counter("edl_job_decisions", "Decisions of the job's own policy.", (job, tally.decisions)),
    ]


def _time(tally: Tally, job: dict[str, str]) -> list[Family]:
    bad = (({**job, "cause": cause}, tally.bad_s.get(cause, 0.0)) for cause in BADPUT)
    return [
        _counter("edl_job_goodput_seconds", "Time in which the job has trained.", (job, tally.good_s)),
        _counter("edl_job_badput_seconds", "Time in which it has not, by what it was spent on.", *bad),
    ]


def _checkpoints(status: Status, tally: Tally, job: dict[str, str], wall: float) -> list[Family]:
    outcomes = (("durable", tally.checkpoints), ("failed", tally.checkpoints_failed))
    found = [
        _counter(
            "edl_job_checkpoints",
            "Checkpoints by what became of them.",
            *(({**job, "outcome": outcome}, count) for outcome, count in outcomes),
        ),
        _counter("edl_job_checkpoint_bytes", "Bytes of durable checkpoints.", (job, tally.checkpoint_bytes)),
        _counter(
            "edl_job_checkpoint_stall_seconds", "For so long they held up trainers.", (job, tally.checkpoint_stall_s)
        ),
    ]
    if tally.checkpointed_at:
        age = (job, max(0.0, wall - tally.checkpointed_at))
        found.append(_gauge("edl_job_checkpoint_age_seconds", "Since the newest became durable.", age))
    if status.saving is not None and status.saving.every_s:
        every = (job, status.saving.every_s)
        found.append(_gauge("edl_job_checkpoint_interval_seconds", "From one to the next, as it is planned.", every))
    return found


def _data(status: Status, job: dict[str, str]) -> list[Family]:
    data = status.data
    if data is None:
        return []
    parts = (("trained", data.trained), ("leased", data.leased), ("unassigned", data.unassigned))
    return [
        _gauge(
            "edl_job_epoch_samples",
            "Samples of the epoch in progress; each is in one of these.",
            *(({**job, "state": state}, count) for state, count in parts),
        ),
        _gauge("edl_job_lease_ahead_steps", "Steps leased beyond those that all have applied.", (job, data.ahead)),
        _gauge(
            "edl_job_samples_lost",
            "Samples of ended epochs that were not trained, by the ledger; edl data verify audits.",
            (job, data.lost),
        ),
        _gauge(
            "edl_job_samples_repeated",
            "Samples that are leased twice, or leased and unassigned, by the ledger; edl data verify audits.",
            (job, data.repeated),
        ),
    ]


def _workers(workers: Iterable[WorkerStatus], job: dict[str, str]) -> list[Family]:
    seconds: list[Sample] = []
    paces: list[Sample] = []
    processes: list[Sample] = []
    for worker in workers:
        labels = {**job, "worker": worker.id}
        if worker.usage is not None:
            spent = (worker.usage.computed_s, worker.usage.loaded_s, worker.usage.waited_s)
            seconds += [({**labels, "activity": name}, s) for name, s in zip(ACTIVITIES, spent, strict=True)]
        if worker.rank is not None:
            paces.append((labels, worker.pace))
        processes += [({**labels, "process": str(place)}, one.step) for place, one in enumerate(worker.processes)]
    return [
        _counter("edl_worker_seconds", "What the members' trainers spend their time on.", *seconds),
        _gauge("edl_worker_pace_ratio", "How fast each works, against the median of all.", *paces),
        _gauge("edl_worker_process_step", "Committed by each process of the workers that have several.", *processes),
    ]


def _reported(workers: Iterable[WorkerStatus], job: dict[str, str]) -> list[Family]:
    """Return the mean of each reported figure over the members, so that there is one line for each of at most 32
    names.
    """
    values: dict[str, list[float]] = {}
    for worker in workers:
        for name, value in (worker.usage.reported if worker.usage else {}).items():
            values.setdefault(name, []).append(value)
    means = (({**job, "name": name}, sum(found) / len(found)) for name, found in sorted(values.items()))
    return [_gauge("edl_job_reported", "What the script reports by edl.report(), the mean of all workers.", *means)]


def _gauge(name: str, text: str, *samples: Sample) -> Family:
    return Family(name, Type.GAUGE, text, samples)


def _counter(name: str, text: str, *samples: Sample) -> Family:
    return Family(name, Type.COUNTER, text, samples)
