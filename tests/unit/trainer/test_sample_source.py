"""How long a script waits for samples that only it could make come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import UsageError
from edl.trainer import sample_source as under_test
from edl.trainer.sample_source import SampleSource


class Waiting:
    """A worker whose leases never come, looked at once more `after` some seconds."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, after: float, *, committed: int, on_training_thread: bool
    ) -> None:
        now = iter([0.0, after, after])
        monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: next(now)))
        shell: Any = SimpleNamespace(
            machine=SimpleNamespace(step=committed, weight_is_due=False),
            is_training_thread=on_training_thread,
            step_timeout_s=60.0,
            stand_ins_due=False,
            while_waiting=lambda: None,
            while_pipeline_waits=lambda: None,
        )
        leases: Any = SimpleNamespace(
            forget_before=lambda step: None, offers=lambda step: False, wait_offered=self._wait_offered
        )
        resuming: Any = SimpleNamespace(begin_batch=lambda: None)
        self.looks = 0
        self._samples = SampleSource(shell, leases, SimpleNamespace(), resuming)  # type: ignore[arg-type]

    def _wait_offered(self, _step: int | None, _committed: Callable[[], int], goes_on: Callable[[], bool]) -> bool:
        for _ in range(2):
            assert goes_on()
            self.looks += 1
        return False

    def ask(self, step: int | None) -> bool:
        return self._samples.await_samples(step)


def test_a_script_that_has_taken_all_and_ended_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, 61.0, committed=4, on_training_thread=True)
    with pytest.raises(UsageError, match=r"has ended none since step 4: call edl.notify_batch_end\(\)"):
        waiting.ask(6)


@pytest.mark.parametrize(("step", "after"), [(5, 61.0), (None, 61.0), (6, 59.0)])
def test_who_waits_for_the_coming_step_or_not_for_long_goes_on(
    step: int | None, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, after, committed=4, on_training_thread=True)
    assert not waiting.ask(step)
    assert waiting.looks == 2


@pytest.mark.parametrize(("committed", "warnings"), [(0, 1), (4, 0)])
def test_a_pipeline_reads_ahead_and_warns_once_where_no_step_ever_ended(
    committed: int, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(monkeypatch, 61.0, committed=committed, on_training_thread=False)
    with caplog.at_level(logging.WARNING):
        assert not waiting.ask(committed + 2)
    assert sum("edl.KerasCallback()" in record.getMessage() for record in caplog.records) == warnings
