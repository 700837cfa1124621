"""A trainer's seat over a fake ring: what the members of a new ring settle, whatever they were told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edl.core.worker.limb_votes import UpdateVote
from edl.core.worker.next_move import NEVER
from edl.core.worker.worker_inputs import BatchVoid, OrdersRead, SetWeight, StateCopied, StillWaiting
from edl.core.worker.worker_states import TrainerState
from edl.errors import FAULT, RingBroken, UsageError
from edl.protocol.assignment import Assignment, Orders, Place, Summons, Verdict
from edl.protocol.leader_messages import Phase
from edl.protocol.trainer_messages import TrainerStatus
from edl.trainer.data.audit_files import Audit
from edl.trainer.data.shared_leases import SharedLeases
from edl.trainer.registered_state import RegisteredState
from edl.trainer.worker_shell import WorkerShell
from edl.transport.shared_page import SharedPage

PATIENCE_S = 10.0


class Members:
    """The collectives of one ring, whose members are threads."""

    def __init__(self, size: int) -> None:
        self.values: list[Sequence[int]] = [()] * size
        self.model = ""
        self._met = threading.Barrier(size, timeout=PATIENCE_S)

    def largest(self, rank: int, values: Sequence[int]) -> list[int]:
        self.values[rank] = values
        self._met.wait()
        found = [max(column) for column in zip(*self.values, strict=True)]
        self._met.wait()
        return found


class FakeRing:
    prepares = True

    def __init__(self, members: Members, rank: int) -> None:
        self.members, self.rank = members, rank
        self.place: Place | None = None
        self.beside: dict[int, Place] = {}  # that stand beside the present one
        self.may_form = threading.Event()  # else it waits for the others
        self.may_form.set()
        self.began = threading.Event()
        self.may_end = threading.Event()  # else what was given up does not, for now
        self.may_end.set()
        self.given_up: set[int] = set()
        self.forming = 0

    def enter(self, place: Place, timeout_s: float) -> None:
        assert self.forming in {0, *self.given_up}, "two rings form at once"
        self.place = place

    def prepare(self, place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        assert not self.forming, "two rings form at once"
        self.forming = place.generation
        self.began.set()
        try:
            while not self.may_form.wait(0.001):
                if place.generation in self.given_up and self.may_end.is_set():
                    raise RingBroken("it was given up")
            self.beside[place.generation] = place
        finally:
            self.forming = 0

    def adopt(self, generation: int) -> None:
        if generation not in self.beside:
            raise RingBroken("it was not prepared")
        self.place = self.beside.pop(generation)

    def release(self, generation: int) -> None:
        self.given_up.add(generation)
        self.beside.pop(generation, None)

    def leave(self) -> None: ...
    def abort(self, given_up: range | None = None) -> None: ...
    def largest(self, values: Sequence[int]) -> list[int]:
        return self.members.largest(self.rank, values)


class FakeFramework:
    weight = 0.0

    def __init__(self, members: Members, rank: int, model: str) -> None:
        self.ring, self.model = FakeRing(members, rank), model

    def discard(self) -> None: ...
    def keep_hyper_parameters(self) -> None: ...
    def copied(self, contents: Sequence[Any]) -> Sequence[Any]:
        return contents

    def set_weight(self, weight: float, *, weightless: bool = False) -> None:
        self.weight = weight

    def applied(self) -> float:
        return self.weight

    def synchronize_rest(self, root: int, *, only_statistics: bool) -> None: ...
    def synchronize(self, root: int) -> None:
        if self.ring.rank == root:
            self.ring.members.model = self.model
        self.ring.largest([0])
        self.model = self.ring.members.model


class Waits(Exception):
    """For newer orders, which do not come."""


class FakeLink:
    worker, orders = "w", None
    newest: Orders | None = None

    def __init__(self, shell: WorkerShell, framework: FakeFramework) -> None:
        self.shell, self.framework = shell, framework
        self.told: list[TrainerStatus] = []
        self.page = SharedPage.unshared()

    def tell(self) -> None:
        self.told.append(self.shell.machine.status)

    def wait_news(self, older: Orders | None) -> Orders:
        raise Waits


def seated(members: Members, rank: int, step: int, generation: int, leases: SharedLeases | None = None) -> WorkerShell:
    framework = FakeFramework(members, rank, f"of step {step}")
    shell = WorkerShell(framework, leases or SharedLeases(), RegisteredState())  # type: ignore[arg-type]
    shell.link = FakeLink(shell, framework)  # type: ignore[assignment]
    shell.count.step, shell.machine.generation = step, generation
    shell.machine.state = TrainerState.WAITING
    return shell


def orders(assignment: Assignment) -> Orders:
    return Orders(1, 1, Verdict.STAY, "", 0, 0, 0, False, assignment, ())


def framework_of(shell: WorkerShell) -> FakeFramework:
    return shell.link.framework  # type: ignore[attr-defined]


def told(shell: WorkerShell) -> list[TrainerStatus]:
    return shell.link.told  # type: ignore[attr-defined]


def ring_of(shell: WorkerShell) -> tuple[Phase, int, str]:
    newest = told(shell)[-1]
    return newest.phase, newest.generation, newest.reason


def goes(shell: WorkerShell, assignment: Assignment) -> None:
    with contextlib.suppress(Waits):
        shell.hear(OrdersRead(orders(assignment)))


def enter(*who: tuple[int, int], after_step: int | None, newcomers: int = 0, booted: bool = True) -> list[WorkerShell]:
    """Members at (step, generation) enter generation 3 together; `booted` is said of the last one."""
    members = Members(len(who))
    seats = [seated(members, rank, step, generation) for rank, (step, generation) in enumerate(who)]
    for shell in seats:
        shell.machine.rehearsed = True
    if not booted:
        seats[-1].machine.rehearsed, seats[-1].machine.state = False, TrainerState.COMING
    entering = []
    with ThreadPoolExecutor(len(who)) as threads:
        for rank, shell in enumerate(seats):
            place = Place(3, rank, len(who), f"w{rank}")
            entering.append(threads.submit(goes, shell, Assignment(place, after_step, newcomers)))
    for one in entering:
        one.result()
    return seats


def models(seats: list[WorkerShell]) -> set[str]:
    return {framework_of(shell).model for shell in seats}


@pytest.mark.parametrize("after_step", [None, 0, 1000])
def test_a_survivor_gives_its_state_to_a_newcomer_that_it_was_not_told_of(after_step: int | None) -> None:
    seats = enter((1000, 2), (0, 0), after_step=after_step)
    assert models(seats) == {"of step 1000"}
    assert [shell.machine.step for shell in seats] == [1000, 1000]


def test_the_first_ring_of_all_asks_for_no_members_state() -> None:
    seats = enter((0, 0), (0, 0), after_step=0)
    assert [shell.machine.model.may_differ for shell in seats] == [True, True]


def test_a_ring_in_which_a_member_would_have_to_boot_first_does_not_stand() -> None:
    seats = enter((1000, 2), (0, 0), after_step=None, booted=False)
    said = [told(shell)[-1] for shell in seats]
    assert all(word.phase is Phase.BROKEN and "has not booted" in word.reason for word in said)
    assert models(seats) == {"of step 1000", "of step 0"}


def test_before_any_worker_has_trained_all_boot_in_the_first_ring() -> None:
    seats = enter((0, 2), (0, 0), after_step=None, booted=False)
    assert all(told(shell)[-1].phase is Phase.TRAINING for shell in seats)


class WhileAnotherRingIsEntered(SharedLeases):
    """Its data comes at the moment at which the training thread goes to another ring."""

    shell: WorkerShell | None = None

    def covers(self, step: int) -> bool:
        shell, self.shell = self.shell, None
        if shell is not None:
            shell.machine.state = TrainerState.BETWEEN
            goes(shell, Assignment(Place(4, 0, 2, "w"), 70, 0))
        return True

    def samples(self, step: int) -> int:
        return 11

    def weight(self, step: int) -> float:
        return 5 / 11

    def constant_until(self, step: int) -> int:
        return 80


class Committed(Audit):
    """With which weights."""

    def __init__(self) -> None:
        self.weights: list[float | None] = []

    def committed(self, generation: int, step: int, weight: float | None = None) -> None:
        self.weights.append(weight)


def test_the_audit_has_the_weight_of_its_step_though_a_pipelines_thread_weighs_the_next_one_meanwhile() -> None:
    shell = seated(Members(1), 0, 70, 3)
    shell.machine.state, shell.audit = TrainerState.TRAINING, Committed()
    framework_of(shell).weight = 3 / 11
    handle = shell.machine.handle

    def counted(happened: Any) -> list[Any]:
        return [SetWeight(1, 1 / 4), *handle(happened)]

    shell.machine.handle = counted  # type: ignore[method-assign]
    shell.end_batch(attention=False)
    assert shell.machine.step == 71
    assert shell.audit.weights == [3 / 11]


def test_what_a_pipelines_thread_finds_for_a_ring_that_is_left_weighs_nothing_in_the_next() -> None:
    leases = WhileAnotherRingIsEntered()
    shell = leases.shell = seated(Members(1), 0, 70, 3, leases)
    shell.weigh(shell.while_waiting)
    assert shell.machine.generation == 4
    assert framework_of(shell).weight == 1 / 2
    assert shell.machine.unusual.even_until > 80, "the training thread has not yet weighed step 71, and must"


def test_of_two_weights_that_two_threads_set_the_one_that_was_decided_last_holds() -> None:
    shell = seated(Members(1), 0, 70, 3)
    of_the_pipeline, of_the_next_ring = SetWeight(1, 5 / 11), SetWeight(2, 1 / 2)
    shell.machine.handle = lambda _: [of_the_next_ring, of_the_pipeline]  # type: ignore[method-assign, assignment]
    shell.hear(StillWaiting(None))
    assert framework_of(shell).weight == 1 / 2


def test_the_daemons_word_cuts_a_collective_in_which_the_training_thread_waits() -> None:
    shell = seated(Members(1), 0, 70, 3)
    shell.machine.state = TrainerState.BETWEEN
    ring, stuck, cut = framework_of(shell).ring, threading.Event(), threading.Event()

    def largest(values: Sequence[int]) -> list[int]:
        stuck.set()
        assert cut.wait(PATIENCE_S)
        raise RingBroken("cut")

    def abort(given_up: range | None = None) -> None:
        if given_up is not None:
            cut.set()

    ring.largest, ring.abort = largest, abort  # type: ignore[method-assign]
    training = threading.Thread(target=goes, args=(shell, Assignment(Place(4, 0, 2, "w"), None, 0)))
    training.start()
    assert stuck.wait(PATIENCE_S)
    newer = msgspec.structs.replace(orders(Assignment(Place(5, 0, 2, "w"), None, 0)), version=2)
    shell.take_news(newer)
    training.join(PATIENCE_S)
    assert cut.is_set() and not training.is_alive()


def called_to(generation: int, version: int) -> Orders:
    place = Place(generation, 0, 1, "w")
    return Orders(1, version, Verdict.STAY, "", 0, 0, 0, False, None, (), summons=Summons(version, (), place))


def trains(shell: WorkerShell) -> FakeRing:
    shell.machine.state, shell.step_timeout_s = TrainerState.TRAINING, PATIENCE_S
    return framework_of(shell).ring


def hears_of_ring(shell: WorkerShell, generation: int, version: int) -> None:
    shell.take_news(called_to(generation, version))


def await_prepared() -> None:
    """Or given up: the thread has ended."""
    for thread in threading.enumerate():
        if thread.name == "edl-preparing":
            thread.join(PATIENCE_S)


def test_a_ring_is_prepared_beside_training_and_adopted_without_leaving_anything() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    hears_of_ring(shell, 4, version=2)
    await_prepared()
    assert told(shell)[-1].prepared == (4, "")
    assert (ring.place, list(ring.beside)) == (None, [4])
    shell.machine.state = TrainerState.BETWEEN
    planned = msgspec.structs.replace(orders(Assignment(Place(4, 0, 1, "w"), 70, 0, prepared=True)), version=3)
    shell.take_news(planned)
    with contextlib.suppress(Waits):
        shell.hear(OrdersRead(planned))
    assert ring.place == Place(4, 0, 1, "w")
    assert (ring.beside, ring.given_up) == ({}, set())
    entered = next(word for word in told(shell) if word.phase is Phase.TRAINING)
    assert entered.generation == 4
    assert entered.pause is not None
    assert entered.pause.total >= entered.pause.enter >= 0


def test_a_death_gives_up_what_is_being_prepared_and_the_next_ring_does_not_wait_for_its_end() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    ring.may_form.clear()
    ring.may_end.clear()
    hears_of_ring(shell, 4, version=2)
    assert ring.began.wait(PATIENCE_S)
    shell.machine.state = TrainerState.BETWEEN
    forced = msgspec.structs.replace(orders(Assignment(Place(5, 0, 1, "w"), None, 0)), version=3)
    with contextlib.suppress(Waits):
        shell.hear(OrdersRead(forced))
    assert ring.place == Place(5, 0, 1, "w")
    assert ring.forming == 4
    ring.may_end.set()
    await_prepared()
    assert not any(word.prepared[0] for word in told(shell))
    assert ring.beside == {}


def goes_to_what_is_begun(shell: WorkerShell) -> None:
    """A member has died: the next ring begins beside the mini-batch that is void, which is over later."""
    shell.machine.next_ring.able = True
    forced = msgspec.structs.replace(orders(Assignment(Place(4, 0, 1, "w"), None, 0)), version=2)
    shell.take_news(forced)
    shell.machine.state = TrainerState.BETWEEN
    with contextlib.suppress(Waits):
        shell.hear(OrdersRead(forced))


def test_after_a_death_the_ring_that_was_begun_is_waited_for_and_adopted() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    ring.may_form.clear()
    threading.Timer(0.05, ring.may_form.set).start()
    goes_to_what_is_begun(shell)
    assert (ring.place, ring.beside) == (Place(4, 0, 1, "w"), {})
    assert ring_of(shell) == (Phase.TRAINING, 4, "")


def test_if_it_does_not_form_the_leader_hears_why_and_it_is_not_formed_again() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)

    def prepare(place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        ring.may_form.wait(PATIENCE_S)
        raise RingBroken("no route to host")

    ring.prepare = prepare  # type: ignore[method-assign]
    ring.may_form.clear()
    threading.Timer(0.05, ring.may_form.set).start()
    goes_to_what_is_begun(shell)
    assert ring.place is None
    assert ring_of(shell) == (Phase.BROKEN, 4, "no route to host")


def test_the_next_attempt_waits_for_the_end_of_the_one_before_and_no_ring_is_left_over() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    ring.may_form.clear()
    for version, generation in enumerate((4, 5, 6), 2):
        hears_of_ring(shell, generation, version)
    ring.may_form.set()
    await_prepared()
    assert [word.prepared for word in told(shell)] == [(6, "")]
    assert list(ring.beside) == [6]


def test_what_cannot_be_prepared_is_told_with_its_reason() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)

    def prepare(place: Place, timeout_s: float, *, all_prepare: bool) -> None:
        raise RingBroken("no route to host")

    ring.prepare = prepare  # type: ignore[method-assign]
    hears_of_ring(shell, 4, version=2)
    await_prepared()
    assert told(shell)[-1].prepared == (4, "no route to host")
    assert shell.machine.state is TrainerState.TRAINING


# ------------------------------------------------------------------------- a ring that raises what is no broken ring

ERRORS = [ValueError("no such numbers"), RuntimeError("no more\nof it"), MemoryError()]
FAULTS = ["ValueError: no such numbers", "RuntimeError: no more", "MemoryError"]
raising = pytest.mark.parametrize(("error", "said"), [*zip(ERRORS, FAULTS, strict=True)])


def break_at(ring: FakeRing, call: str, error: BaseException) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    setattr(ring, call, fails)


@raising
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_ring_raises_while_it_is_prepared_is_told_and_training_goes_on(error: Exception, said: str) -> None:
    shell = seated(Members(1), 0, 70, 3)
    break_at(trains(shell), "prepare", error)
    hears_of_ring(shell, 4, version=2)
    await_prepared()
    assert told(shell)[-1].prepared == (4, FAULT + said)
    assert shell.machine.state is TrainerState.TRAINING


def test_where_no_thread_can_be_begun_for_it_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = seated(Members(1), 0, 70, 3)
    trains(shell)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        hears_of_ring(shell, 4, version=2)
    assert told(shell)[-1].prepared == (4, f"{FAULT}RuntimeError: can't start new thread")
    hears_of_ring(shell, 5, version=3)
    await_prepared()
    assert told(shell)[-1].prepared == (5, "")


@raising
@pytest.mark.parametrize("call", ["enter", "largest", "leave"])
def test_what_a_ring_raises_on_the_way_into_it_is_told_and_another_one_is_waited_for(
    call: str, error: Exception, said: str
) -> None:
    shell = seated(Members(1), 0, 70, 3)
    break_at(framework_of(shell).ring, call, error)
    goes(shell, Assignment(Place(4, 0, 2, "w"), None, 0))
    assert ring_of(shell) == (Phase.BROKEN, 4, FAULT + said)


def test_what_adopting_raises_is_told() -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    hears_of_ring(shell, 4, version=2)
    await_prepared()
    break_at(ring, "adopt", ValueError())
    shell.machine.state = TrainerState.BETWEEN
    planned = msgspec.structs.replace(orders(Assignment(Place(4, 0, 1, "w"), 70, 0, prepared=True)), version=3)
    with contextlib.suppress(Waits):
        shell.hear(OrdersRead(planned))
    assert ring_of(shell) == (Phase.BROKEN, 4, f"{FAULT}ValueError")


@pytest.mark.parametrize("call", ["abort", "release"])
def test_what_giving_up_a_ring_raises_does_not_end_the_link_to_the_daemon(call: str) -> None:
    shell = seated(Members(1), 0, 70, 3)
    ring = trains(shell)
    hears_of_ring(shell, 4, version=2)
    await_prepared()
    break_at(ring, call, ValueError())
    forced = msgspec.structs.replace(orders(Assignment(Place(5, 0, 2, "w"), None, 0)), version=3)
    shell.take_news(forced)
    assert shell.machine.orders is forced


@pytest.mark.parametrize("call", ["enter", "largest", "leave"])
def test_an_interrupt_or_what_the_script_did_wrong_ends_the_script(call: str) -> None:
    for error in (KeyboardInterrupt(), UsageError("a lazy module")):
        shell = seated(Members(1), 0, 70, 3)
        break_at(framework_of(shell).ring, call, error)
        with pytest.raises(type(error)):
            goes(shell, Assignment(Place(4, 0, 2, "w"), None, 0))


@pytest.mark.parametrize(
    ("generation", "newcomers", "trial"), [(2, 1, True), (2, 0, False), (0, 1, False)], ids=["survivor", "none", "new"]
)
def test_a_ring_with_newcomers_is_on_trial_for_the_others_until_its_first_step(
    generation: int, newcomers: int, trial: bool
) -> None:
    shell = seated(Members(1), 0, 70, generation)
    shell.machine.rehearsed = True
    goes(shell, Assignment(Place(3, 0, 2, "w"), None, newcomers))
    assert shell.machine.generation == 3
    assert shell.machine.on_trial is trial
    shell.count.step += 1
    assert not shell.machine.on_trial


def test_figures_are_reported_but_not_those_of_a_forked_child() -> None:
    shell = seated(Members(1), 0, 70, 3)
    shell.report({"loss": 0.5})
    assert told(shell)[-1].figures == {"loss": 0.5}
    shell.inherited = True
    shell.report({"loss": 0.25})
    assert len(told(shell)) == 1


class Beside:
    """A state that comes beside the mini-batch."""

    idle, awaits = False, True

    def take(self) -> None:
        self.idle, self.awaits = True, False

    def drop(self) -> None: ...


class Limbs:
    """The other process of a worker, which votes so."""

    limb = 0

    def __init__(self, *, void: bool = False, look: bool = False) -> None:
        self.votes, self.heard = UpdateVote(void, look), [UpdateVote(False, False)]

    def vote(self, *, void: bool, look: bool) -> UpdateVote:
        self.heard.append(UpdateVote(void, look))
        return UpdateVote(void or self.votes.void, look or self.votes.look)


def voting(limbs: Limbs) -> WorkerShell:
    shell = seated(Members(1), 0, 70, 3)
    shell.machine.state, shell.machine.limbs = TrainerState.TRAINING, 2
    shell.limbs = limbs  # type: ignore[assignment]
    shell.link.page.attention_step = NEVER
    return shell


def test_a_mini_batch_that_is_void_on_another_process_of_the_worker_is_void_here() -> None:
    shell = voting(Limbs(void=True))
    shell.vote()
    assert shell.machine.void == "the ring of another process of this worker has failed"
    assert not shell.looks_after(71)


def test_the_other_processes_of_the_worker_hear_of_a_void_mini_batch() -> None:
    shell = voting(limbs := Limbs())
    shell.void(RingBroken("the ring failed"), keep=False)
    shell.vote()
    assert limbs.heard[-1] == UpdateVote(void=True, look=False)


def test_all_processes_of_the_worker_look_at_orders_that_one_has_heard() -> None:
    shell = voting(Limbs(look=True))
    shell.vote()
    assert shell.looks_after(71)
    shell = voting(limbs := Limbs())
    shell.link.newest = orders(Assignment(Place(4, 0, 2, "w"), 90, 0))  # type: ignore[misc]
    shell.vote()
    assert limbs.heard[-1] == UpdateVote(void=False, look=True)
    shell.machine.orders = shell.link.newest  # they have been looked at
    shell.vote()
    assert limbs.heard[-1] == UpdateVote(void=False, look=False)
    shell.link.page.attention_step = 71
    shell.vote()
    assert limbs.heard[-1] == UpdateVote(void=False, look=True)


@pytest.mark.parametrize("void", [False, True])
def test_no_update_has_begun_while_the_other_processes_are_awaited(void: bool) -> None:
    """Where one of them has died, what this one holds is still that of the step before."""
    shell = voting(limbs := Limbs(void=void))
    calls: list[str] = []
    shell.copier = SimpleNamespace(  # type: ignore[assignment]
        idle=True,
        note_no_update=lambda: calls.append("rests"),
        before_update=lambda step: calls.append(f"updates {step}"),
    )
    vote = limbs.vote
    limbs.vote = lambda **said: (calls.append("votes"), vote(**said))[1]  # type: ignore[method-assign]
    shell.vote(updates=True)
    assert calls[:2] == ["rests", "votes"]
    assert ("updates 70" in calls) is not void


def test_a_mini_batch_without_an_update_is_voted_on_at_its_end() -> None:
    shell = voting(limbs := Limbs())
    shell.vote_at_end()
    shell.vote_at_end()
    assert len(limbs.heard) == 2
    shell.end_batch(attention=False)
    shell.vote_at_end()
    assert len(limbs.heard) == 3


@pytest.mark.parametrize("void", [False, True])
def test_a_state_counts_once_all_processes_of_the_worker_have_theirs(void: bool) -> None:
    shell = voting(Limbs(void=void))
    heard: list[Any] = []
    shell.machine.handle = lambda happened: heard.append(happened) or []  # type: ignore[method-assign]
    shell.beside = Beside()  # type: ignore[assignment]
    shell.await_state()
    assert heard == []
    shell.vote()
    assert [type(one) for one in heard] == [BatchVoid if void else StateCopied]
    shell.vote()
    assert StateCopied() not in heard[1:]


def test_a_state_of_a_worker_of_one_process_counts_as_it_comes() -> None:
    shell = seated(Members(1), 0, 70, 3)
    heard: list[Any] = []
    shell.machine.handle = lambda happened: heard.append(happened) or []  # type: ignore[method-assign]
    shell.beside = Beside()  # type: ignore[assignment]
    shell.await_state()
    assert heard == [StateCopied()]
