"""Step times of one script of DistributedDataParallel on several hosts: under torchrun, and as a job of edl's.

Both train in turns, as on one machine (`edl.proof.paired_turns`). Owns: how the two are started on each host.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from edl.errors import EdlError
from edl.launch.host_slots import spread
from edl.proof.paired_turns import TORCHRUN, PairedModel, TurnLimits, alternate
from edl.proof.proof_hosts import ProofHosts, address_name
from edl.proof.proof_job import HostsProofJob, ProofPlan

JOB = "turns"


def host_turns(plan: ProofPlan, folder: Path, hosts: ProofHosts, model: PairedModel) -> dict[str, list[float]]:
    """Return the median step of each turn in milliseconds, by way. Raises EdlError when a job does not train."""

    def words(kind: str) -> list[str]:
        return [str(model.script), *model.words(plan.turns, "{folder}", kind, plan.device)]

    _start_torchrun(plan, hosts, words("torchrun"))
    own = folder / JOB
    own.mkdir()
    alone = msgspec.structs.replace(plan, kills=0)
    job = HostsProofJob(JOB, alone, own, hosts, [sys.executable, "-P", "-m", "edl.torchrun", *words("edl")])

    def look() -> None:
        if (code := job.launcher.poll()) is not None:
            raise EdlError(f"the job of the comparison ended with exit code {code}:\n{job.log()}")
        job.look()

    with job.ended():
        limits = TurnLimits(plan.turns, plan.workers, plan.turns_s)
        return alternate(folder, ["torchrun", "edl"], limits, hosts.put, lambda _: job.log(), look)


def _start_torchrun(plan: ProofPlan, hosts: ProofHosts, words: list[str]) -> None:
    used = list(spread(plan.workers, [link.host for link in hosts.links]))
    first = hosts.links[0]
    for rank, (host, link) in enumerate(zip(used, hosts.links, strict=False)):
        nodes = ["--nnodes", str(len(used)), "--node-rank", str(rank), "--nproc-per-node", str(host.slots)]
        place = ["--master-addr", address_name(first.host), "--master-port", str(first.port)]
        link.start([*TORCHRUN, *nodes, *place, *words], {"OMP_NUM_THREADS": "1"})
