"""What a job's machine did, in short: how its record changed, and what each worker is told otherwise than before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from edl.core.data.ledgers import restored_ledger
from edl.core.job.orders import OrderBook
from edl.protocol.assignment import Orders, Summons, Verdict
from edl.protocol.checkpoint_record import Saved, SaveRequest, Saving
from edl.protocol.data_nouns import LedgerSnapshot
from edl.protocol.record import PART_OF, Migrated, Migration, Plan, Record, RollCall, Room, Trials

# --------------------------------------------------------------------------------------------------------- the record

SILENT: Final = frozenset(
    {
        "version",  # grows with every change
        "tally",  # grows with every change and with time
        # counts of what is shown
        *("arrivals", "planned", "roll_calls", "rebatches", "awaited", "saves", "migrations"),
        *("losses", "save_costs", "save_wanted"),  # likewise, and told by events, or with a request
        *("roster", "began_step", "gone", "past"),  # told with the generation, and with those that are gone
    }
)


def changes(before: Record, after: Record) -> list[str]:
    """Each change of the record in a line."""
    lines = [*_members(before, after)]
    was, now = _fields(before), _fields(after)
    for name, new in now.items():
        old = was[name]
        if old != new and name not in SILENT and name != "members":
            lines += _SHOWN.get(name, _plainly)(name, old, new, after)
    return [line for line in lines if line]


def _fields(record: Record) -> dict[str, Any]:
    """Return all fields, those of its parts too."""
    fields: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        fields |= msgspec.structs.asdict(value) if name in PART_OF.values() else {name: value}
    return fields


def _members(before: Record, after: Record) -> Iterable[str]:
    was = {member.identity.id: member for member in before.members}
    now = {member.identity.id: member for member in after.members}
    moves: dict[str, list[str]] = {}
    for worker, member in now.items():
        if worker not in was:
            moves.setdefault(f"new, {member.state.value}", []).append(worker)
        elif was[worker].state is not member.state:
            moves.setdefault(f"{was[worker].state.value} → {member.state.value}", []).append(worker)
        if worker in was and was[worker].identity != member.identity:
            moves.setdefault("has another daemon", []).append(worker)
    for worker, member in was.items():
        if worker not in now:
            why = next((gone.reason for gone in after.gone if gone.worker == worker), "")
            moves.setdefault(f"{member.state.value} → gone{f' ({why})' if why else ''}", []).append(worker)
    for move, workers in moves.items():
        yield f"{' '.join(workers)}: {move}"


def _plainly(name: str, old: object, new: object, after: Record) -> list[str]:
    return [f"{name}: {_short(old)} → {_short(new)}"]


def _begun(name: str, old: object, new: object, after: Record) -> list[str]:
    return ["a ring has stood: a worker that comes from now on boots alone"]


def _generation(name: str, old: int, new: int, after: Record) -> list[str]:
    return [f"ring {new} stands after step {after.began_step}: {' '.join(after.roster)}"]


def _plan(name: str, old: Plan | None, new: Plan | None, after: Record) -> list[str]:
    if new is None:
        return [] if old is None or old.generation == after.generation else [f"plan {old.generation} is dropped"]
    step = "at once" if new.after_step is None else f"after step {new.after_step}"
    data = "" if new.ledger is None else f", data leased up to step {restored_ledger(new.ledger).covered_step}"
    return [f"plan {new.generation} {step}: {' '.join(new.roster)}{data}"]


def _superseded(name: str, old: object, new: tuple[Plan, ...], after: Record) -> list[str]:
    return [f"superseded plans: {', '.join(str(plan.generation) for plan in new)}"] if new else []


def _roll_call(name: str, old: RollCall | None, new: RollCall | None, after: Record) -> list[str]:
    if new is None:
        return []
    what = f"ring {new.generation} is to be prepared" if new.generation else f"call {new.number}"
    return [f"{what}: {' '.join(new.roster)}"]


def _ledger(name: str, old: object, new: LedgerSnapshot | None, after: Record) -> list[str]:
    return ledger_lines(new)


def ledger_lines(new: LedgerSnapshot | None) -> list[str]:
    """How far the data is trained and leased."""
    if new is None:
        return []
    ledger = restored_ledger(new)
    counts = ledger.counts()
    held = f"{counts.trained} trained, {counts.leased} leased, {counts.unassigned} unassigned"
    return [f"data: step {ledger.step} stable, leased up to step {ledger.covered_step}; epoch {counts.epoch}: {held}"]


def _rebatch(name: str, old: Any, new: Any, after: Record) -> list[str]:
    if new is None:
        return [f"mark {old.number} is lifted"]
    return [f"mark {new.number} at step {new.mark}{', which the plan rests on' if new.planned else ''}"]


def _trials(name: str, old: Trials, new: Trials, after: Record) -> list[str]:
    lines = []
    for field in new.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if was == now or field == "judged":
            continue
        if field == "strikes":
            lines += [f"strike {one.times} for {one.worker}: {one.reason}" for one in now if one not in was]
            now = [one.worker for one in now]
            lines += [f"no strike for {one.worker}" for one in was if one.worker not in now]
        elif field == "proven":
            lines.append(f"proven to form a ring: {_short(now)}")
        elif field == "left_out":
            lines.append(f"left out to see whether a ring stands without it: {_short(now)}")
        elif field == "failed":
            lines.append(f"rings in a row that came to nothing: {now}")
        elif field == "tried":
            lines.append(f"tried without: {_short(now)}")
        elif field == "unfit":
            lines += [f"unfit: {one.worker} of {one.host}" for one in now if one not in was]
        else:
            lines.append(f"trials.{field}: {_short(was)} → {_short(now)}")
    return lines


def _limits(name: str, old: object, new: Any, after: Record) -> list[str]:
    return [f"size from {new.minimum} to {new.maximum or 'any'}"]


def _target(name: str, old: int, new: int, after: Record) -> list[str]:
    return [f"wanted size: {old} → {new}"]


def _asked_batch(name: str, old: int, new: int, after: Record) -> list[str]:
    return [f"{new} samples a step, of all together"]


def _state(name: str, old: Any, new: Any, after: Record) -> list[str]:
    return [f"job: {old.value} → {new.value}"]


def _unended(name: str, old: str, new: str, after: Record) -> list[str]:
    return [f"unended: {new}"] if new else ["unended: none"]


def _taken(name: str, old: object, new: Any, after: Record) -> list[str]:
    return [f"request {new[-1].request} is taken, with size {new[-1].target}"]


def _saving(name: str, old: Saving | None, new: Saving | None, after: Record) -> list[str]:
    if new is None:
        durable = (
            after.checkpoints.saved is not None and old is not None and after.checkpoints.saved.number == old.number
        )
        return [] if durable or old is None else [f"saving {old.number} is given up"]
    what = f"saving {new.number} of ring {new.generation} after step {new.after_step}: {' '.join(new.roster)}"
    data = "" if new.ledger is None else ledger_lines(new.ledger)[0].removeprefix("data: step ")
    has = f"saving {new.number} has as data: {data}" if data else ""
    if old is None or old.number != new.number:
        return [what, has]
    if old.ledger != new.ledger:
        return [has]
    if new.complete:
        return [f"saving {new.number}: all parts are durable"]
    return [f"saving {new.number}: parts that are durable: {' '.join(part.worker for part in new.parts)}"]


def _saved(name: str, old: object, new: Saved, after: Record) -> list[str]:
    return [f"checkpoint {new.number} of step {new.step} is durable: {new.path}"]


def _save_requests(name: str, old: tuple[SaveRequest, ...], new: tuple[SaveRequest, ...], after: Record) -> list[str]:
    return [f"request {one.request}: {_outcome(one)}" for one in new if one not in old]


def _migration(name: str, old: Migration | None, new: Migration | None, after: Record) -> list[str]:
    if new is None:
        return []
    if old is None or old.number != new.number:
        return [f"migration {new.number}, asked for as {new.request}: from {new.host} to {_short(new.to)}"]
    return [f"for those of {new.host} have come: {' '.join(new.newcomers) or 'none'}"]


def _migrated(name: str, old: object, new: tuple[Migrated, ...], after: Record) -> list[str]:
    return [f"request {new[-1].request} is over{f': {new[-1].failure}' if new[-1].failure else ''}"]


def _outcome(one: SaveRequest) -> str:
    if one.path:
        return f"served by {one.path}"
    return f"failed ({one.failure})" if one.failure else f"taken, for saving {one.first} or a later one"


_Shown = Callable[[str, Any, Any, Record], list[str]]
_SHOWN: Final[Mapping[str, _Shown]] = {
    "begun": _begun,
    "generation": _generation,
    "plan": _plan,
    "superseded": _superseded,
    "roll_call": _roll_call,
    "ledger": _ledger,
    "rebatch": _rebatch,
    "trials": _trials,
    "limits": _limits,
    "target": _target,
    "asked_batch": _asked_batch,
    "state": _state,
    "unended": _unended,
    "taken": _taken,
    "saving": _saving,
    "saved": _saved,
    "save_requests": _save_requests,
    "migration": _migration,
    "migrated": _migrated,
}


def _short(value: object) -> str:
    if isinstance(value, Room):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"{name}={_short(getattr(value, name))}" for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(one)}" for key, one in value.items()) or "none"
    if isinstance(value, tuple):
        return " ".join(map(_short, value)) or "none"
    return "none" if value in {None, ""} else str(value)


# --------------------------------------------------------------------------------------------------------- the orders

Told = dict[str, str]  # by topic


def told(record: Record, workers: Iterable[str]) -> dict[str, Told]:
    """What the orders of each worker say."""
    book = OrderBook(record, term=1)
    return {worker: _topics(book.orders(worker)) for worker in workers}


def news(before: Mapping[str, Told], now: Mapping[str, Told]) -> list[str]:
    """What is told otherwise, in a line for all who are told the same."""
    lines: dict[str, list[str]] = {}
    for worker, topics in now.items():
        was = before.get(worker, {})
        said = [text for topic, text in topics.items() if was.get(topic) != text and _is_news(topic, was, topics)]
        ends = topics.get("verdict", "").startswith(("stop", "leave at once"))
        said += [_GONE[topic] for topic in was if topic not in topics and topic in _GONE and not ends]
        if said:
            lines.setdefault("; ".join(said), []).append(worker)
    return [f"{' '.join(workers)}: {said}" for said, workers in lines.items()]


def _is_news(topic: str, was: Told, topics: Told) -> bool:
    """With each seat come the addresses of its neighbours: worth a word where they are others than before. How to boot
    is of use to a worker that has just come.
    """
    if topic == "boot":
        return not was
    return topic != "peers" or ("peers" in was and was.get("seat") == topics.get("seat"))


_GONE: Final = {
    "seat": "no ring to enter any more",
    "call": "the call is over",
    "verdict": "stay",
    "save": "nothing to copy any more",
    "hold": "no step to wait after any more",
}


def _of_saving(orders: Orders) -> Told:
    topics: Told = {}
    if orders.save is not None:
        stands = ", where it stands" if orders.save.stands else ""
        step = orders.save.after_step
        topics["save"] = f"copy part {orders.save.part} of {orders.save.parts} after step {step}{stands}"
    if orders.hold is not None:
        topics["hold"] = f"wait after step {orders.hold.after_step} of ring {orders.hold.generation}"
    return topics


def _topics(orders: Orders) -> Told:
    topics: Told = {}
    match orders.verdict:
        case Verdict.STOP:
            return {"verdict": f"stop ({orders.reason})" if orders.reason else "stop"}
        case Verdict.LEAVE if not orders.leave_after_step:
            return {"verdict": "leave at once"}
        case Verdict.LEAVE:
            topics["verdict"] = f"leave after step {orders.leave_after_step}"
        case Verdict.STAY:
            pass
    if orders.wanted:
        topics["wait"] = f"wait, {orders.present} of {orders.wanted} are here"
    if orders.boot_alone:
        topics["boot"] = "boot alone"
    if orders.summons is not None:
        topics["call"] = _call(orders.summons)
    topics |= _of_saving(orders)
    if orders.assignment is not None:
        topics["seat"] = _seat(orders)
        topics["peers"] = f"find the others at {', '.join(peer.address for peer in orders.assignment.peers)}"
    for share in orders.shares:
        if not share.leases:
            topics[f"leases {share.generation}"] = f"no leases of ring {share.generation}"
            continue
        until = max(lease.until_step for lease in share.leases)
        mark = f", read no further than step {share.mark} (mark {share.rebatch})" if share.rebatch else ""
        topics[f"leases {share.generation}"] = f"leases of ring {share.generation} up to step {until}{mark}"
    return topics


def _call(summons: Summons) -> str:
    if summons.place is None:
        return f"meet the others of call {summons.number}"
    return f"prepare ring {summons.place.generation} of {summons.place.size}"


def _seat(orders: Orders) -> str:
    seat = orders.assignment
    assert seat is not None
    when = "at once" if seat.after_step is None else f"after step {seat.after_step}"
    new = f", {seat.newcomers} of them new" if seat.newcomers else ""
    goes = "adopt" if seat.prepared else "enter"
    beside = f" (state at {seat.offer}, in {seat.beside} steps)" if seat.beside else ""
    return f"{goes} ring {seat.place.generation} of {seat.place.size}{new}{beside}, {when}"
