"""`edl cluster`: start, show and stop a cluster on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edl.cli import tables
from edl.cli.cluster_flags import ON_KUBERNETES
from edl.cli.cluster_scale import home_of, reached
from edl.cli.commands import heed_interrupts
from edl.cli.simulate import parameters_of
from edl.cluster.queue import job_view
from edl.config import Settings
from edl.coordination.coordinator_settings import from_environment
from edl.errors import ConfigError, EdlError, UsageError
from edl.scheduler import cluster_start, engine_registry
from edl.scheduler.cluster_home import ClusterConfig, ClusterHome, KubernetesGiven
from edl.scheduler.tokens import TokenBook

if TYPE_CHECKING:
    from edl.scheduler.kubernetes.manifests import ManifestsWanted

POLICY = "elastic-tiresias"
TLS, FILES = "EDL_COORDINATOR_TLS_", {"CA", "CERT", "KEY"}


def start(arguments: argparse.Namespace) -> int:
    settings, home = home_of(arguments)
    engine = engine_registry.checked(arguments.engine)
    own = settings.coordinator is None
    kubernetes = _kubernetes(engine, arguments)
    nodes, address = _nodes(engine, arguments.nodes, kubernetes, own_coordinator=own)
    config = ClusterConfig(
        nodes=nodes,
        policy=arguments.policy or POLICY,
        parameters=parameters_of(arguments.set),
        quotas=_by_user("quota", "DEVICES", arguments.quota),
        priorities=_by_user("highest-priority", "N", arguments.highest_priority),
        coordinator=settings.coordinator or cluster_start.own_coordinator(home, settings.local_coordinator),
        own_coordinator=own,
        schedulers=_whole("schedulers", arguments.schedulers or "2", 1, 9),
        session_timeout_s=settings.session_timeout_s,
        started=time.time(),
        credentials={} if own else _credentials(settings, os.environ),
        engine=engine,
        ray=address,
        http=cluster_start.http_of(
            arguments.http,
            arguments.http_certificate,
            arguments.http_key,
            None if (old := home.read()) is None else old.http,
        ),
        kubernetes=kubernetes,
        log_level=settings.log_level,
    )
    progress = tables.Progress(sys.stderr)
    try:
        asyncio.run(_start(home, config, progress))
    finally:
        progress.end()
    devices = tables.counted(sum(len(node.devices) for node in nodes), "device")
    has = f"{devices} on {tables.counted(len(nodes), 'node')}"
    tables.say(f"the cluster runs: {has}, engine {engine}, policy {config.policy}")
    if config.http is not None:
        tables.say(f"  other machines reach it at {config.http.url}, with the token in {TokenBook(home).owners}")
    tables.say(f"  submit jobs by `edl submit COMMAND...`; its logs are in {home.logs}")
    if arguments.foreground:
        asyncio.run(cluster_start.stay(home))
    return 0


def _kubernetes(engine: str, arguments: argparse.Namespace) -> KubernetesGiven | None:
    """Raises ConfigError."""
    given = {name: getattr(arguments, name.replace("-", "_")) for name in ON_KUBERNETES}
    if engine == engine_registry.KUBERNETES:
        with _kubernetes_extra("--engine kubernetes"):
            from edl.scheduler.kubernetes.kubernetes_choice import KubernetesFlags, given_of

        return given_of(KubernetesFlags(*given.values()), os.environ)
    if flags := [f"--{name}" for name, value in given.items() if value]:
        raise ConfigError(f"{flags[0]} goes with --engine kubernetes")
    return None


@contextlib.contextmanager
def _kubernetes_extra(what: str) -> Iterator[None]:
    """Raises ConfigError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what} needs {error.name}: pip install 'horovod-edl[kubernetes]'") from None


def _nodes(
    engine: str, text: str | None, kubernetes: KubernetesGiven | None, *, own_coordinator: bool
) -> engine_registry.EngineNodes:
    """Raises ConfigError."""
    if kubernetes is not None:
        from edl.scheduler.kubernetes.kubernetes_choice import kubernetes_nodes

        return engine_registry.EngineNodes(kubernetes_nodes(kubernetes, text, own_coordinator=own_coordinator), "")
    if engine in engine_registry.SYSTEMS:
        return engine_registry.nodes_of(engine, text, own_coordinator=own_coordinator)
    return engine_registry.EngineNodes(cluster_start.nodes_of(text), "")


async def _start(home: ClusterHome, config: ClusterConfig, progress: tables.Progress) -> None:
    heed_interrupts()
    try:
        await cluster_start.start(home, config, progress.show)
    except asyncio.CancelledError:
        raise EdlError("interrupted: the cluster does not run") from None


def print_manifests(arguments: argparse.Namespace) -> int:
    with _kubernetes_extra("edl cluster manifests"):
        from edl.scheduler.kubernetes.manifests import as_yaml, kustomize_base, manifests

    wanted = _manifests_wanted(arguments, Settings.from_given(arguments.given, os.environ))
    if arguments.kustomize is None:
        sys.stdout.write(as_yaml(manifests(wanted)))
        return 0
    folder = Path(arguments.kustomize)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in kustomize_base(wanted).items():
            (folder / name).write_text(text)
    except OSError as error:
        raise ConfigError(f"--kustomize {folder}: {error.filename}: {error.strerror}") from None
    tables.say(f"{folder} is a Kustomize base: kubectl apply -k {folder}")
    return 0


