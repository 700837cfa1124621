"""What `edl cluster manifests` prints: YAML whose parts fit each other, and that asks for little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl.cli import main
from edl.cli.parser import parse
from edl.coordination.coordinator_settings import from_environment
from edl.scheduler.kubernetes.kubernetes_choice import devices_of, template_of
from edl.scheduler.kubernetes.manifests import ManifestsWanted, as_yaml, manifests
from edl.scheduler.kubernetes.reconciling import pod_for

Json = dict[str, Any]
ETCD = ("--image", "training:1", "--etcd-image", "etcd:1")


def test_what_has_lines_is_written_in_lines() -> None:
    text = as_yaml(manifests(ManifestsWanted("edl", "training:1", etcd_image="etcd:1")))
    assert "  worker.yaml: |\n    apiVersion: v1\n    kind: Pod\n" in text


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> list[Json]:
    assert main(["cluster", "manifests", *flags]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def of_kind(documents: list[Json], kind: str, name: str | None = None) -> Json:
    [found] = [one for one in documents if one["kind"] == kind and name in {None, one["metadata"]["name"]}]
    return found


def pods_of(documents: list[Json]) -> list[Json]:
    """Their specs, a worker's too."""
    made = [one["spec"]["template"]["spec"] for one in documents if one["kind"] in {"Deployment", "StatefulSet"}]
    template = yaml.safe_load(of_kind(documents, "ConfigMap")["data"]["worker.yaml"])
    return [*made, template["spec"]]


@pytest.mark.parametrize("flags", [ETCD, ("--image", "training:1", "--coordinator", "zk1:2181")])
def test_all_pods_run_as_a_user_without_rights_as_a_restricted_namespace_asks(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    documents = printed(capsys, *flags)
    labels = of_kind(documents, "Namespace")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    for pod in pods_of(documents):
        user = pod["securityContext"]
        assert user["runAsNonRoot"] is True and user["runAsUser"] == 1000 == user["fsGroup"]
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            locked = container["securityContext"]
            assert locked["allowPrivilegeEscalation"] is False and locked["capabilities"] == {"drop": ["ALL"]}
        kinds = {key for volume in pod["volumes"] for key in volume} - {"name"}
        assert kinds <= {"secret", "persistentVolumeClaim", "emptyDir", "configMap"}


def test_only_schedulers_may_ask_for_anything_and_that_is_pods_here_and_a_look_at_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = printed(capsys, *ETCD, "--namespace", "research")
    [pods], [nodes] = of_kind(documents, "Role")["rules"], of_kind(documents, "ClusterRole")["rules"]
    assert pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "watch"]}
    assert nodes == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
    assert {one["metadata"].get("namespace", "") for one in documents} == {"research", ""}
    for kind, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        binding = of_kind(documents, kind)
        assert binding["roleRef"]["name"] == of_kind(documents, role)["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "edl-scheduler", "namespace": "research"}]
    tokens = [pod["automountServiceAccountToken"] for pod in pods_of(documents)]
    assert sorted(tokens) == [False, False, True]
    assert of_kind(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "edl-scheduler"


def test_what_refers_to_something_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    documents = printed(capsys, *ETCD)
    assert of_kind(documents, "Deployment")["spec"]["replicas"] == 2
    templates = [one["spec"]["template"] for one in documents if one["kind"] in {"Deployment", "StatefulSet"}]
    for service in [one["spec"] for one in documents if one["kind"] == "Service"]:
        [pod] = [one for one in templates if service["selector"].items() <= one["metadata"]["labels"].items()]
        ports = [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]]
        assert [port["targetPort"] for port in service["ports"]] == ports
        assert "type" not in service or service["type"] == "ClusterIP"
    claims, configs = {"edl-home"}, {"edl-worker"}
    for pod in pods_of(documents):
        volumes = {volume["name"]: volume for volume in pod["volumes"]} | {"data": {}}  # of the set's own claim
        for mount in pod["containers"][0]["volumeMounts"]:
            volume = volumes[mount["name"]]
            assert volume.get("persistentVolumeClaim", {"claimName": "edl-home"})["claimName"] in claims
            assert volume.get("configMap", {"name": "edl-worker"})["name"] in configs
            assert volume.get("secret", {"secretName": "edl-tls"})["secretName"] == "edl-tls"
    assert of_kind(documents, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_schedulers_line_is_one_that_edl_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    documents = printed(capsys, *ETCD, "--nodes", "n1:2,n2:2")
    [container] = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "edl"
    arguments = parse(container["command"][1:])
    assert (arguments.engine, arguments.foreground, arguments.nodes) == ("kubernetes", True, "n1:2,n2:2")
    assert arguments.http == "0.0.0.0:8443"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert arguments.pod_template == f"{mounts['worker']}/worker.yaml"
    assert arguments.http_key.startswith(mounts["tls"])
    environ = {one["name"]: one["value"] for one in container["env"]}
    assert (environ["EDL_HOME"], environ["EDL_CLUSTER_OWN"]) == (mounts["home"], mounts["own"])
    host = arguments.given["coordinator"].text
    here = {name: value.replace(mounts["tls"], str(tmp_path)) for name, value in environ.items()}
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).touch()
    found = from_environment(here, hosts=host)
    assert found is not None and found.tls is not None and found.kind == "etcd"
    service = of_kind(documents, "Service", "edl-etcd")
    assert host == f"etcd://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_the_etcds_history_and_its_size_have_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    documents = printed(capsys, *ETCD)
    etcd = of_kind(documents, "StatefulSet", "edl-etcd")["spec"]
    [container] = etcd["template"]["spec"]["containers"]
    flags = dict(one.removeprefix("--").split("=", 1) for one in container["command"] if "=" in one)
    assert (flags["auto-compaction-mode"], flags["auto-compaction-retention"]) == ("periodic", "1m")
    [claim] = etcd["volumeClaimTemplates"]
    volume = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) << 30
    assert int(flags["quota-backend-bytes"]) * 2 <= volume


