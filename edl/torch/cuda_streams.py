"""Work on a GPU beside that of the script: in streams of its own, and of tensors as they are at some moment.

What a GPU does, it does in the order of a stream, and streams of torch's do not wait for each other. A thread that
reads a tensor while the script trains has another stream than the script. So it waits for what was to be done by the
moment from which on the tensor lies still, and then reads beside the rest.

Owns: these streams. Does not own: what is read, and when (`edl.torch.torch_state_split`, `edl.torch.torch_snapshot`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Let what this thread has the device do wait for nothing else, inside the context."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(_stream(device)):
        yield


class StillTensors:
    """Tensors as they are now, for one thread at a time."""

    def __init__(self, tensors: Iterable[torch.Tensor], *, wait: bool = False) -> None:
        """`wait`: for all that the devices are to do, as the caller is not the thread that trains."""
        devices = {one.device for one in tensors if one.is_cuda}
        self._streams = [_stream(device) for device in devices]
        for stream in self._streams:
            if wait:
                torch.cuda.synchronize(stream.device)
            stream.wait_stream(torch.cuda.current_stream(stream.device))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let the caller copy from the tensors: copies show them as this object found them, as long as the script
        leaves them alone.
        """
        with contextlib.ExitStack() as entered:
            for stream in self._streams:
                entered.enter_context(torch.cuda.stream(stream))
            yield


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
