"""A cluster that runs in Kubernetes, as manifests. Pure.

Two schedulers' Pods, each with all that a cluster on one machine has; one acts for a node at a time. The queue is in an
etcd of its own, or in a coordinator that is given. They and the workers share a volume: EDL_HOME.

Owns: what is in them. Does not own: how a worker's Pod is made from its template (`reconciling`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import yaml

from edl.coordination.local_coordinator import HISTORY
from edl.scheduler.cluster_home import OWN

HOME: Final = "/edl"
OWN_FOLDER: Final = "/run/edl"

TLS: Final = "/run/secrets/edl-tls"
WORKER_FILE: Final = "worker.yaml"
HTTP_PORT, ETCD_PORT, ETCD_PEERS = 8443, 2379, 2380
ETCD_VOLUME_GIB: Final = 8
Json = dict[str, Any]


class ManifestsWanted(msgspec.Struct, frozen=True):
    namespace: str
    image: str
    coordinator: str = ""  # empty: an etcd among them
    etcd_image: str = ""
    nodes: str = ""  # empty: all that take Pods when it starts
    storage: str = "50Gi"
    storage_class: str = ""
    gpu: str = ""  # what a worker has one of; empty: a core
    user: int = 1000


def manifests(wanted: ManifestsWanted) -> list[Json]:
    """Return the manifests in the order in which they can be made."""
    own = [] if wanted.coordinator else [_etcd_service(wanted), _etcd(wanted)]
    return [
        {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": wanted.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        *_rights(wanted),
        _volume(wanted),
        _config(wanted),
        *own,
        _scheduler(wanted),
        _http_service(wanted),
    ]  # fmt: skip


def worker_template(wanted: ManifestsWanted) -> Json:
    """Return the template of workers' Pods, which may not ask the API server for anything."""
    tls = ([], []) if wanted.coordinator else ([TLS_MOUNT], [TLS_VOLUME])  # with which it reaches the etcd
    device: Json = {"limits": {wanted.gpu: 1}} if wanted.gpu else {"requests": {"cpu": "1"}}
    container = {
        "name": "worker",
        "image": wanted.image,
        "resources": device,
        "securityContext": LOCKED,
        "volumeMounts": [HOME_MOUNT, *tls[0], {"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    volumes = [HOME_VOLUME, *tls[1], {"name": "memory", "emptyDir": {"medium": "Memory"}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"app.kubernetes.io/name": "edl-worker"}},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 120,
            "securityContext": _as_user(wanted.user),
            "containers": [container],
            "volumes": volumes,
        },
    }


LOCKED: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
}
HOME_MOUNT: Final[Json] = {"name": "home", "mountPath": HOME}
TLS_MOUNT: Final[Json] = {"name": "tls", "mountPath": TLS, "readOnly": True}
HOME_VOLUME: Final[Json] = {"name": "home", "persistentVolumeClaim": {"claimName": "edl-home"}}
TLS_VOLUME: Final[Json] = {"name": "tls", "secret": {"secretName": "edl-tls", "defaultMode": 0o440}}


def _as_user(user: int) -> Json:
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _meta(wanted: ManifestsWanted, name: str) -> Json:
    return {"name": name, "namespace": wanted.namespace, "labels": {"app.kubernetes.io/part-of": "edl"}}


def _rights(wanted: ManifestsWanted) -> list[Json]:
    """Allow the scheduler Pods of its own namespace, and a look at nodes, which are in none: the role for nodes is
    named after the namespace.
    """
    account = {"kind": "ServiceAccount", "name": "edl-scheduler", "namespace": wanted.namespace}
    group = "rbac.authorization.k8s.io"
    nodes = f"edl-nodes-{wanted.namespace}"

    def rules(resource: str, *verbs: str) -> list[Json]:
        return [{"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}]

    return [
        {
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(wanted, "edl-scheduler"),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{group}/v1", "kind": "Role", "metadata": _meta(wanted, "edl-scheduler"),
            "rules": rules("pods", "create", "delete", "get", "list", "watch"),
        },
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": _meta(wanted, "edl-scheduler"),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "edl-scheduler"}, "subjects": [account],
        },
        {
            "apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": nodes},
            "rules": rules("nodes", "get", "list"),
        },
        {
            "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": nodes},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": nodes}, "subjects": [account],
        },
    ]  # fmt: skip


def _volume(wanted: ManifestsWanted) -> Json:
    spec: Json = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": wanted.storage}}}
    if wanted.storage_class:
        spec["storageClassName"] = wanted.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _meta(wanted, "edl-home"), "spec": spec}


def _config(wanted: ManifestsWanted) -> Json:
    text = as_yaml([worker_template(wanted)])
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(wanted, "edl-worker"), "data": {WORKER_FILE: text},
    }  # fmt: skip


def _labels(name: str) -> Json:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "edl"}


def _service(wanted: ManifestsWanted, name: str, pods: str, port: int, **more: Any) -> Json:
    spec = {
        "selector": {"app.kubernetes.io/name": pods}, "ports": [{"name": "tls", "port": port, "targetPort": port}],
        **more,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(wanted, name), "spec": spec}


def _http_service(wanted: ManifestsWanted) -> Json:
    return _service(wanted, "edl", "edl-scheduler", HTTP_PORT, type="ClusterIP")


def _etcd_service(wanted: ManifestsWanted) -> Json:
    return _service(wanted, "edl-etcd", "edl-etcd", ETCD_PORT, clusterIP="None")


