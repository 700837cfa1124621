"""What Kubernetes says, understood; what is asked of it, decided; what is given at a command line, judged."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from fake_kubernetes import TEMPLATE, FakeKubernetes, fake_kubernetes

from edl.cluster.queue.end_causes import EndEvidence, classify
from edl.cluster.queue.queue_entries import WorkerWish
from edl.errors import ConfigError
from edl.scheduler.cluster_home import KubernetesGiven, NodeGiven
from edl.scheduler.kubernetes.kubernetes_api import (
    KubernetesApi,
    KubernetesError,
    KubernetesRefused,
    WatchExpired,
    ask_once,
    checked_server,
    found_here,
    refusal,
)
from edl.scheduler.kubernetes.kubernetes_choice import KubernetesFlags, devices_of, given_of, kubernetes_nodes
from edl.scheduler.kubernetes.reconciling import (
    KILL_GRACE_S,
    LEAVE_GRACE_S,
    STUCK_S,
    EndPod,
    ForgoPod,
    MakePod,
    PodIsGone,
    PodSeen,
    PodStep,
    PodWanted,
    WatchPace,
    agent_mark,
    evidence_of,
    looked,
    multiplied,
    node_of,
    pod_for,
    pod_name,
    pod_of,
    reconcile,
)

POD = PodSeen("edl-w-1", "u-1", "w-1")
LEAVE, DIE = PodWanted(WorkerWish.LEAVE, made=True), PodWanted(WorkerWish.DIE, made=True)


def steps(
    wanted: PodWanted | None, pod: PodSeen | None, now: float = 0.0, *, heard: tuple[str, ...] = ()
) -> list[PodStep]:
    return reconcile({} if wanted is None else {"w-1": wanted}, {} if pod is None else {"w-1": pod}, heard, now)


# --------------------------------------------------------------------------------------------------- what is decided


def test_a_pod_is_made_once_and_left_alone() -> None:
    assert steps(PodWanted(), None) == [MakePod("w-1")]
    assert steps(PodWanted(made=True), POD) == []


def test_after_a_failed_call_nothing_is_asked_for_a_while() -> None:
    later = PodWanted(not_before=5.0)
    assert (steps(later, None, 4.9), steps(later, None, 5.0)) == ([], [MakePod("w-1")])
    assert steps(PodWanted(WorkerWish.DIE, made=True, not_before=5.0), POD, 4.9) == []


def test_a_worker_is_gone_when_its_pod_is_over_or_no_more_there() -> None:
    over = PodSeen("edl-w-1", "u-1", "w-1", over=True)
    assert steps(PodWanted(made=True), over) == [PodIsGone("w-1")]
    assert steps(PodWanted(made=True), None) == [PodIsGone("w-1")]
    assert steps(DIE, PodSeen("edl-w-1", "u-1", "w-1", deleting=True)) == [EndPod("w-1", steps_pod(), KILL_GRACE_S)]


def steps_pod() -> PodSeen:
    return PodSeen("edl-w-1", "u-1", "w-1", deleting=True)


@pytest.mark.parametrize("wish", [WorkerWish.LEAVE, WorkerWish.DIE])
def test_one_that_is_to_go_before_its_pod_was_made_is_gone(wish: WorkerWish) -> None:
    assert steps(PodWanted(wish), None) == [PodIsGone("w-1")]


def test_who_is_to_leave_has_an_hour_and_who_is_to_die_a_second_and_never_none() -> None:
    assert steps(LEAVE, POD) == [EndPod("w-1", POD, LEAVE_GRACE_S)]
    assert steps(PodWanted(WorkerWish.LEAVE, made=True, grace_s=LEAVE_GRACE_S), POD) == []
    assert steps(PodWanted(WorkerWish.DIE, made=True, grace_s=LEAVE_GRACE_S), POD) == [EndPod("w-1", POD, KILL_GRACE_S)]
    assert steps(PodWanted(WorkerWish.DIE, made=True, grace_s=KILL_GRACE_S), POD) == []
    assert KILL_GRACE_S > 0  # 0: Kubernetes forgets the Pod while its processes live


def test_one_that_cannot_begin_is_given_up_after_a_while() -> None:
    stuck = PodSeen("edl-w-1", "u-1", "w-1", stuck="ErrImagePull: no such image")
    one = looked(PodWanted(), stuck, 10.0)
    assert steps(one, stuck, 10.0 + STUCK_S - 1) == []
    assert steps(one, stuck, 10.0 + STUCK_S) == [ForgoPod("w-1", "ErrImagePull: no such image")]
    assert steps(looked(one, stuck, 99.0), stuck, 10.0 + STUCK_S) != []  # counted from the first time
    assert steps(looked(one, POD, 99.0), POD, 10.0 + STUCK_S) == []  # it could begin after all
    refused = PodWanted(made=True, last=stuck, refused="ErrImagePull")
    assert steps(refused, stuck) == [EndPod("w-1", stuck, KILL_GRACE_S)]
    assert steps(refused, None) == [PodIsGone("w-1")]


def test_pods_of_workers_that_were_heard_of_are_removed_and_no_others() -> None:
    assert steps(None, POD, heard=("w-1",)) == [EndPod("w-1", POD, KILL_GRACE_S)]
    assert steps(None, POD) == []
    assert steps(PodWanted(made=True), POD, heard=("w-1",)) == []
    assert steps(None, steps_pod(), heard=("w-1",)) == []


# ------------------------------------------------------------------------------------------------ why a worker ended


def evidence(one: PodWanted, left: EndEvidence, **known: bool) -> EndEvidence:
    return evidence_of(one, left, **{"never": False, "terminated": False, "node_lost": False, **known})


def last(**of: Any) -> PodWanted:
    return PodWanted(made=True, last=PodSeen("edl-w-1", "u-1", "w-1", **of))


@pytest.mark.parametrize(
    ("one", "left", "known", "code"),
    [
        (last(), EndEvidence(code=0), {}, None),
        (last(), EndEvidence(code=1, tail="x"), {}, "exit"),
        (last(), EndEvidence(), {}, "lost"),
        (last(), EndEvidence(), {"node_lost": True}, "taken"),
        (last(), EndEvidence(code=1), {"node_lost": True}, "exit"),
        (last(starved=True), EndEvidence(), {}, "out-of-memory"),
        (last(starved=True), EndEvidence(code=-9), {}, "out-of-memory"),
        (last(taken="Kubernetes has preempted it"), EndEvidence(code=0), {}, "taken"),
        (last(deleting=True), EndEvidence(code=0), {}, "taken"),
        (last(), EndEvidence(code=0), {"terminated": True}, "taken"),
        (last(words="Evicted"), EndEvidence(), {"never": True}, "host-limits"),
        (last(taken="it was evicted in Kubernetes"), EndEvidence(), {"never": True}, "taken"),
        (PodWanted(refused="exceeded quota"), EndEvidence(), {"never": True}, "host-limits"),
    ],
)
def test_causes(one: PodWanted, left: EndEvidence, known: dict[str, bool], code: str | None) -> None:
    cause = classify(evidence(one, left, **known))
    assert (cause.code if cause else None) == code


def test_what_this_cluster_has_asked_for_was_taken_by_nobody() -> None:
    asked = PodWanted(WorkerWish.LEAVE, made=True, last=steps_pod(), grace_s=LEAVE_GRACE_S)
    assert evidence(asked, EndEvidence(code=0), terminated=True).taken == ""


def test_why_it_could_not_begin_is_told_in_kubernetes_words() -> None:
    assert (
        evidence(PodWanted(refused="exceeded quota: gpus"), EndEvidence(), never=True).refused == "exceeded quota: gpus"
    )
    assert evidence(last(words="OutOfcpu: no"), EndEvidence(), never=True).refused == "OutOfcpu: no"


# -------------------------------------------------------------------------------------------------- what is understood


def told(phase: str = "Running", state: str = "running", **of: Any) -> PodSeen:
    status = {"phase": phase, "containerStatuses": [{"state": {state: of.pop("detail", {})}}], **of.pop("status", {})}
    meta = {"name": "p", "uid": "u", "annotations": {"edl/worker": "w-1"}, **of}
    found = pod_of({"metadata": meta, "status": status})
    assert found is not None
    return found


def test_a_pod_is_over_when_its_containers_are() -> None:
    assert told("Failed", "terminated").over
    assert told("Succeeded", "terminated").over
    assert not told("Failed", "running").over  # its node is given up, and may still run it
    assert not told("Running", "terminated").over
    assert not told("Pending", "waiting").over
    assert pod_of({"metadata": {"name": "another's"}}) is None


def test_what_kubernetes_says_of_a_pod() -> None:
    assert told("Failed", "terminated", detail={"reason": "OOMKilled"}).starved
    assert (
        told("Pending", "waiting", detail={"reason": "ImagePullBackOff", "message": "m"}).stuck == "ImagePullBackOff: m"
    )
    assert told("Pending", "waiting", detail={"reason": "ContainerCreating"}).stuck == ""
    assert told(deletionTimestamp="2026-01-01T00:00:00Z").deleting
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    assert told(status={"conditions": conditions}).taken == "Kubernetes has preempted it"
    newer = [{"type": "DisruptionTarget", "status": "True", "reason": "OfANewerOne", "message": "m"}]
    assert told(status={"conditions": newer}).taken == "Kubernetes takes it away: OfANewerOne: m"
    past = [{"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}]
    assert told(status={"conditions": past}).taken == ""
    assert told("Failed", "terminated", status={"reason": "Evicted"}).taken == "its node has evicted it"


def node(**of: Any) -> Any:
    conditions = [{"type": "Ready", "status": of.pop("ready", "True")}]
    status = {"conditions": conditions, "allocatable": {"cpu": "7900m", "nvidia.com/gpu": "8"}}
    return node_of({"metadata": {"name": "n1"}, "spec": of, "status": status})


def test_which_nodes_take_pods() -> None:
    assert node().gives and node().lets_in([])
    assert not node(ready="Unknown").gives
    assert not node(unschedulable=True).gives
    assert not node_of({}).gives
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    tainted = node(taints=[taint])
    assert not tainted.lets_in([])
    assert tainted.lets_in([{"key": "nvidia.com/gpu", "operator": "Exists"}])
    assert tainted.lets_in([{"operator": "Exists"}])
    assert tainted.lets_in([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    assert not tainted.lets_in([{"key": "nvidia.com/gpu", "value": "absent"}])
    assert not tainted.lets_in([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}])
    assert node(taints=[{**taint, "effect": "PreferNoSchedule"}]).lets_in([])
    assert (node().slots("nvidia.com/gpu"), node().slots(""), node().slots("amd.com/gpu")) == (8, 7, 0)


def test_a_workers_pod_is_the_templates_on_one_node_with_its_command() -> None:
    template = copy.deepcopy(TEMPLATE)
    container = template["spec"]["containers"][0]
    container |= {"args": ["x"], "env": [{"name": "KEPT", "value": "1"}, {"name": "PATH", "value": "theirs"}]}
    before = copy.deepcopy(template)
    pod = pod_for(template, "n1", "mark", "w-1", ["py", "warden"], {"PATH": "ours"})
    assert template == before
    made = pod["spec"]["containers"][0]
    assert made["command"] == ["py", "warden"] and "args" not in made
    assert made["env"] == [{"name": "KEPT", "value": "1"}, {"name": "PATH", "value": "ours"}]
    [terms] = pod["spec"]["affinity"]["nodeAffinity"].popitem()[1]["nodeSelectorTerms"]
    assert terms == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"] == {"app": "edl-worker", "edl/agent": "mark"}
    assert pod_of(pod) == PodSeen(pod["metadata"]["name"], "", "w-1")


def test_a_worker_of_two_processes_has_a_pod_that_asks_for_twice_as_much() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 1, "memory": "1.5Gi"},
        "requests": {"cpu": "500m", "ephemeral-storage": "1e3"},
    }
    template["spec"]["containers"].append({"name": "beside", "resources": {"limits": {"cpu": "1"}}})
    before = copy.deepcopy(template)
    first, beside = multiplied(template, 2)["spec"]["containers"]
    assert first["resources"] == {
        "limits": {"nvidia.com/gpu": 2, "memory": "3.0Gi"},
        "requests": {"cpu": "1000m", "ephemeral-storage": "2e3"},
    }
    assert beside["resources"] == {"limits": {"cpu": "1"}}
    assert template == before == multiplied(template, 1)


def test_names_of_pods_are_names_and_no_two_workers_have_one() -> None:
    ids = ["a-1", "A-1", "a_1", "a.1", "...-1", "x" * 48 + "-12", "x" * 48 + "-13"]
    names = [pod_name("mark", worker) for worker in ids]
    assert len(set(names)) == len(ids)
    assert all(name.replace("-", "").isalnum() and name == name.lower() and len(name) <= 80 for name in names), names
    assert pod_name("mark", "a-1") != pod_name("other", "a-1")
    assert agent_mark("c", "/f") != agent_mark("d", "/f")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(401, KubernetesError), (409, KubernetesRefused), (403, KubernetesRefused), (408, KubernetesError),
     (410, WatchExpired), (422, KubernetesRefused), (429, KubernetesError), (500, KubernetesError),
     (503, KubernetesError)],
)  # fmt: skip
def test_what_is_tried_again_and_what_is_not(code: int, kind: type[KubernetesError]) -> None:
    found = refusal(code, b'{"message": "words"}', "url")
    assert type(found) is kind and "words" in str(found)


def test_the_reason_of_a_refusal_is_kept() -> None:
    found = refusal(409, b'{"message": "words", "reason": "AlreadyExists"}', "url")
    assert isinstance(found, KubernetesRefused) and found.reason == "AlreadyExists"


def test_watches_that_end_at_once_are_asked_for_ever_more_slowly() -> None:
    pace = WatchPace()
    assert [pace.pause_s(0.0) for _ in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [pace.pause_s(20.0), pace.pause_s(0.0), pace.pause_s(0.0)] == [0.0, 0.0, 1.0]


# ------------------------------------------------------------------------------------------------------ what is given


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.1", "in the clear"),
        ("ftp://x", "must be the API"),
        ("https://", "must be"),
        ("https://a:b", "Port"),
    ],
)
def test_addresses_that_are_none(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked_server("--kubernetes", url)


def test_localhost_is_where_kubectl_proxy_listens() -> None:
    assert checked_server("--kubernetes", "http://localhost:8001") == "http://127.0.0.1:8001"


def test_a_pod_knows_its_api_server() -> None:
    assert (
        found_here({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}) == "https://10.0.0.1:443"
    )
    assert found_here({"KUBERNETES_SERVICE_HOST": "fd00::1"}) == "https://[fd00::1]:443"
    assert found_here({}) is None
    assert checked_server("--kubernetes", "https://[fd00::1]:443") == "https://[fd00::1]:443"


def template_with(**resources: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = resources
    return template


def test_what_makes_a_slot() -> None:
    assert devices_of(TEMPLATE) == ("", 1)
    assert devices_of(template_with(requests={"cpu": "2", "memory": "4Gi"})) == ("", 2)
    assert devices_of(template_with(limits={"nvidia.com/gpu": 2, "cpu": "8"})) == ("nvidia.com/gpu", 2)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes")) as found:
        found.add_node("n1", cpus=4)
        found.add_node("n2", cpus=8, gpus=2)
        found.add_node("control", taints=({"key": "control-plane", "effect": "NoSchedule"},))
        yield found


def test_all_nodes_that_take_such_pods_are_the_clusters(kubernetes: FakeKubernetes) -> None:
    nodes = kubernetes_nodes(kubernetes.given(), None, own_coordinator=False)
    assert nodes == (NodeGiven("n1", (0, 1, 2, 3)), NodeGiven("n2", tuple(range(8))))
    gpus = kubernetes.given(template_with(limits={"nvidia.com/gpu": 1}))
    assert kubernetes_nodes(gpus, None, own_coordinator=False) == (NodeGiven("n2", (0, 1)),)
    assert kubernetes_nodes(kubernetes.given(), "n1:9", own_coordinator=False) == (NodeGiven("n1", tuple(range(9))),)


@pytest.mark.parametrize(
    ("nodes", "own", "said"),
    [
        ("n9:1", False, "Kubernetes has no node n9"),
        ("n2:3", False, "n2 has room for 2 such workers"),
        ("n1", False, "NODE:SLOTS of Kubernetes"),
        (None, True, "Pods do not reach the ZooKeeper"),
    ],
)
def test_nodes_that_cannot_be_had(kubernetes: FakeKubernetes, nodes: str | None, own: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kubernetes_nodes(kubernetes.given(template_with(limits={"nvidia.com/gpu": 1})), nodes, own_coordinator=own)


def test_a_token_that_opens_nothing_is_said_to(kubernetes: FakeKubernetes, tmp_path: Path) -> None:
    given = kubernetes.given()
    for name in ("ca.crt", "token", "namespace"):
        (tmp_path / name).write_text((Path(given.account) / name).read_text())
    (tmp_path / "token").write_text("another")
    other = KubernetesGiven(given.url, str(tmp_path), given.namespace, given.template)
    with pytest.raises(ConfigError, match="Unauthorized"):
        kubernetes_nodes(other, None, own_coordinator=False)
    (tmp_path / "token").write_text((Path(given.account) / "token").read_text())  # Kubernetes renews it
    assert ask_once(other, KubernetesApi.nodes)


@pytest.mark.parametrize("call", [KubernetesApi.nodes, lambda api: anext(api.watch("a=b", "1"))], ids=["call", "watch"])
async def test_a_call_that_is_cancelled_within_its_handshake_leaves_no_connection(
    kubernetes: FakeKubernetes, call: Any
) -> None:
    ended, begun = asyncio.Event(), asyncio.Event()

    async def never_shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(never_shake_hands, "127.0.0.1", 0) as mute:
        url = f"https://127.0.0.1:{mute.sockets[0].getsockname()[1]}"
        api = KubernetesApi(msgspec.structs.replace(kubernetes.given(), url=url))
        asked = asyncio.ensure_future(call(api))
        await asyncio.wait_for(begun.wait(), 60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.wait_for(ended.wait(), 5)
        await api.close()


def test_a_server_that_another_authority_has_signed_is_not_told_the_token(
    kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    with fake_kubernetes(tmp_path) as other:
        wrong = KubernetesGiven(other.url, kubernetes.given().account, "research", TEMPLATE)
        with pytest.raises(KubernetesError, match="CERTIFICATE_VERIFY_FAILED"):
            ask_once(wrong, KubernetesApi.nodes)
        assert other.asked == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "needs --pod-template FILE"),
        ("{", "is no YAML"),
        ("1", "is no Pod: Expected"),
        ('{"kind": "Deployment", "spec": {"containers": [{"image": "x"}]}}', "and is a Deployment"),
        ('{"spec": {"containers": []}}', "a Pod with a container"),
        ('{"spec": {"containers": [{"name": "x"}]}}', "image"),
    ],
)
def test_templates_that_are_none(kubernetes: FakeKubernetes, tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "worker.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        flagged(kubernetes, None if text is None else str(path))


def flagged(
    kubernetes: FakeKubernetes, template: str | None, *, url: str | None = None, account: str | None = None
) -> KubernetesGiven:
    account = account or kubernetes.given().account
    return given_of(KubernetesFlags(template, url or kubernetes.url, account), {})


def write_template(folder: Path, text: str | None = None) -> str:
    path = folder / "worker.yaml"
    path.write_text(text or yaml.safe_dump(TEMPLATE))
    return str(path)


@pytest.mark.parametrize("form", [json.dumps(TEMPLATE), yaml.safe_dump(TEMPLATE)])
def test_what_is_given_is_found(kubernetes: FakeKubernetes, tmp_path: Path, form: str) -> None:
    path = write_template(tmp_path, form)
    assert flagged(kubernetes, path) == kubernetes.given()
    with pytest.raises(ConfigError, match=r"nowhere.*No such file"):
        flagged(kubernetes, path, account="/nowhere")


def test_a_pod_asks_as_its_account_and_others_as_their_kubeconfig_says(
    kubernetes: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, monkeypatched = write_template(tmp_path), monkeypatch.setenv("HOME", str(tmp_path))
    assert monkeypatched is None
    with pytest.raises(ConfigError, match=r"this is no Pod, and there is no ~/.kube/config"):
        given_of(KubernetesFlags(path), {})
    (tmp_path / ".kube").mkdir()
    kubernetes.write_kubeconfig(tmp_path / ".kube" / "config")
    found = given_of(KubernetesFlags(path), {})
    assert (found.url, found.namespace, found.context) == (kubernetes.url, "research", "by-token")
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    account = kubernetes.given().account
    assert given_of(KubernetesFlags(path, account=account), inside).url == "https://10.0.0.1:443"
    assert given_of(KubernetesFlags(path, context="by-token"), inside) == found


# ---------------------------------------------------------------------------------------------------- who is asking


@pytest.fixture
def kubeconfig(kubernetes: FakeKubernetes, tmp_path: Path) -> Path:
    kubernetes.write_kubeconfig(tmp_path / "config")
    return tmp_path / "config"


def asked_by(kubeconfig: Path, context: str | None = None) -> list[str]:
    """Names of nodes, as a context of the kubeconfig is told them."""
    template = write_template(kubeconfig.parent)
    given = given_of(KubernetesFlags(template, kubeconfig=str(kubeconfig), context=context), {})
    return [node["metadata"]["name"] for node in ask_once(given, KubernetesApi.nodes)]


@pytest.mark.parametrize("context", [None, "by-token", "by-file", "by-plugin-v1", "by-plugin-v1beta1"])
def test_each_way_of_a_kubeconfig_opens_the_server(kubeconfig: Path, context: str | None) -> None:
    assert "n1" in asked_by(kubeconfig, context)


def test_a_client_certificate_opens_the_server_and_is_found_beside_the_kubeconfig(
    kubernetes: FakeKubernetes, kubeconfig: Path
) -> None:
    assert "n1" in asked_by(kubeconfig, "by-certificate")
    with pytest.raises(ConfigError, match=r"config: .*cannot be read"):
        asked_by(kubeconfig, "by-no-certificate")


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("by-broken-plugin", "returned 3: sorry"),
        ("by-empty-plugin", "gave no token"),
        ("by-wrong-token", "Unauthorized"),
    ],
)
def test_who_is_not_let_in_is_told_why(kubeconfig: Path, context: str, said: str) -> None:
    with pytest.raises(KubernetesError, match=said):
        asked_by(kubeconfig, context)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("current-context: by-token", "current-context: other", "Context 'other' not found"),
        ("server: https:", "server: ftp:", "must be the API server's address"),
        ("server: https://127.0.0.1", "server: http://10.0.0.1", "in the clear"),
        ("clusters:", "clouds:", "is no kubeconfig"),
        ("clusters:", "clusters: [", "is no YAML"),
        ("server: ", "tls-server-name: x\n    server: ", "tls-server-name is not supported"),
    ],
)
def test_kubeconfigs_that_are_none(kubeconfig: Path, old: str, new: str, said: str) -> None:
    text = kubeconfig.read_text()
    assert old in text
    kubeconfig.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        asked_by(kubeconfig)
    assert len(str(caught.value).splitlines()) == 1


def test_flags_that_contradict_each_other_and_files_that_are_not_there(
    kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    path = write_template(tmp_path)
    with pytest.raises(ConfigError, match="give one of them"):
        given_of(KubernetesFlags(path, kubernetes.url, kubeconfig="config"), {})
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        given_of(KubernetesFlags(path, kubeconfig="/nowhere"), {})
    with pytest.raises(ConfigError, match=r"KUBECONFIG=a:b: several files"):
        given_of(KubernetesFlags(path), {"KUBECONFIG": "a:b"})


def test_the_proxy_of_a_kubeconfig_is_asked(kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        text = kubeconfig.read_text().replace("    server: ", f"    proxy-url: {address}\n    server: ")
        kubeconfig.write_text(text)
        heard: list[bytes] = []

        def hear() -> None:
            line, _ = proxy.accept()
            with line:
                heard.append(line.recv(100))

        hearing = threading.Thread(target=hear)
        hearing.start()
        with pytest.raises(KubernetesError):
            asked_by(kubeconfig)
        hearing.join()
    assert heard[0].startswith(b"CONNECT 127.0.0.1:")
