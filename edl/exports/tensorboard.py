"""A job's curves and events as TensorBoard reads them: DIR/JOB, and DIR/JOB/events for the text.

Owns: the form of the files. Does not own: what is written (`edl.exports.curves`, `edl.exports.curves`).

The record writer and the messages are tensorboard's own. TensorFlow is not imported, as tensorboard's writer of whole
files would do if it could. Each part that may void earlier steps is a file of its own, because TensorBoard reads the
files of a folder one after the other.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from edl.events import details_of
from edl.exports.curves import Anew, Item, Numbered, StepRow
from edl.facts import told

TEXT = "job/events"
_numbers = itertools.count()  # in the files' names: TensorBoard reads files in the order of their names
COUNT = "events.count"  # file with the number of events that earlier lines have exported: numbers go on


class EventFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None
        self._records: Any = None

    def begin(self, step: int, ts: float) -> None:
        """Begin another file. Values of `step` and later steps in the files before are void."""
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{next(_numbers):04d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (self._folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self.write(event_pb2.Event(wall_time=ts, file_version="brain.Event:2"))
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self.write(event_pb2.Event(wall_time=ts, step=step, session_log=session))

    def write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardFiles:
    def __init__(self, folder: Path) -> None:
        self._curves = EventFiles(folder)
        self._story = EventFiles(folder / "events")
        self._count = folder / "events" / COUNT
        self._told_before = int(self._count.read_text()) if self._count.exists() else 0
        self._telling = False

    def take(self, items: Iterable[Item], events: Iterable[Numbered], count: int) -> None:
        """Write items and events. `count` is the number of all events so far, exported here or not. Raises OSError."""
        for item in items:
            match item:
                case Anew(step, ts):
                    self._curves.begin(step, ts)
                case StepRow(step, ts, values):
                    found = [summary_pb2.Summary.Value(tag=name, simple_value=one) for name, one in values.items()]
                    self._curves.write(
                        event_pb2.Event(wall_time=ts, step=step, summary=summary_pb2.Summary(value=found))
                    )
        self._curves.flush()
        self._tell(events, count)

    def _tell(self, events: Iterable[Numbered], count: int) -> None:
        last = 0
        for event in events:
            last = self._told_before + event.number
            if not self._telling:
                self._telling = True
                self._story.begin(last, event.flat["ts"])
            value = _text(TEXT, _words(event.flat))
            summary = summary_pb2.Summary(value=[value])
            self._story.write(event_pb2.Event(wall_time=event.flat["ts"], step=last, summary=summary))
        if last:
            self._story.flush()
            draft = self._count.with_suffix(f".{os.getpid()}")
            draft.write_text(str(self._told_before + count))
            draft.replace(self._count)

    def close(self) -> None:
        self._curves.close()
        self._story.close()


def _words(flat: dict[str, Any]) -> str:
    details = details_of(flat)
    said = told(str(flat["kind"]), details)
    return f"**{flat['kind']}** at step {flat['step']}, generation {flat['generation']}{f': {said}' if said else ''}"


def _text(tag: str, text: str) -> Any:
    """Make a value in the form of TensorBoard's text page."""
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin, data_class=summary_pb2.DATA_CLASS_TENSOR)
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
