"""Plays a transcript: its commands go to the real machine of a job, on a clock that only they move.

    job [np=2] [min=1] [max=0] [data=1000] [epochs=1] [batch=10] [step_time=S] [session=10] [step=60] [prepares]
        [sends] [saved] [save_every=S] [save_steps=N] [save_last]
                                how the job is started; `prepares`: its workers form a ring beside another; `sends`: and
                                give newcomers their state beside a step; `saved`: it can be, and is every so often
                                where that is said
    training_job ... [at=5] [hosts=H[,H...]]
                                the same, and its first ring trains; how it comes to that is in the first transcripts
    register W [host=H] [address=A] [daemon=N] [answering] [again]
                                a daemon presents its worker; it is the N-th of this worker
    report W[,W...] [PHASE] [generation=N] [step=N] [leases_of=N] [opens] [epochs=N] [leaving] [missed=N]
           [step_time=S] [mark=NUMBER:STEP] [pause=LEAVE+ENTER+STATE] [diverged=W[:new]] [reason=TEXT] [at=S] [foreign]
           [dead=W[,W...]]
                                a daemon tells what its worker was seen doing. What is not said is as in its report
                                before; a reason and a pause are said once. `opens`: its script has asked for data;
                                `at`: it was seen then, and not just now; `foreign`: what was saved does not go
                                with its script; `dead`: of these workers of its host no process lives
    meet [without=W[,W...]]     the daemons that are called, but these, tell that they have met the others
    prepared [without=W[,W...]] the members of the next ring, but these, tell that it stands beside the one that trains
    unprepared W[,W...] REASON  these tell why it does not
    save REQUEST                a checkpoint is asked for
    preempt SECONDS             the job is to be saved, and to go, within so long
    stored W[,W...]             their daemons tell that their parts of the newest saving are durable
    not_stored W[,W...] REASON  these tell that they have no part to give to it
    published, unpublished REASON
                                what came of publishing it
    vanish W                    a daemon has no session any more
    refuse W[,W...]             no process listens any more where these daemons did
    scale N, scale_out N, scale_in N or W[,W...] [request=ID]
                                another size is asked for
    batch N                     so many samples a step are asked for
    migrate H [to=H:SLOTS[,...]] [request=ID] [within=S]
                                all workers of a host are to leave it
    rule N REASON, replace W REASON
                                the job's own policy has decided: a size, or another worker for a slow one
    stop REASON                 a user ends the job
    again                       the message before comes twice, as it was
    train S                     time passes: who trains makes steps and tells of them each second
    pass S                      time passes; the leader looks at it each second, and hears nothing
    silence S                   time passes, and the leader takes no input: it waits for the coordinator
    unwritten COMMAND           the leader decides, and dies before that is on record: no worker hears of it
    untold COMMAND              the leader dies as soon as its decision is on record: no worker has heard of it yet
    new_leader [without=W[,W...]]
                                another takes over from what is on record; those have no session then

Owns: what a command feeds the machine, and what is on record. Does not own: how it is said (`scenario_words`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from scenario_text import NOTHING, Block, Command, command
from scenario_words import Told, changes, ledger_lines, news, told

from edl.core.job.deadlines import Deadlines
from edl.core.job.lead_times import LeadTimes
from edl.core.job.leader_inputs import (
    Acknowledge,
    Input,
    NotListening,
    PublishingFailed,
    PublishSaving,
    Refuse,
    Reported,
    Ruled,
    SavingPublished,
    Tell,
    TellOfMigration,
    TellOfSaving,
    TimePassed,
    TookOver,
    Vanished,
)
from edl.core.job.leader_machine import JobMachine, new_record
from edl.launch.host_slots import parse_rooms
from edl.protocol.checkpoint_record import Checkpointing, FileInfo, PartInfo
from edl.protocol.data_nouns import DataSpec
from edl.protocol.divergence_report import Divergence
from edl.protocol.job_policy import JobPolicy
from edl.protocol.leader_messages import (
    AskBatch,
    AskCheckpoint,
    AskMigrate,
    AskPreempt,
    AskScale,
    AskScaleIn,
    AskScaleOut,
    AskStop,
    Observation,
    Pause,
    Phase,
    Register,
)
from edl.protocol.record import Identity, RollCall, Room

OFFER: Final = 7  # where the first of a ring gives newcomers its state
BETWEEN_S: Final = 0.01  # from one command to the next
TICK_S: Final = 1.0  # a leader looks at the time so often
NEW: Final = Observation(step=0)


@dataclass
class Settings:
    """How the job is started."""

    np: int = 2
    minimum: int = 1
    maximum: int = 0
    session_s: float = 10.0
    step_s: float = 60.0
    step_time_s: float = 0.0
    prepares: bool = False
    sends: bool = False
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    data: DataSpec = field(default_factory=lambda: DataSpec(total=1000, epochs=1, batch=10))


class Player:
    """One job."""

    def __init__(self) -> None:
        self._settings = Settings()
        self.now = 0.0
        self._durable = new_record("j", 0.0)
        self._machine = self._led()
        self._shown: dict[str, Told] = {}  # what each worker was told
        self._reports: dict[str, Observation] = {}  # the newest of each that was taken
        self._last: list[Input] = []
        self._lines: list[str] = []
        self._before = self._durable
        self._written = self._told = True  # the leader lives
        self._timed = False

    def play(self, block: Block, name: str) -> list[str]:
        """What follows from the commands of one block."""
        self._before, self._lines = self._durable, []
        for number, line in block.lines:
            self._play(command(line, f"{name}:{number}"))
        lines = [*self._lines]
        record = self._durable if self._written else self._machine.record
        lines += [f"record {line}" for line in changes(self._before, record)]
        if self._written and self._told:
            known = {*self._shown, *(member.identity.id for member in self._durable.members)}
            now = told(self._durable, sorted(known))
            lines += [f"orders {line}" for line in news(self._shown, now)]
            self._shown = now
        elif lines:
            lines.insert(0, "(on record, and no worker has heard of it)" if self._written else "(not on record)")
        return lines or [NOTHING]

    # ---------------------------------------------------------------------------------------------------- commands

    def _play(self, given: Command) -> None:
        if given.name in {"unwritten", "untold"}:
            written = given.name == "untold"
            inner = Command(given.words[0], given.words[1:], given.options, given.where)
            self._do(inner, written=written)
            self._written, self._told = written, False
        else:
            self._do(given, written=True)

    def _do(self, given: Command, *, written: bool) -> None:
        if not self._told and given.name != "new_leader":
            raise given.bad("the leader is dead: a new_leader comes first")
        try:
            match given.name:
                case "job":
                    self._begin(given)
                case "training_job":
                    self._begin_training(given)
                case "pass" | "train":
                    self._pass(float(given.word(0)), trains=given.name == "train")
                    given.end(1)
                case "silence":
                    self.now += float(given.word(0))
                    given.end(1)
                case "new_leader":
                    self._take_over(given)
                case "again":
                    given.end(0)
                    self._feed(self._last, written=written)
                case _:
                    self._last = list(self._inputs(given))
                    self._feed(self._last, written=written)
        except (ValueError, KeyError, IndexError) as error:
            raise given.bad(f"{given.name}: {error!r}") from error

    def _begin(self, given: Command) -> None:
        data = DataSpec(
            total=given.option("data", int, 1000),
            epochs=given.option("epochs", int, 1),
            batch=given.option("batch", int, 10),
            open_ended=given.flag("open_ended"),
        )
        self._settings = Settings(
            np=given.option("np", int, 2),
            minimum=given.option("min", int, 1),
            maximum=given.option("max", int, 0),
            session_s=given.option("session", float, 10.0),
            step_s=given.option("step", float, 60.0),
            step_time_s=given.option("step_time", float, 0.0),
            prepares=given.flag("prepares"),
            sends=given.flag("sends"),
            checkpointing=_checkpointing(given),
            data=data,
        )
        given.end(0)
        self._machine = self._led()

    def _begin_training(self, given: Command) -> None:
        at, hosts = given.option("at", str, "5"), given.option("hosts", _names, ["h"])
        self._begin(given)
        workers = [f"w{number}" for number in range(self._settings.np)]
        start = [f"report {','.join(workers)} training generation=1 opens", f"report {','.join(workers)} step={at}"]
        here = [hosts[min(number, len(hosts) - 1)] for number in range(len(workers))]
        come = [f"register {worker} host={host}" for worker, host in zip(workers, here, strict=True)]
        for line in [*come, *start]:
            self._play(command(line, given.where))
        self._before, self._shown = self._durable, told(self._durable, workers)
        self._lines = ledger_lines(self._durable.ledger)
        self._lines.insert(0, f"ring 1 trains: {' '.join(workers)}, at step {at}")

    def _led(self) -> JobMachine:
        return JobMachine(self._durable, LeadTimes.of(self._settings.session_s), Deadlines.of(self._settings.step_s))

    def _take_over(self, given: Command) -> None:
        without = given.option("without", _names, list[str]())
        given.end(0)
        self._written = self._told = True
        self._machine = self._led()
        alive = {member.identity.id for member in self._durable.members} - set(without)
        self._feed([TookOver(frozenset(alive))], written=True)

    def _pass(self, seconds: float, *, trains: bool) -> None:
        until, self._timed = self.now + seconds, True
        while self.now < until:
            wake_at = self._machine.wake_at
            due = min(self.now + TICK_S, until, *([wake_at] if wake_at > self.now else []))
            steps = round((due - self.now) / self._settings.step_time_s) if trains else 0
            self._feed([TimePassed()], written=True, after_s=due - self.now)
            for worker, last in self._reports.items():
                if steps and last.phase is Phase.TRAINING and last.generation == self._machine.record.generation:
                    stepped = msgspec.structs.replace(last, step=last.step + steps, at=self.now)
                    self._feed([Reported(worker, stepped)], written=True, after_s=0.0)
        self._timed = False

    def _inputs(self, given: Command) -> Iterable[Input]:
        match given.name:
            case "register":
                yield self._registered(given)
            case "report":
                workers = _names(given.word(0))
                options, words = dict(given.options), list(given.words)
                for worker in workers:
                    given.options, given.words = dict(options), list(words)
                    yield Reported(worker, self._observation(worker, given))
            case "meet":
                yield from self._meetings(given)
            case "prepared":
                away = given.option("without", _names, list[str]())
                given.end(0)
                yield from self._prepared([one for one in self._called(given).roster if one not in away], "")
            case "unprepared":
                given.end(2)
                yield from self._prepared(_names(given.word(0)), given.word(1))
            case "save" | "preempt" | "stored" | "not_stored" | "published" | "unpublished":
                yield from self._of_saving(given)
            case "vanish" | "refuse":
                yield self._gone(given)
            case "scale" | "scale_out" | "scale_in":
                yield _scaling(given)
            case "batch":
                given.end(1)
                yield AskBatch(int(given.word(0)))
            case "migrate":
                yield _migration(given)
            case _:
                yield self._from_elsewhere(given)

    def _from_elsewhere(self, given: Command) -> Input:
        match given.name:
            case "rule" | "replace":
                return self._ruled(given)
            case "stop":
                given.end(1)
                return AskStop(given.word(0))
            case _:
                raise given.bad(f"there is no command {given.name}")

    def _registered(self, given: Command) -> Register:
        settings, worker = self._settings, given.word(0)
        answering, again = given.flag("answering"), given.flag("again")
        host = given.option("host", str, "h")
        daemon = given.option("daemon", int, 1)  # the how many-th of this worker
        identity = Identity(worker, host, given.option("address", str, host), 1, daemon, port=daemon)
        given.end(1)
        np, least, most = settings.np, settings.minimum, settings.maximum
        policy = JobPolicy(checkpointing=settings.checkpointing)
        return Register(identity, np, least, most, answering=answering, again=again, job_policy=policy)

    def _gone(self, given: Command) -> Vanished | NotListening:
        given.end(1)
        if given.name == "vanish":
            return Vanished(given.word(0), "its daemon's session ended")
        known = {member.identity.id: member.identity for member in self._machine.record.members}
        return NotListening(tuple(known[worker] for worker in _names(given.word(0)) if worker in known))

    def _observation(self, worker: str, given: Command) -> Observation:
        """What is not said is as before, but a reason and a pause are said once."""
        last, settings = self._reports.get(worker, NEW), self._settings
        opens, leaving = given.flag("opens"), given.flag("leaving")
        phase = Phase(given.word(1, last.phase.value))
        generation = given.option("generation", int, last.generation)
        step = given.option("step", int, last.step)
        trains = phase is Phase.TRAINING
        seen = msgspec.structs.replace(
            last,
            phase=phase,
            generation=generation,
            step=step,
            leases_of=given.option("leases_of", int, self._leases_of(last, phase, generation, step)),
            step_time_s=given.option("step_time", float, settings.step_time_s if trains and step else last.step_time_s),
            data=settings.data if opens else last.data,
            pause=given.option("pause", _pause, None),
            leaving=leaving or last.leaving,
            reason=given.option("reason", str, ""),
            missed=given.option("missed", int, last.missed),
            marked=given.option("mark", _mark, last.marked),
            diverged=given.option("diverged", lambda one: _diverged(one, generation, step), last.diverged),
            booted=last.booted or trains or phase is Phase.READY,
            prepares=settings.prepares,
            sends_state=settings.sends,
            foreign=given.flag("foreign"),
            dead=given.option("dead", lambda one: tuple(_names(one)), last.dead),
            save_wanted=given.option("wants", int, last.save_wanted),
            at=given.option("at", float, self.now),
        )
        if epochs := given.option("epochs", int, 0):
            seen = msgspec.structs.replace(seen, data=msgspec.structs.replace(settings.data, epochs=epochs))
        given.end(2)
        return seen

    def _leases_of(self, last: Observation, phase: Phase, generation: int, step: int) -> int:
        """Where its ring has come to the step that was planned, the leases of that plan hold; else those of before."""
        plan = self._machine.record.plan
        if generation == last.generation or phase is not Phase.TRAINING:
            return last.leases_of
        if plan is not None and plan.generation == generation and plan.after_step == step:
            return generation
        return self._machine.record.generation

    def _meetings(self, given: Command) -> Iterable[Input]:
        away = given.option("without", _names, list[str]())
        given.end(0)
        roll_call = self._called(given)
        ranks = [roll_call.roster.index(worker) for worker in away]
        for worker in roll_call.roster:
            if worker not in away:
                last = self._reports[worker]
                yield Reported(worker, msgspec.structs.replace(last, met=(roll_call.number, *ranks), at=self.now))

    def _called(self, given: Command) -> RollCall:
        roll_call = self._machine.record.roll_call
        if roll_call is None:
            raise given.bad("no worker is called")
        return roll_call

    def _prepared(self, workers: Iterable[str], failure: str) -> Iterable[Input]:
        record = self._machine.record
        gives = record.roll_call is not None and self._settings.sends and not failure
        first = record.roll_call.roster[0] if record.roll_call is not None and gives else ""
        for worker in workers:
            said = {"prepared": (record.planned, failure), "offer": OFFER if worker == first else 0, "at": self.now}
            yield Reported(worker, msgspec.structs.replace(self._reports[worker], **said))

    def _ruled(self, given: Command) -> Input:
        given.end(2)
        if given.name == "rule":
            return Ruled(int(given.word(0)), (), given.word(1), {}, act=True)
        size = len(self._machine.record.roster)
        return Ruled(size, (given.word(0),), given.word(1), {}, act=True)

    def _of_saving(self, given: Command) -> Iterable[Input]:
        match given.name:
            case "save":
                given.end(1)
                yield AskCheckpoint(given.word(0))
            case "preempt":
                given.end(1)
                yield AskPreempt("its machines are taken away", float(given.word(0)))
            case "stored" | "not_stored":
                yield from self._stored(given)
            case _:
                yield self._published(given)

    def _stored(self, given: Command) -> Iterable[Input]:
        failure = given.word(1) if given.name == "not_stored" else ""
        given.end(2 if failure else 1)
        number = self._machine.record.checkpoints.saves
        for worker in _names(given.word(0)):
            last = self._reports[worker]
            if failure:
                seen = msgspec.structs.replace(last, save_failed=(number, failure), at=self.now)
            else:
                info = PartInfo((FileInfo(f"part of {worker}", 100, ""),), stall_ms=2.0)
                seen = msgspec.structs.replace(last, saved_part=(number, info), at=self.now)
            yield Reported(worker, seen)

    def _published(self, given: Command) -> Input:
        number = self._machine.record.checkpoints.saves
        failed = given.name == "unpublished"
        given.end(1 if failed else 0)
        return PublishingFailed(number, given.word(0)) if failed else SavingPublished(number)

    # ------------------------------------------------------------------------------------------------- the machine

    def _feed(self, inputs: Iterable[Input], *, written: bool, after_s: float = BETWEEN_S) -> None:
        for happened in inputs:
            self.now += after_s
            commands = self._machine.handle(happened, self.now)
            whose = f"{happened.worker}: " if isinstance(happened, Reported) else ""
            at = f"at {self.now:.2f} s: " if self._timed else ""
            for one in commands:
                match one:
                    case Tell():
                        self._lines.append(f"event  {at}{one.fact.kind.value}  {one.fact.words()}".rstrip())
                    case Refuse():
                        kind = " as stale" if one.stale else " for now" if one.retry else ""
                        self._lines.append(f"answer {whose}refused{kind}: {one.reason}")
                    case Acknowledge():
                        self._lines.append(f"answer taken: size {one.target}")
                    case TellOfSaving(step, path):
                        self._lines.append(
                            f"answer durable: step {step}, {path}" if path else "answer taken: under way"
                        )
                    case TellOfMigration(done):
                        self._lines.append(f"answer {'done' if done else 'taken: under way'}")
                    case PublishSaving(number):
                        self._lines += [f"publish {at}checkpoint {number}"] if written else []
            if isinstance(happened, Reported) and not any(isinstance(one, Refuse) for one in commands):
                self._reports[happened.worker] = happened.observation
            if written:
                self._durable = self._machine.record


def _scaling(given: Command) -> Input:
    request, how_many = given.option("request", str, ""), given.word(0)
    given.end(1)
    if given.name == "scale":
        return AskScale(int(how_many), request)
    if given.name == "scale_out":
        return AskScaleOut(int(how_many), request)
    return AskScaleIn(int(how_many) if how_many.isdigit() else tuple(_names(how_many)), request)


def _migration(given: Command) -> Input:
    to = given.option("to", parse_rooms, tuple[Room, ...]())
    request, within_s = given.option("request", str, "m"), given.option("within", float, 0.0)
    given.end(1)
    return AskMigrate(request, given.word(0), to, within_s)


def _checkpointing(given: Command) -> Checkpointing:
    every_s, every_steps = given.option("save_every", float, 0.0), given.option("save_steps", int, 0)
    last, saved = given.flag("save_last"), given.flag("saved")
    folder = "/c" if saved or last or every_s or every_steps else ""
    return Checkpointing(folder=folder, every_s=every_s, every_steps=every_steps, last=last)


def _names(text: str) -> list[str]:
    return text.split(",")


def _pause(text: str) -> Pause:
    """In milliseconds."""
    leave, enter, state = (float(part) for part in text.split("+"))
    return Pause(leave, enter, state, leave + enter + state)


def _mark(text: str) -> tuple[int, int]:
    number, step = text.split(":")
    return int(number), int(step)


def _diverged(text: str, generation: int, step: int) -> Divergence:
    worker, _, new = text.partition(":")
    return Divergence(
        generation=generation,
        step=step,
        equal_step=step - 1 if new else 0,
        newcomers=bool(new),
        first="weight",
        differing=1,
        compared=8,
        workers=(worker,),
        root="w0",
        majority=True,
        joined=(step - 4,) if new else (),
    )
