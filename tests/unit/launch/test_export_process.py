"""Whether other tools can be told of a job, said before it begins; and the end of what tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.config import Settings
from edl.errors import ConfigError
from edl.launch import export_process
from edl.launch.job_records import Folder

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


def test_a_folder_that_cannot_be_made_or_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--tensorboard: cannot make"):
        export_process.check(Settings(tensorboard=tmp_path / "file" / "x"))
    with pytest.raises(ConfigError, match="file is a file: name a folder"):
        export_process.check(Settings(tensorboard=tmp_path / "file"))
    export_process.check(Settings(tensorboard=tmp_path / "new" / "x"))
    assert (tmp_path / "new" / "x").is_dir()
    export_process.check(Settings())


def test_without_tensorboard_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_process, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'horovod-edl\[tensorboard\]'"):
        export_process.check(Settings(tensorboard=tmp_path / "x"))
    assert not (tmp_path / "x").exists()
    assert "pip install 'horovod-edl[opentelemetry]'" in export_process.why_no_spans({})


def test_spans_are_sent_where_opentelemetrys_own_variables_say_so() -> None:
    assert not export_process.spans_wanted({})
    assert not export_process.spans_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": ""})
    assert export_process.spans_wanted(ENDPOINT)
    assert export_process.spans_wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"})
    assert not export_process.spans_wanted({**ENDPOINT, "OTEL_SDK_DISABLED": "True"})
    assert not export_process.spans_wanted({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"})
    assert export_process.why_no_spans(ENDPOINT) == ""
    assert "the protocol asked for is grpc" in export_process.why_no_spans({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


async def test_where_nothing_is_asked_for_nothing_is_started(tmp_path: Path) -> None:
    said: list[str] = []
    await export_process.start(Settings(), Folder(tmp_path), "mark", said.append).end()
    assert said == []
    assert not (tmp_path / "logs").exists()


async def test_what_could_not_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    record = Folder(tmp_path / "jobs" / "j")
    record.logs.mkdir(parents=True)
    board = tmp_path / "board"
    board.write_text("no folder")
    record.append_figures(b"[1.0,10,80,2]\n")  # of a job that is over: there is no record of it that lives
    said: list[str] = []
    await export_process.Exports(record, "mark", ["--tensorboard", str(board)], said.append).end()
    assert len(said) == 1
    assert "were not told of all of the job" in said[0]
    assert "Not a directory" in said[0] or "File exists" in said[0], said
