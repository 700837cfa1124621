"""The report of `edl prove`: its values, whether all has held, and the page that shows it.

Owns: the JSON file's fields (they may grow, and never change their meaning), the page, and the facts of a
machine that it names. Does not own: measuring.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

import msgspec

from edl.dashboard.page_html import scrolling, tiles
from edl.dashboard.page_report import alone_in_file
from edl.dashboard.page_view import Tile
from edl.facts import counted

VERSION = 1


class Machine(msgspec.Struct, frozen=True):
    cores: int
    memory_gb: float
    gpus: list[str]
    system: str  # such as Linux x86_64
    kernel: str
    python: str
    torch: str
    load: float  # average of the last minute, at the end

    def words(self) -> str:
        gpus = f", {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ""
        return f"{self.cores} cores, {self.memory_gb:g} GB{gpus}, {self.system}, PyTorch {self.torch}"


class ProofHost(msgspec.Struct, frozen=True):
    name: str
    slots: int
    machine: Machine
    clock_error_ms: float  # at most, of times that are compared between hosts


class Resize(msgspec.Struct, frozen=True):
    before: int
    after: int
    pause_ms: float  # of the survivor that lost most, beyond its median step
    step_ms: float


class Kill(msgspec.Struct, frozen=True):
    rank: int
    first_ms: float  # from the kill until all survivors have made a step without the victim
    whole_ms: float  # until a replacement trains with them
    steps_lost: int
    void: int  # mini-batches that a survivor had to do again


class ProofOutcome(msgspec.Struct, frozen=True):
    """End of the whole job, by its audit and its workers' states."""

    exit_code: int
    trained: int
    lost: int
    repeated: int
    wrong: int
    states_compared: int
    states_different: int


class PairedTurns(msgspec.Struct, frozen=True):
    """The median step of each turn in milliseconds, of one script under both launchers."""

    edl_ms: list[float]
    torchrun_ms: list[float]

    def ratios(self) -> list[float]:
        return _ratios(self.edl_ms, self.torchrun_ms)


class HorovodTurns(msgspec.Struct, frozen=True):
    """Median step of each turn of Horovod's script in milliseconds, under `edl run --ring horovod` and `horovodrun`."""

    edl_ms: list[float]
    horovodrun_ms: list[float]

    def ratios(self) -> list[float]:
        return _ratios(self.edl_ms, self.horovodrun_ms)


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=False)]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    edl: str
    date: str
    machine: Machine
    workers: int
    ring: str
    device: str
    step_ms: float  # that a step of the job sleeps
    resizes: list[Resize]
    kills: list[Kill]
    outcome: ProofOutcome
    turns: PairedTurns
    took_s: float
    written_mb: float
    horovod: HorovodTurns | None = None  # None: Horovod is not installed, or there are several hosts
    hosts: list[ProofHost] = []  # of a proof on several; `machine` is the first of them

    def where(self) -> str:
        if not self.hosts:
            return self.machine.words()
        slots = " + ".join(str(host.slots) for host in self.hosts)
        return f"{counted(len(self.hosts), 'host')} ({slots} workers at most), the first: {self.machine.words()}"

    def faults(self) -> list[str]:
        """Describe what has not held; times are figures, and no fault."""
        one, lost = self.outcome, sum(kill.steps_lost for kill in self.kills)
        found = {
            f"the job ended with exit code {one.exit_code}": one.exit_code != 0,
            f"{one.lost} samples were lost": one.lost > 0,
            f"{one.repeated} samples were trained twice": one.repeated > 0,
            f"{one.wrong} mini-batches had samples of another place": one.wrong > 0,
            f"workers had different weights after {one.states_different} changes": one.states_different > 0,
            f"{lost} steps were lost by kills": lost > 0,
        }
        return [words for words, is_so in found.items() if is_so]


