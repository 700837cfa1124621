"""A Kubernetes as it was named at a command line: its address, the Pod of each worker, its nodes.

Owns: what of it is right, and the words for what is not.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from edl.errors import ConfigError
from edl.scheduler.cluster_home import KubernetesGiven, NodeGiven
from edl.scheduler.engine_registry import wanted
from edl.scheduler.kubernetes.kubernetes_api import (
    ACCOUNT,
    KubernetesApi,
    KubernetesError,
    ask_once,
    checked_server,
    context_of,
    found_here,
)
from edl.scheduler.kubernetes.reconciling import KubernetesNode, node_of

NAMED = "--pod-template"


class PodResources(msgspec.Struct):
    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class PodVariable(msgspec.Struct):
    name: str


class PodContainer(msgspec.Struct):
    image: str
    resources: PodResources = msgspec.field(default_factory=PodResources)
    env: list[PodVariable] = []


class PodSpec(msgspec.Struct):
    containers: list[PodContainer]
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    hostNetwork: bool = False  # noqa: N815 - as Kubernetes writes it


class PodMeta(msgspec.Struct):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodShape(msgspec.Struct):
    """The part of a template that is checked here; Kubernetes judges the rest."""

    spec: PodSpec
    kind: str = "Pod"
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)


class KubernetesFlags(msgspec.Struct, frozen=True):
    """Choice that a command line makes; None: the flag was not given."""

    template: str | None = None
    url: str | None = None
    account: str | None = None
    kubeconfig: str | None = None
    context: str | None = None


def given_of(flags: KubernetesFlags, environ: Mapping[str, str]) -> KubernetesGiven:
    """Return the API server and who asks it: a service account, where its address is given or this is a Pod; else a
    context of a kubeconfig. Raises ConfigError.
    """
    if (flags.url or flags.account) and (flags.kubeconfig or flags.context):
        raise ConfigError("--kubernetes names a service account's server, --kubeconfig a context's: give one of them")
    template = template_of(flags.template)
    where = None if flags.kubeconfig or flags.context else flags.url or found_here(environ)
    if where is None:
        return _of_kubeconfig(flags, environ, template)
    url = checked_server("--kubernetes", where)
    folder = Path(flags.account or ACCOUNT).absolute()
    try:
        namespace = (folder / "namespace").read_text().strip()
        for name in ("token", "ca.crt"):
            (folder / name).read_bytes()
    except OSError as error:
        raise ConfigError(f"--kubernetes-account {folder}: {error.filename}: {error.strerror}") from None
    return KubernetesGiven(url, str(folder), namespace, template)


def _of_kubeconfig(flags: KubernetesFlags, environ: Mapping[str, str], template: dict[str, Any]) -> KubernetesGiven:
    """Raises ConfigError."""
    known = flags.kubeconfig or environ.get("KUBECONFIG")
    if known is not None and ":" in known:
        raise ConfigError(f"KUBECONFIG={known}: several files: name one by --kubeconfig FILE")
    path = Path(known).absolute() if known else Path.home() / ".kube" / "config"
    if not known and not path.exists():
        raise ConfigError(
            "--engine kubernetes: this is no Pod, and there is no ~/.kube/config: name a kubeconfig by --kubeconfig "
            "FILE, or the API server by --kubernetes https://HOST:PORT and a service account by --kubernetes-account"
        )
    config, _ = context_of(str(path), flags.context or "")
    url = checked_server(f"--kubeconfig {path}:", config.cluster.server, with_path=True)
    return KubernetesGiven(url, "", config.namespace, template, str(path), config.context_name)


def template_of(path: str | None) -> dict[str, Any]:
    """Read a Pod from a file of YAML, or of JSON, which is YAML too. Raises ConfigError."""
    if path is None:
        raise ConfigError(f"--engine kubernetes needs {NAMED} FILE: `edl cluster manifests` prints one, as worker.yaml")
    try:
        told = yaml.safe_load(Path(path).read_text())
        shape = msgspec.convert(told, PodShape)
    except OSError as error:
        raise ConfigError(f"{NAMED} {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{NAMED} {path}: is no YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{NAMED} {path}: is no Pod: {error}") from None
    if shape.kind != "Pod" or not shape.spec.containers:
        raise ConfigError(f"{NAMED} {path}: must be a Pod with a container, and is a {shape.kind}")
    found: dict[str, Any] = msgspec.to_builtins(told)
    return found


def devices_of(template: Mapping[str, Any]) -> tuple[str, int]:
    """Return the resource that makes a slot, such as nvidia.com/gpu, and how many of it a worker has; "": cores."""
    resources = msgspec.convert(template, PodShape).spec.containers[0].resources
    asked = {**resources.requests, **resources.limits}
    named = [(name, many) for name, many in sorted(asked.items()) if "/" in name and str(many).isdecimal()]
    for name, many in named:
        if int(many):
            return name, int(many)
    cores = str(asked.get("cpu", "1"))
    return "", max(1, int(cores)) if cores.isdecimal() else 1


def kubernetes_nodes(given: KubernetesGiven, text: str | None, *, own_coordinator: bool) -> tuple[NodeGiven, ...]:
    """Parse NODE:SLOTS as Kubernetes names nodes; None: all that take such Pods, with a slot for each worker that fits.
    Raises ConfigError.
    """
    if own_coordinator and not _is_here(given):
        raise ConfigError(
            "--engine kubernetes: Pods do not reach the ZooKeeper that a cluster brings: name one that they reach by "
            "--coordinator HOST:PORT or etcd://HOST:PORT"
        )

    async def seen(api: KubernetesApi) -> list[dict[str, Any]]:
        await api.pods("edl/agent=none")  # may it?
        return await api.nodes()

    try:
        known = {node.name: node for node in map(node_of, ask_once(given, seen))}
    except KubernetesError as error:
        raise ConfigError(f"--engine kubernetes: {error}") from None
    resource, each = devices_of(given.template)
    offered = {name: node.slots(resource) // each for name, node in known.items()}
    if text is None:
        tolerations = given.template["spec"].get("tolerations") or ()
        slots = {name: many for name, many in offered.items() if many and known[name].lets_in(tolerations)}
        if not slots:
            what = f"with {resource}, " if resource else ""
            raise ConfigError(f"--engine kubernetes: no node {what}takes such Pods: `kubectl get nodes` shows them")
    else:
        slots = wanted(text, "NODE:SLOTS of Kubernetes")
        for name, many in slots.items():
            _check(name, many, known, offered[name] if name in offered and resource else many)
    return tuple(NodeGiven(name, tuple(range(many))) for name, many in sorted(slots.items()))


def _check(name: str, many: int, known: Mapping[str, KubernetesNode], most: int) -> None:
    """Cores may be shared by any number of workers; other devices may not. Raises ConfigError."""
    if name not in known:
        raise ConfigError(f"--nodes {name}:{many}: Kubernetes has no node {name}: `kubectl get nodes` shows them")
    if many > most:
        raise ConfigError(f"--nodes {name}:{many}: node {name} has room for {most} such workers, says Kubernetes")


def _is_here(given: KubernetesGiven) -> bool:
    """Tell whether the API server is at this machine and Pods have their machine's network: they reach what listens
    here.
    """
    host = urlsplit(given.url).hostname
    shared = msgspec.convert(given.template, PodShape).spec.hostNetwork
    return shared and host in {"127.0.0.1", "::1", "localhost", socket.gethostname()}