def test_with_a_coordinator_there_is_no_etcd_and_workers_get_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    documents = printed(capsys, "--image", "training:1", "--coordinator", "zk1:2181,zk2:2181")
    assert not [one for one in documents if one["kind"] == "StatefulSet"]
    scheduler, worker = pods_of(documents)
    assert "zk1:2181,zk2:2181" in scheduler["containers"][0]["command"]
    assert not [volume for volume in worker["volumes"] if "secret" in volume]


def test_the_workers_template_is_one(tmp_path: Path) -> None:
    wanted = ManifestsWanted("edl", "training:1", etcd_image="etcd:1", gpu="nvidia.com/gpu", storage_class="fast")
    documents = manifests(wanted)
    assert of_kind(documents, "PersistentVolumeClaim")["spec"]["storageClassName"] == "fast"
    path = tmp_path / "worker.yaml"
    path.write_text(of_kind(documents, "ConfigMap")["data"]["worker.yaml"])
    template = template_of(str(path))
    assert devices_of(template) == ("nvidia.com/gpu", 1)
    pod = pod_for(template, "n1", "mark", "w-1", ["x"], {})
    assert pod["spec"]["containers"][0]["image"] == "training:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--image IMAGE"),
        (("--image", "a b", "--etcd-image", "e"), "--image a b: must be an image"),
        (("--image", "a"), "one of them"),
        ((*ETCD, "--coordinator", "zk1:2181"), "one of them"),
        ((*ETCD, "--namespace", "A_b"), "--namespace A_b"),
        ((*ETCD, "--nodes", "n1"), "NODE:SLOTS of Kubernetes"),
        ((*ETCD, "--storage", "much"), "--storage much: must be a size"),
        ((*ETCD, "--gpu", "gpu"), "--gpu gpu: must be a resource"),
        ((*ETCD, "--user-id", "0"), "--user-id 0"),
        ((*ETCD, "--storage-class", "Ü"), "--storage-class"),
    ],
)
def test_what_cannot_be(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str) -> None:
    assert main(["cluster", "manifests", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err and len(printed.err.splitlines()) == 1
