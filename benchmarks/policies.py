"""Which policy is good for what? Each on each trace, ablations, and loads from light to overload: tables and pictures.

    python -m benchmarks.policies [--traces DIR] [--out out] [--keep out/policies] [--parts traces ablations loads]
                                  [--nodes 4x4] [--seeds 1]

The traces are those of the folder that --traces names, or EDL_TRACES; the project has none that were published.
Writes policies.md below --out, and pictures below its folder `pictures`. In a page that is there, what stands between
its marks is written anew, and the words around them stay. Each run is kept when it is over: the same command goes on
where it was.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import policies_page, policies_pictures
from benchmarks.policies_plan import (
    LOADS,
    RANGES,
    ablated,
    has_models,
    loaded,
    on_trace,
    setting_of,
    traces_in,
)
from benchmarks.policies_runs import Found, Kept, PlannedRun, play
from edl.errors import ConfigError

PARTS = ("traces", "ablations", "loads")


class Comparison:
    """Plays what was not played yet, says how far it is, and writes a part of the page when it has all of it."""

    def __init__(self, traces: Path, out: Path, keep: Path) -> None:
        self._traces, self._kept = traces, Kept(keep, traces)
        self._page = policies_page.Page(out / "policies.md")
        self._pictures = out / "pictures"
        self._pictures.mkdir(parents=True, exist_ok=True)

    def of_traces(self, nodes: tuple[int, int]) -> None:
        for trace in traces_in(self._traces):
            planned = on_trace(trace, nodes)
            found = self._all(run for _, run in planned)
            rows = [(label, found[run]) for label, run in planned]
            name, setting = Path(trace).stem, setting_of(trace, nodes)
            picture = self._pictures / f"policies-{name}.svg"
            policies_pictures.completions(rows, setting.published, picture)
            self._page.write(name, policies_page.of_trace(rows, setting, picture))

    def of_ablations(self) -> None:
        traces = [trace for trace in traces_in(self._traces) if Path(trace).stem == "workload-6"]
        if not traces:
            print("no ablations: they need workload-6.csv in --traces", file=sys.stderr)
            return
        planned = ablated(traces[0])
        found = self._all(planned.values())
        table = {key: found[run] for key, run in planned.items()}
        picture = self._pictures / "policies-ablations.svg"
        policies_pictures.ablations(table, picture)
        self._page.write("ablations", policies_page.of_ablations(table, picture))

    def of_loads(self, seeds: int) -> None:
        if not has_models(self._traces):
            print("no loads: they need the tables of Pollux's applications in --traces", file=sys.stderr)
            return
        for ranges in RANGES:
            rows = []
            for load in LOADS:
                planned = [loaded(ranges, load, seed) for seed in range(seeds)]
                found = self._all(run for of_seed in planned for run in of_seed.values())
                rows.append((load, [{kind: found[run] for kind, run in of_seed.items()} for of_seed in planned]))
            picture = self._pictures / f"policies-loads-{ranges}.svg"
            policies_pictures.loads(rows, picture)
            self._page.write(f"loads-{ranges}", policies_page.of_loads(rows, picture))

    def _all(self, runs: Iterable[PlannedRun]) -> dict[PlannedRun, Found]:
        planned = list(dict.fromkeys(runs))
        found = {}
        for at, run in enumerate(planned, start=1):
            known = self._kept.find(run)
            if known is None:
                began = time.monotonic()
                print(f"{at} of {len(planned)}: {run}", file=sys.stderr, flush=True)
                known = play(run, self._traces)
                self._kept.keep(known)
                print(
                    f"  mean {known.summary.mean or 0:,.0f} s, took {time.monotonic() - began:.0f} s", file=sys.stderr
                )
            found[run] = known
        return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = os.environ.get("EDL_TRACES")
    parser.add_argument(
        "--traces",
        type=Path,
        required=not named,
        default=Path(named or ""),
        help="a folder with traces and their tables [EDL_TRACES]",
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the page and its pictures are written")
    parser.add_argument("--keep", type=Path, default=Path("out/policies"), help="where runs are kept")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--nodes", default="4x4", help="for traces of your own: nodes times devices")
    parser.add_argument("--seeds", type=int, default=1, help="of the loads: so many draws, of which the mean is taken")
    given = parser.parse_args(arguments)
    matched = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,4})", given.nodes)
    if matched is None or given.seeds < 1:
        parser.error("--nodes must be nodes times devices, such as 4x4; --seeds 1 or more")
    try:
        comparison = Comparison(given.traces, given.out, given.keep)
        if "traces" in given.parts:
            comparison.of_traces((int(matched[1]), int(matched[2])))
        if "ablations" in given.parts:
            comparison.of_ablations()
        if "loads" in given.parts:
            comparison.of_loads(given.seeds)
    except ConfigError as error:
        print(f"benchmarks.policies: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.policies: interrupted; the same command goes on with what is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