def _etcd(wanted: ManifestsWanted) -> Json:
    """Return an etcd of one member, on its own volume, which opens only to certificates of the cluster's authority."""
    flags = {
        "name": "edl",
        "data-dir": "/data/etcd",
        "listen-client-urls": f"https://0.0.0.0:{ETCD_PORT}",
        "advertise-client-urls": f"https://edl-etcd:{ETCD_PORT}",
        "listen-peer-urls": f"http://127.0.0.1:{ETCD_PEERS}",
        "initial-advertise-peer-urls": f"http://127.0.0.1:{ETCD_PEERS}",
        "initial-cluster": f"edl=http://127.0.0.1:{ETCD_PEERS}",
        "cert-file": f"{TLS}/tls.crt",
        "key-file": f"{TLS}/tls.key",
        "trusted-ca-file": f"{TLS}/ca.crt",
        **HISTORY,
        "quota-backend-bytes": str(ETCD_VOLUME_GIB << 29),  # half of the volume: its log and snapshots lie there too
    }
    container = {
        "name": "etcd",
        "image": wanted.etcd_image,
        "command": ["etcd", "--client-cert-auth", *(f"--{name}={value}" for name, value in flags.items())],
        "ports": [{"name": "tls", "containerPort": ETCD_PORT}],
        "readinessProbe": {"tcpSocket": {"port": ETCD_PORT}},
        "securityContext": {**LOCKED, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, TLS_MOUNT],
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": _as_user(wanted.user),
        "containers": [container],
        "volumes": [TLS_VOLUME],
    }
    claim: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{ETCD_VOLUME_GIB}Gi"}}}
    spec = {
        "serviceName": "edl-etcd",
        "replicas": 1,
        "selector": {"matchLabels": {"app.kubernetes.io/name": "edl-etcd"}},
        "template": {"metadata": {"labels": _labels("edl-etcd")}, "spec": pod},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _meta(wanted, "edl-etcd"), "spec": spec}


def _scheduler(wanted: ManifestsWanted) -> Json:
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app.kubernetes.io/name": "edl-scheduler"}},
        "template": {"metadata": {"labels": _labels("edl-scheduler")}, "spec": _scheduler_pod(wanted)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(wanted, "edl-scheduler"), "spec": spec}


def _scheduler_pod(wanted: ManifestsWanted) -> Json:
    """Return the scheduler's Pod. Its locks and its processes' logs are its own; all else is in the folder that all its
    Pods share.
    """
    own = {"name": "own", "mountPath": OWN_FOLDER}
    apart = {"matchLabels": {"app.kubernetes.io/name": "edl-scheduler"}}
    container = {
        "name": "scheduler",
        "image": wanted.image,
        "command": _command(wanted),
        "env": [{"name": name, "value": value} for name, value in _environ(wanted).items()],
        "ports": [{"name": "tls", "containerPort": HTTP_PORT}],
        "readinessProbe": {"tcpSocket": {"port": HTTP_PORT}},
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": LOCKED,
        "volumeMounts": [HOME_MOUNT, own, TLS_MOUNT, {"name": "worker", "mountPath": "/etc/edl", "readOnly": True}],
    }
    return {
        "serviceAccountName": "edl-scheduler",
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": _as_user(wanted.user),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": apart,
            }
        ],
        "containers": [container],
        "volumes": [
            HOME_VOLUME,
            {"name": "own", "emptyDir": {}},
            TLS_VOLUME,
            {"name": "worker", "configMap": {"name": "edl-worker"}},
        ],
    }  # fmt: skip


def _command(wanted: ManifestsWanted) -> list[str]:
    listening = [
        "--http",
        f"0.0.0.0:{HTTP_PORT}",
        "--http-certificate",
        f"{TLS}/tls.crt",
        "--http-key",
        f"{TLS}/tls.key",
    ]
    coordinator = wanted.coordinator or f"etcd://edl-etcd:{ETCD_PORT}"
    nodes = ["--nodes", wanted.nodes] if wanted.nodes else []
    template = ["--pod-template", f"/etc/edl/{WORKER_FILE}"]
    start = ["edl", "cluster", "start", "--foreground", "--engine", "kubernetes", *template, *nodes]
    return [*start, "--schedulers", "1", "--coordinator", coordinator, *listening]


def _environ(wanted: ManifestsWanted) -> dict[str, str]:
    """The TLS variables are for the cluster's own etcd only."""
    known = {"CA": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}
    tls = {f"EDL_COORDINATOR_TLS_{name}": f"{TLS}/{file}" for name, file in known.items()}
    return {"EDL_HOME": HOME, OWN: OWN_FOLDER, **({} if wanted.coordinator else tls)}


def kustomize_base(wanted: ManifestsWanted) -> dict[str, str]:
    """Return the files of a Kustomize base. An overlay can replace the worker's template, a file of its own."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": wanted.namespace,
        "resources": ["edl.yaml"],
        "configMapGenerator": [{"name": "edl-worker", "files": [WORKER_FILE]}],
    }
    return {
        "kustomization.yaml": as_yaml([kustomization]),
        "edl.yaml": as_yaml(one for one in manifests(wanted) if one["kind"] != "ConfigMap"),
        WORKER_FILE: as_yaml([worker_template(wanted)]),
    }


class _Blocks(yaml.SafeDumper):
    """Write a text of several lines as a block, and an equal part each time in full: people read the output."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _text)


def as_yaml(documents: Iterable[Any]) -> str:
    return yaml.dump_all(documents, Dumper=_Blocks, sort_keys=False, width=120)
