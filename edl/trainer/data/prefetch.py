"""Reading the records of the coming steps on a thread of their own, while the present step is trained.

Owns: that thread, and what it has read ahead, which is bounded by what it was told to expect. Does not own: which
samples come next (`passes`), nor how they are read (`edl.sources`).

Records are found by the ids that they were read for. So a switch, a void mini-batch or a lease that came to nothing
can only make a reading useless, never wrong: what a step consumes follows from its leases (I7).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from edl.errors import DataError
from edl.sources.source_port import Source
from edl.trainer.data.sample_ids import Ids

LINGER_S = 2.0  # that the thread waits for more before it ends: a new one costs a tenth of a millisecond
END_S = 5.0  # that the end of the script waits for it


class _Wish:
    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.records: Future[list[Any]] = Future()


class ReadAhead:
    """Read for one generator. Only its own thread calls the source."""

    def __init__(self, source: Source, patience_s: float) -> None:
        self._source = source
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._expected: dict[bytes, _Wish] = {}
        self._waiting: deque[_Wish] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, ids: Ids) -> list[Any]:
        """Return the records of these samples, for the caller to keep. Raises DataError."""
        with self._changed:
            wish = self._expected.pop(ids.tobytes(), None)
            if wish is None:
                wish = _Wish(ids)
                self._waiting.appendleft(wish)
                self._wake()
        if not wait([wish.records], self._patience_s).done:
            raise DataError(
                f"the records of a mini-batch were not read within {self._patience_s:g} s, two step time-outs: "
                "the storage hangs, or it is too slow for such batches (--step-timeout)"
            )
        return wish.records.result()

    def expect(self, coming: Sequence[Ids]) -> None:
        """Read ahead what `take` will most likely ask for, in order, and forget all earlier expectations."""
        with self._changed:
            old, self._expected = self._expected, {}
            for ids in coming:
                key = ids.tobytes()
                if key in self._expected:
                    continue
                wish = old.pop(key, None)
                if wish is None:
                    wish = _Wish(ids)
                    self._waiting.append(wish)
                self._expected[key] = wish
            forgotten = {*old.values()}  # what a thread waits for is not among them
            self._waiting = deque(wish for wish in self._waiting if wish not in forgotten)
            if self._waiting:
                self._wake()

    def close(self) -> None:
        """Read no more. Wait for what is being read: a thread inside a library must not see the interpreter end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(END_S)

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._read, daemon=True, name="edl-read")
            self._thread.start()
        self._changed.notify_all()

    def _read(self) -> None:
        while (wish := self._next()) is not None:
            try:
                records = self._source.read(wish.ids)
            except BaseException as error:  # noqa: BLE001 - it is raised where the records are waited for
                wish.records.set_exception(error)
            else:
                wish.records.set_result(records)

    def _next(self) -> _Wish | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, LINGER_S)
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None