def _manifests_wanted(arguments: argparse.Namespace, settings: Settings) -> ManifestsWanted:
    """Raises ConfigError."""
    from edl.scheduler.kubernetes.manifests import ManifestsWanted

    def fitting(flag: str, pattern: str, what: str, usual: str = "") -> str:
        text = getattr(arguments, flag.replace("-", "_")) or usual
        if text and not re.fullmatch(pattern, text):
            raise ConfigError(f"--{flag} {text}: must be {what}")
        return str(text)

    image = fitting("image", r"[!-~]{1,500}", "an image with edl in it, such as registry.example.org/training:1")
    etcd_image = fitting("etcd-image", r"[!-~]{1,500}", "an image with etcd in it")
    if not image:
        raise UsageError("name an image that has edl and what the jobs need: edl cluster manifests --image IMAGE")
    if bool(etcd_image) == bool(settings.coordinator):
        raise ConfigError(
            "name an image of etcd's for the queue by --etcd-image IMAGE, or a coordinator that there is by "
            "--coordinator HOST:PORT: one of them"
        )
    nodes = arguments.nodes or ""
    if nodes:
        engine_registry.wanted(nodes, "NODE:SLOTS of Kubernetes")
    return ManifestsWanted(
        namespace=fitting("namespace", r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name in small letters", "edl"),
        image=image,
        coordinator=settings.coordinator or "",
        etcd_image=etcd_image,
        nodes=nodes,
        storage=fitting("storage", r"[1-9][0-9]{0,6}[MGTP]i", "a size such as 50Gi", "50Gi"),
        storage_class=fitting("storage-class", r"[a-z0-9][a-z0-9.-]{0,252}", "the name of a storage class"),
        gpu=fitting("gpu", r"[a-z0-9.-]+/[A-Za-z0-9_.-]+", "a resource of nodes, such as nvidia.com/gpu"),
        user=_whole("user-id", arguments.user_id or "1000", 1, 2_000_000_000),
    )


def stop(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    home.config()
    progress = tables.Progress(sys.stderr)
    try:
        waiting = asyncio.run(_stop(home, progress, kill=arguments.now))
    finally:
        progress.end()
    rest = f"; {waiting} jobs wait for the next `edl cluster start`" if waiting else ""
    tables.say(f"the cluster is stopped{rest}")
    return 0


async def _stop(home: ClusterHome, progress: tables.Progress, *, kill: bool) -> int:
    heed_interrupts()
    try:
        return await cluster_start.stop(home, kill=kill, say=progress.show)
    except asyncio.CancelledError:
        raise EdlError("interrupted: jobs are still being saved; `edl cluster stop` goes on with it") from None


def status(arguments: argparse.Namespace) -> int:
    found = reached(arguments).status()
    if arguments.json:
        tables.say_json(found)
        return 0
    name = found.scheduler.partition(" ")[0]
    leader = f"{name} leads, term {found.term}" if name else "no scheduler leads just now"
    tables.say(f"cluster with policy {found.policy}: {leader}{'; it is being stopped' if found.draining else ''}")
    if found.coordinator:
        tables.say(f"  coordinator {found.coordinator}")
    if found.processes:
        tables.say("  processes " + ", ".join(f"{name} {pid}" for name, pid in found.processes.items()))
    tables.say("  jobs " + (", ".join(f"{count} {phase}" for phase, count in sorted(found.jobs.items())) or "none"))
    rows = [
        (node.name, str(len(node.devices)), str(len(node.held)), "there" if node.agent else "away",
         "-" if node.left_out_until is None else _hour(node.left_out_until), " ".join(sorted(set(node.held.values()))))
        for node in found.nodes
    ]  # fmt: skip
    tables.table(("node", "devices", "held", "agent", "left out until", "workers"), rows)
    for event in found.story:
        tables.say(f"{_hour(event.ts)}  {event.words}")
    return 0


def _hour(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def show_accounts(arguments: argparse.Namespace) -> int:
    found = reached(arguments).accounts()
    if arguments.json:
        tables.say_json(found)
    elif arguments.csv:
        sys.stdout.write(job_view.as_csv(found))
    else:
        tables.table(job_view.COLUMNS, [tuple(map(str, job_view.row(job))) for job in found.jobs])
    return 0


def token(arguments: argparse.Namespace) -> int:
    _, home = home_of(arguments)
    home.config()
    book = TokenBook(home)
    if arguments.revoke and arguments.user is None:
        raise UsageError("name the user whose token is to open nothing any more: edl cluster token USER --revoke")
    if arguments.user is None:
        book.make()
        tables.say(f"the owner's token, which opens everything, is in {book.owners}")
        tables.say("users with a token: " + (", ".join(sorted(book.users())) or "none"))
    elif arguments.revoke:
        book.take(arguments.user)
        tables.say(f"the token of {arguments.user} opens nothing any more")
    else:
        sys.stdout.write(f"{book.give(arguments.user)}\n")
    return 0


def _credentials(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user and the TLS files of a coordinator that is not the cluster's own. Raises ConfigError."""
    from_environment(environ, hosts=settings.coordinator)
    found = {name: value for name, value in environ.items() if name.startswith("EDL_COORDINATOR_") and value}
    files = {name: str(Path(value).absolute()) for name, value in found.items() if name.removeprefix(TLS) in FILES}
    return {**found, **files}  # the cluster's processes run in other folders


def _by_user(flag: str, what: str, given: list[str]) -> dict[str, int]:
    """Raises ConfigError."""
    found = {}
    for text in given:
        matched = re.fullmatch(r"([^:]{1,64}):([0-9]{1,6})", text)
        if matched is None:
            raise ConfigError(f"--{flag} {text}: must be USER:{what}, such as ann:2")
        found[matched[1]] = int(matched[2])
    return found


def _whole(flag: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"--{flag} {text}: must be a whole number from {least} to {most}")
    return int(text)
