"""The end of a script, and reporting it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from edl import ownership
from edl.errors import EdlError, ForeignCheckpoint, JobFailed, NoSuchJob, NotResumed, in_brief, told_of_its_job
from edl.protocol.checkpoint_record import PREEMPTED_CODE

GRACE_S = 0.3  # for a script to hear that its job is gone, at the end of a mini-batch or where it waits
TAKEN_S = 0.5  # for one that is interrupted to take the signal, which Python does between two of its instructions
LAST_S = 4.0  # for one that has taken it to end
TICK_S = 0.05
TRITON: Final = "triton._C.libtriton"  # loaded with the first optimizer, where PyTorch is built for GPUs


Handler = Callable[[int, FrameType | None], None]

WITHIN_WORKER: Final = (
    "a mesh or a group lies within a worker: make it of its edl.group_size() processes (--processes); edl.Optimizer "
    "averages over workers (docs/larger-models.md)"
)
# Parts of what frameworks say where a script asks them for what is not edl's, and what edl says of it.
EXPLAINED: Final = {
    "environment variable RANK expected": "edl forms no process group of torch.distributed for workers of one process: "
    "leave init_process_group(), DDP, fully_shard() and device meshes away (docs/from-torchrun.md), or start workers "
    "of several by --processes (docs/larger-models.md)",
    "trying to initialize the default process group twice": "torch.distributed has its process group already, which "
    "edl.init() makes where --processes is given: leave init_process_group() away (docs/larger-models.md)",
    "Mesh should not be bigger than default world size": WITHIN_WORKER,
    "the new group's world size should be less or equal to the world size": WITHIN_WORKER,
    "is out of range. Valid ranks are 0 to": WITHIN_WORKER,
    "FSDP needs a non-CPU accelerator device": "edl shards no model by FullyShardedDataParallel: take fully_shard() "
    "(docs/larger-models.md)",
}


def spare_the_collector() -> None:
    """Keep Python's collector from all that lives now, which it looks through twice as the process ends.

    Triton is made by nanobind, which writes 24 lines of what it takes for leaks where its objects outlive that: what
    lives since Triton is there is looked through.
    """
    if TRITON not in sys.modules:
        gc.freeze()


class Leaving(SystemExit):
    """Raised by `notify_batch_end()` in a worker that was told to leave; as a SystemExit it ends the script with 0.

    >>> try:
    ...     raise edl.Leaving  # as notify_batch_end() does
    ... except edl.Leaving:
    ...     print("this worker closes its files; a SystemExit goes on from here")
    this worker closes its files; a SystemExit goes on from here
    """

    def __init__(self) -> None:
        super().__init__(0)


class Exit(SystemExit):
    """The exception of `sys.exit()` while failures are noted.

    Inside a process nothing tells its exit status before it has ended, as excepthooks do not hear of SystemExit. But
    Python asks the exception that has reached the outermost frame for its `code`, when no frame is left.
    """

    def __init__(self, note: Callable[[str], object], status: object) -> None:
        super().__init__(*(() if status is None else (status,)))
        self._note = note
        self._status = status
        self.at_once = False  # nothing of the process is worth the time that Python takes to take it down

    @property
    def code(self) -> Any:
        if sys._getframe().f_back is None and self._status is not None and self._status != 0:
            self._note(in_brief(f"SystemExit: {self._status}"))
            if self.at_once:
                atexit.register(_end_at_once)
        return self._status

    @code.setter
    def code(self, status: object) -> None:
        self._status = status


def exit_preempted() -> NoReturn:
    """Exit as by `sys.exit(75)`, as the machine is about to be taken away: what the script wants at its end is done.

    Then the process ends at once. Else Python would take down one module after the other, PyTorch's for half a second.
    """
    try:
        sys.exit(PREEMPTED_CODE)
    except Exit as leaving:
        leaving.at_once = True
        raise


def _end_at_once() -> None:
    # Python calls this as the first of what was registered for its end; all the others follow here.
    atexit.unregister(_end_at_once)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
            stream.flush()
    os._exit(PREEMPTED_CODE)


def note_failures(note: Callable[[str, bool], str]) -> None:
    """Call `note` with the exception that ends the script, also of `sys.exit()` with a status other than 0.

    `note` may return a line, which is shown in place of the traceback. Its second argument tells whether what was saved
    does not go with the script.

    Other ends, such as `os._exit(3)` or a crash of Python as it ends, the launcher sees by the exit status.
    """
    hook, leave = sys.excepthook, sys.exit
    seen = getattr(sys, "last_value", None)

    def exit_noting(status: object = None, /) -> NoReturn:
        raise Exit(lambda reason: note(reason, False), status)

    sys.exit = exit_noting

    def tell(error: BaseException) -> tuple[str, str]:
        """Note `error`. Return the lines that are shown in place of its traceback, and after that."""
        nonlocal seen
        seen = error
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        if not isinstance(error, EdlError):  # whose line names its remedy at its end
            reason = in_brief(reason)
        foreign = isinstance(error, ForeignCheckpoint)
        explained = next((line for part, line in EXPLAINED.items() if part in str(error)), "")
        told = note(str(error) if foreign else explained or reason, foreign)
        return line_of(error) or (f"edl: {told}\n" if told else ""), f"edl: {explained}\n" if explained else ""

    def noting(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line, explained = tell(error)
        if line:
            sys.stderr.write(line)
        else:
            hook(kind, error, trace)
        sys.stderr.write(explained)

    def note_unheard() -> None:
        # A hook that the script, or a library, has set since may show exceptions and hand none on.
        error = _uncaught()
        if error is not None and error is not seen:
            sys.stderr.write("".join(tell(error)))

    def hear_nothing() -> None:
        nonlocal note
        note = lambda _reason, _foreign: ""  # noqa: E731 - the script may have kept what stands in the place of these
        sys.exit = leave if sys.exit is exit_noting else sys.exit
        sys.excepthook = hook if sys.excepthook is noting else sys.excepthook

    sys.excepthook = noting
    ownership.at_exit(note_unheard)
    ownership.in_children(hear_nothing)


def _uncaught() -> BaseException | None:
    """Return the exception that ends the script, which Python keeps whatever hook shows it.

    None in an interactive session, which goes on. What a console or a test within the script has shown and kept has
    not come to the outermost frame.
    """
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or trace is None or trace.tb_frame.f_back is not None:
        return None
    return getattr(sys, "last_value", None)


def line_of(error: BaseException) -> str:
    """Return the whole message for an exception whose traceback tells nothing; else an empty string."""
    if isinstance(error, KeyboardInterrupt):
        return "edl: interrupted\n"
    if isinstance(error, NotResumed):
        return f"edl: {error}\n"
    if isinstance(error, JobFailed) and not isinstance(error, NoSuchJob):  # that is of another job, asked for by name
        return told_of_its_job(error)
    return ""


_forking = threading.local()  # of each thread that forks: the signals that it held back before


def _hold_sigterm() -> None:
    _forking.held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _take_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.held)


class Interruption:
    """Interruption of a script whose job is preempted and that does not notice: it evaluates, say, or waits.

    The script ends as if it had called `sys.exit(75)` where it is: what it does in `finally` is done. One that does not
    come to that either, as a library keeps its thread, is ended with its process.
    """

    def __init__(self, ends: Callable[[], bool]) -> None:
        """`ends` tells whether the script has noticed."""
        self._ends = ends
        self._begun = threading.Event()
        self._raised = False
        self._handler: Handler | None = None

    def mind(self, handler: Handler) -> None:
        """Set `handler`, which calls `take_signal`, as the signal's handler. In the main thread."""
        self._handler = handler
        signal.signal(signal.SIGTERM, handler)
        os.register_at_fork(before=_hold_sigterm, after_in_parent=_take_sigterm, after_in_child=self._leave_sigterm)

    def _leave_sigterm(self) -> None:
        """Let SIGTERM end a forked child, unless the script has a handler of its own.

        A signal that came while the process forked is taken now: Python forgets in a child what its handlers were to
        hear.
        """
        if self._is_minded():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _take_sigterm()

    def begin(self, reason: str) -> None:
        """Begin from any thread, and return at once. Harmless twice."""
        if not self._begun.is_set():
            self._begun.set()
            threading.Thread(target=self._run, args=(reason,), daemon=True, name="edl-interruption").start()

    def _run(self, reason: str) -> None:
        if self._waits(GRACE_S):
            sys.stderr.write(f"edl: {reason}\n")
            os.kill(os.getpid(), signal.SIGTERM)  # a signal ends a sleep, and a wait for another process
            if (self._is_minded() and self._waits(TAKEN_S, lambda: self._raised)) or self._waits(LAST_S):
                sys.stderr.flush()
                sys.stdout.flush()
                os._exit(PREEMPTED_CODE)

    def _is_minded(self) -> bool:
        """Tell whether the signal comes to `take_signal`: the script has no handler of its own."""
        return self._handler is not None and signal.getsignal(signal.SIGTERM) is self._handler

    def _waits(self, for_s: float, or_else: Callable[[], bool] = lambda: False) -> bool:
        """Wait; return True if neither `ends` nor `or_else` has come true in time."""
        until = time.monotonic() + for_s
        while not (is_over := self._ends() or or_else()) and time.monotonic() < until:
            time.sleep(TICK_S)
        return not is_over

    def take_signal(self) -> bool:
        """Handle SIGTERM in the main thread. False: it means something else. Raises SystemExit, once."""
        if not self._begun.is_set():
            return False
        if not self._ends() and not self._raised:
            self._raised = True
            exit_preempted()
        return True


def leave_on_sigterm(leave: Callable[[], object], interruption: Interruption) -> None:
    """Make the first SIGTERM a graceful leave, unless the script minds the signal itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    owner = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if (
            os.getpid() != owner
        ):  # by a handler of the script's, which hands the signal on in a child that it has forked
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        if interruption.take_signal():
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one is not graceful
        if sys.is_finalizing():
            return  # it ends by itself, and a thread that is begun now would never run, nor be seen to have begun
        # On a thread: the one that was interrupted may hold the very lock that `leave` needs.
        threading.Thread(target=leave, daemon=True, name="edl-leave").start()

    interruption.mind(handle)
