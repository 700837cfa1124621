"""`edl cluster`: a cluster on this machine, started, looked at, stopped."""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edl.cli import show
from edl.cli.commands import heed_interrupts
from edl.cli.simulate import parameters_of
from edl.cluster.queue import accounts
from edl.config import Settings
from edl.coordination.settings import from_environment
from edl.errors import ConfigError, EdlError
from edl.scheduler import engines, starting
from edl.scheduler.client import ClusterStatus, opened
from edl.scheduler.places import ClusterConfig, ClusterHome, NodeGiven

POLICY = "elastic-tiresias"
TLS, FILES = "EDL_COORDINATOR_TLS_", {"CA", "CERT", "KEY"}


def home_of(arguments: argparse.Namespace) -> tuple[Settings, ClusterHome]:
    settings = Settings.from_given(arguments.given, os.environ)
    return settings, ClusterHome(settings.home)


def start(arguments: argparse.Namespace) -> int:
    settings, home = home_of(arguments)
    engine = engines.checked(arguments.engine)
    own = settings.coordinator is None
    nodes = _nodes(engine, arguments.nodes, own_coordinator=own)
    config = ClusterConfig(
        nodes=nodes,
        policy=arguments.policy or POLICY,
        parameters=parameters_of(arguments.set),
        quotas=_quotas(arguments.quota),
        coordinator=settings.coordinator or starting.own_coordinator(home, settings.local_coordinator),
        own_coordinator=own,
        schedulers=_whole("schedulers", arguments.schedulers or "2", 1, 9),
        session_timeout_s=settings.session_timeout_s,
        started=time.time(),
        credentials={} if own else _credentials(settings, os.environ),
        engine=engine,
    )
    progress = show.Progress(sys.stderr)
    try:
        asyncio.run(_start(home, config, progress))
    finally:
        progress.end()
    devices = sum(len(node.devices) for node in nodes)
    show.say(f"the cluster runs: {devices} devices on {len(nodes)} nodes, engine {engine}, policy {config.policy}")
    show.say(f"  submit jobs by `edl submit COMMAND...`; its logs are in {home.logs}")
    return 0


def _nodes(engine: str, text: str | None, *, own_coordinator: bool) -> tuple[NodeGiven, ...]:
    """Raises ConfigError."""
    if engine == engines.SLURM:
        return engines.slurm_nodes(text, own_coordinator=own_coordinator)
    return starting.nodes_of(text)


async def _start(home: ClusterHome, config: ClusterConfig, progress: show.Progress) -> None:
    heed_interrupts()
    try:
        await starting.start(home, config, progress.show)
    except asyncio.CancelledError:
        raise EdlError("interrupted: the cluster does not run") from None


def stop(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    home.config()
    progress = show.Progress(sys.stderr)
    try:
        waiting = asyncio.run(_stop(home, progress, kill=arguments.now))
    finally:
        progress.end()
    rest = f"; {waiting} jobs wait for the next `edl cluster start`" if waiting else ""
    show.say(f"the cluster is stopped{rest}")
    return 0


async def _stop(home: ClusterHome, progress: show.Progress, *, kill: bool) -> int:
    heed_interrupts()
    try:
        return await starting.stop(home, kill=kill, say=progress.show)
    except asyncio.CancelledError:
        raise EdlError("interrupted: jobs are still being saved; `edl cluster stop` goes on with it") from None


def status(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    found = asyncio.run(_status(home))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        return 0
    name = found.scheduler.partition(" ")[0]
    leader = f"{name} leads, term {found.term}" if name else "no scheduler leads just now"
    show.say(f"cluster with policy {found.policy}: {leader}{'; it is being stopped' if found.draining else ''}")
    show.say(f"  coordinator {found.coordinator}")
    show.say("  processes " + ", ".join(f"{name} {pid}" for name, pid in found.processes.items()))
    show.say("  jobs " + (", ".join(f"{count} {phase}" for phase, count in sorted(found.jobs.items())) or "none"))
    rows = [
        (node.name, str(len(node.devices)), str(len(node.held)), "there" if node.agent else "away",
         " ".join(sorted(node.held.values())))
        for node in found.nodes
    ]  # fmt: skip
    show.table(("node", "devices", "held", "agent", "workers"), rows)
    for event in found.story:
        show.say(f"{time.strftime('%H:%M:%S', time.localtime(event.ts))}  {event.words}")
    return 0


async def _status(home: ClusterHome) -> ClusterStatus:
    async with opened(home) as client:
        return await client.status()


def show_accounts(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    found = asyncio.run(_accounts(home))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    elif arguments.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(accounts.COLUMNS)
        writer.writerows(accounts.row(job) for job in found.jobs)
    else:
        show.table(accounts.COLUMNS, [tuple(map(str, accounts.row(job))) for job in found.jobs])
    return 0


async def _accounts(home: ClusterHome) -> accounts.Accounts:
    async with opened(home) as client:
        return accounts.accounts_of(await client.queue.jobs(), time.time())


def _credentials(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The user and the TLS files of a coordinator that is not the cluster's own. Raises ConfigError."""
    from_environment(environ, hosts=settings.coordinator)
    found = {name: value for name, value in environ.items() if name.startswith("EDL_COORDINATOR_") and value}
    files = {name: str(Path(value).absolute()) for name, value in found.items() if name.removeprefix(TLS) in FILES}
    return {**found, **files}  # processes of the cluster are in other folders


def _quotas(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        matched = re.fullmatch(r"([^:]{1,64}):([0-9]{1,6})", text)
        if matched is None:
            raise ConfigError(f"--quota {text}: must be USER:DEVICES, such as ann:2")
        found[matched[1]] = int(matched[2])
    return found


def _whole(flag: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"--{flag} {text}: must be a whole number from {least} to {most}")
    return int(text)