def rows(proof: Proof) -> list[tuple[str, str]]:
    few, many = proof.workers, proof.workers + 1
    there = [one.pause_ms for one in proof.resizes if one.after > one.before]
    back = [one.pause_ms for one in proof.resizes if one.after < one.before]
    ratios = proof.turns.ratios()
    found = [
        (f"{few} → {many} workers: pause beyond a step, ms", _spread(there)),
        (f"{many} → {few} workers: pause beyond a step, ms", _spread(back)),
        ("a step of that job, ms", _spread([one.step_ms for one in proof.resizes])),
        ("`kill -9`: until the others have made a step, ms", _spread([one.first_ms for one in proof.kills])),
        ("`kill -9`: until a replacement trains, ms", _spread([one.whole_ms for one in proof.kills])),
        ("steps lost by kills", str(sum(one.steps_lost for one in proof.kills))),
        (
            "samples trained; lost; repeated",
            f"{proof.outcome.trained:,}; {proof.outcome.lost}; {proof.outcome.repeated}",
        ),
        (
            "states compared after changes; different",
            f"{proof.outcome.states_compared}; {proof.outcome.states_different}",
        ),
        ("DistributedDataParallel under torchrun, ms a step", _spread(proof.turns.torchrun_ms)),
        ("the same script under edl torchrun, ms a step", _spread(proof.turns.edl_ms)),
        ("edl over torchrun", _spread(ratios, 3)),
    ]
    if proof.horovod is not None:
        found += [
            ("Horovod under horovodrun, ms a step", _spread(proof.horovod.horovodrun_ms)),
            ("the same steps under edl run --ring horovod, ms a step", _spread(proof.horovod.edl_ms)),
            ("edl over Horovod", _spread(proof.horovod.ratios(), 3)),
        ]
    return [(name.replace("`", ""), value) for name, value in found]


def as_json(proof: Proof) -> bytes:
    faults = proof.faults()
    whole: dict[str, Any] = {"holds": not faults, "faults": faults, **msgspec.to_builtins(proof)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def as_page(proof: Proof) -> str:
    """Make one HTML file, which loads nothing and runs no script."""
    faults = proof.faults()
    state = '<b class="state failed">does not hold</b>' if faults else '<b class="state finished">holds</b>'
    told = "".join(f"<li>{escape(fault)}</li>" for fault in faults)
    figures = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows(proof))
    where = [
        ("machine", proof.where()),
        *((f"host {one.name}", f"{one.machine.words()}; {one.slots} workers at most") for one in proof.hosts),
        ("load at the end", f"{proof.machine.load:g}"),
        ("edl", f"{proof.edl}, --ring {proof.ring}, Python {proof.machine.python}"),
        ("model", f"{proof.workers} workers on {proof.device}; each step sleeps {proof.step_ms:g} ms besides"),
        ("tried", f"{proof.date}, {proof.took_s:.0f} s, {proof.written_mb:g} MB written"),
    ]
    facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in where)
    body = f"""<body><header><h1>edl prove</h1>{state}</header>
<main>
<section id="tiles" aria-label="At a glance">{tiles(_tiles(proof))}</section>
{f'<section class="wide"><h2>What does not hold</h2><ul>{told}</ul></section>' if told else ""}
<section class="wide"><h2>Figures: the median, the least and the greatest</h2>{scrolling("Figures")}
<table class="pairs">
<thead><tr><th>figure</th><th>value</th></tr></thead><tbody>{figures}</tbody></table></div></section>
<section class="wide"><h2>Where and how</h2>{scrolling("Where and how")}<table class="pairs">
<thead><tr><th>what</th><th>value</th></tr></thead><tbody>{facts}</tbody></table></div></section>
</main></body></html>
"""
    return alone_in_file(f"edl prove · {escape(proof.date)}", body)


def _tiles(proof: Proof) -> list[Tile]:
    pauses = [one.pause_ms for one in proof.resizes]
    first = [one.first_ms for one in proof.kills]
    whole = proof.outcome.lost + proof.outcome.repeated
    ratios = proof.turns.ratios()
    return [
        Tile("pause at a change of size", _ms(pauses), f"longest {max(pauses):.0f} ms" if pauses else ""),
        Tile("trains on after kill -9", _ms(first), f"longest {max(first):.0f} ms" if first else ""),
        Tile("samples lost or repeated", str(whole), f"of {proof.outcome.trained:,}", "bad" if whole else "good"),
        Tile("a step beside DDP's", f"{statistics.median(ratios):.3f}" if ratios else "-", "edl over torchrun"),
    ]


def _ms(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ms" if values else "-"


def _spread(values: Sequence[float], places: int = 1) -> str:
    """Write the median with the least and the greatest."""
    if not values:
        return "-"
    middle, least, greatest = statistics.median(values), min(values), max(values)
    return f"{middle:.{places}f} ({least:.{places}f} to {greatest:.{places}f}, of {len(values)})"


def machine(device: str) -> Machine:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if device == "cuda" else []
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory, 1),
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        load=round(os.getloadavg()[0], 1),
    )
