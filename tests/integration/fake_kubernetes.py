"""A made-up API server of Kubernetes, over real HTTPS, with nodes whose Pods are processes of this machine.

It keeps Pods and nodes, streams watches, and answers as the real one does: 401 without the token, 409 for a name that
is taken or another uid, 410 for a version that is forgotten, 422 for a Pod that is none. A test may cut watches, forget
history, lose answers, refuse, be slow, hold Pods back, preempt and evict them, starve them, and take nodes away.

What a node does is as far from Kubernetes as can be: a container is a process, which alone hears SIGTERM; when it has
ended, or its grace is over, all that carries its mark is killed, as a namespace of processes would be.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.server
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import yaml

from edl.launch.job_processes import MARK, signal_marked
from edl.scheduler.cluster_home import KubernetesGiven

NAMESPACE = "research"
TOKEN = "token-of-the-scheduler"
TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"app": "edl-worker"}},
    "spec": {"terminationGracePeriodSeconds": 20, "containers": [{"name": "worker", "image": "training:1"}]},
}
KNOWN: Final = [
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "shortNames": ["po"]},
    {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "shortNames": ["no"]},
]
DISCOVERED: Final[dict[str, dict[str, Any]]] = {  # what kubectl asks for first
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{**one, "verbs": ["get", "list", "watch", "create", "delete"]} for one in KNOWN],
    },
}
EVICTED_AFTER_S = 0.5  # of a node that is not ready: 300 in Kubernetes
Json = dict[str, Any]


class Fault:
    """What goes wrong with requests that fit, so many times."""

    def __init__(self, verb: str, path: str, code: int, times: int, *, after: bool, reason: str) -> None:
        self.verb, self.path, self.code, self.times, self.after, self.reason = verb, path, code, times, after, reason


class FakeKubernetes:
    """Use it by `fake_kubernetes`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.oldest = 100  # what happened before is forgotten
        self.history: list[tuple[int, str, Json]] = []
        self.objects: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, str]] = []
        self.deleted: list[tuple[str, int]] = []  # names and grace
        self.watches: set[socket.socket] = set()
        self.kubelets: dict[str, Kubelet] = {}
        self.slow_s = 0.0
        self.down = False
        self.url = ""

    def given(self, template: Json | None = None) -> KubernetesGiven:
        return KubernetesGiven(self.url, str(self.folder), NAMESPACE, copy.deepcopy(template or TEMPLATE))

    def write_kubeconfig(self, path: Path) -> None:
        """A context for each way in, and for some that lead nowhere; one of a token is the current one."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()

        def plugin(version: str, script: str) -> Json:
            return {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "sh",
                             "args": ["-c", script], "interactiveMode": "Never"}}  # fmt: skip

        def answers(version: str) -> str:
            """A script that gives the token to who speaks this version."""
            answer = json.dumps({"kind": "ExecCredential", "status": {"token": TOKEN}})
            return f"""case $KUBERNETES_EXEC_INFO in *k8s.io/{version}\\"*) echo '{answer}';; esac"""

        users = {
            "token": {"token": TOKEN},
            "file": {"tokenFile": str(self.folder / "token")},
            "plugin-v1": plugin("v1", answers("v1")),
            "plugin-v1beta1": plugin("v1beta1", answers("v1beta1")),
            "broken-plugin": plugin("v1beta1", "echo sorry >&2; exit 3"),
            "empty-plugin": plugin("v1", "echo '{}'"),
            "wrong-token": {"token": "another"},
            "certificate": {"client-certificate": "client.crt", "client-key": "client.key"},
            "no-certificate": {"client-certificate": "nowhere.crt", "client-key": "nowhere.key"},
        }
        for name, own in (("client.crt", "ca.crt"), ("client.key", "key.pem")):
            shutil.copy(self.folder / own, path.parent / name)
        contexts = [
            {"name": f"by-{name}", "context": {"cluster": "fake", "user": name, "namespace": NAMESPACE}}
            for name in users
        ]
        cluster = {"certificate-authority-data": authority, "server": self.url}
        whole = {
            "apiVersion": "v1", "kind": "Config", "current-context": "by-token", "contexts": contexts,
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": name, "user": user} for name, user in users.items()],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(whole))

    # ------------------------------------------------------------------------------------------------- what tests do

    def add_node(self, name: str, *, cpus: int = 4, gpus: int = 0, taints: tuple[Json, ...] = ()) -> None:
        has = {"cpu": str(cpus), **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        self.nodes[name] = {
            "metadata": {"name": name},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.kubelets[name] = Kubelet(self, name)

    def lose_node(self, name: str) -> None:
        """Its power is cut; Kubernetes notices, and later wants its Pods elsewhere."""
        self.kubelets[name].die()
        self._set_ready(name, "Unknown")
        threading.Timer(EVICTED_AFTER_S, self._drive_out, [name]).start()

    def bring_back(self, name: str) -> None:
        self._set_ready(name, "True")
        with self.changed:
            lost = [one for one in self.objects.values() if one["spec"].get("nodeName") == name]
        self.kubelets[name] = Kubelet(self, name)
        for one in lost:
            self.ended(one["metadata"]["name"], 137, "ContainerStatusUnknown")

    def close_node(self, name: str, *, closed: bool = True) -> None:
        self.nodes[name]["spec"]["unschedulable"] = closed

    def hold(self, name: str, *, held: bool = True) -> None:
        """Others have all of that node."""
        self.kubelets[name].held = held
        self.kubelets[name].look()

    def disrupt(self, worker: str, reason: str) -> None:
        """It is to go, with the grace that its own Pod names."""
        pod = self.pod(worker)
        self._disrupted(pod, reason)
        self.end(pod["metadata"]["name"], pod["spec"].get("terminationGracePeriodSeconds", 30))

    def starve(self, worker: str) -> None:
        """As a container all of whose processes are killed for want of memory."""
        self.kubelets[self.pod(worker)["spec"]["nodeName"]].starve(self.pod(worker)["metadata"]["name"])

    def evict_for_resources(self, worker: str) -> None:
        pod = self.pod(worker)
        pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        self.kubelets[pod["spec"]["nodeName"]].kill(pod["metadata"]["name"])

    def cut(self) -> None:
        """All watches, in the middle of a line if it happens so."""
        for one in list(self.watches):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def forget_history(self) -> None:
        with self.changed:
            self.version += 1
            self.oldest, self.history = self.version, []
        self.cut()

    def fail(
        self, verb: str, path: str, code: int, times: int = 1, *, after: bool = False, reason: str = "of the test"
    ) -> None:
        """`after`: the request is carried out, and its answer lost."""
        self.faults.append(Fault(verb, path, code, times, after=after, reason=reason))

    def pod(self, worker: str) -> Json:
        """Raises KeyError."""
        with self.changed:
            for one in self.objects.values():
                if one["metadata"]["annotations"].get("edl/worker") == worker:
                    return one
        raise KeyError(worker)

    def there(self) -> list[str]:
        """Workers that have a Pod."""
        with self.changed:
            return sorted(one["metadata"]["annotations"]["edl/worker"] for one in self.objects.values())

    def count(self, verb: str, path: str = "/pods") -> int:
        return sum(one == verb and path in where for one, where in self.asked)

    # ---------------------------------------------------------------------------------------- what the server keeps

    def tell(self, kind: str, pod: Json) -> None:
        with self.changed:
            self.version += 1
            pod["metadata"]["resourceVersion"] = str(self.version)
            self.history.append((self.version, kind, copy.deepcopy(pod)))
            self.changed.notify_all()

    def make(self, pod: Json) -> tuple[int, Json]:
        name = pod.get("metadata", {}).get("name", "")
        containers = pod.get("spec", {}).get("containers", [])
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name) or not all("image" in c for c in containers):
            return 422, refused(422, "Invalid", f'Pod "{name}" is invalid')
        with self.changed:
            if name in self.objects:
                return 409, refused(409, "AlreadyExists", f'pods "{name}" already exists')
            pod["metadata"] |= {"uid": f"uid-{self.version}", "namespace": NAMESPACE}
            pod["status"] = {"phase": "Pending"}
            self.objects[name] = pod
            self.tell("ADDED", pod)
            answer = copy.deepcopy(pod)
        for kubelet in list(self.kubelets.values()):
            kubelet.look()
        return 201, answer

    def end(self, name: str, grace_s: int, uid: str | None = None) -> tuple[int, Json]:
        with self.changed:
            pod = self.objects.get(name)
            if pod is None:
                return 404, refused(404, "NotFound", f'pods "{name}" not found')
            if uid is not None and uid != pod["metadata"]["uid"]:
                return 409, refused(409, "Conflict", "the UID in the precondition does not match")
            self.deleted.append((name, grace_s))
            unbegun = "nodeName" not in pod["spec"] or pod["status"]["phase"] in {"Succeeded", "Failed"}
            if grace_s == 0 or unbegun:
                self.remove(name)
                return 200, pod
            before = pod["metadata"].get("deletionGracePeriodSeconds")
            if before is None or grace_s < before:
                pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace_s}
                self.tell("MODIFIED", pod)
            node = pod["spec"]["nodeName"]
        self.kubelets[node].ask(name, grace_s)
        return 200, pod

    def remove(self, name: str) -> None:
        with self.changed:
            self.tell("DELETED", self.objects.pop(name))

    def began(self, name: str, node: str) -> None:
        with self.changed:
            pod = self.objects[name]
            pod["spec"]["nodeName"] = node
            pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]}
            self.tell("MODIFIED", pod)

    def waits(self, name: str, node: str, reason: str, message: str) -> None:
        with self.changed:
            pod = self.objects[name]
            pod["spec"]["nodeName"] = node
            waiting = {"waiting": {"reason": reason, "message": message}}
            pod["status"]["containerStatuses"] = [{"name": "worker", "state": waiting}]
            self.tell("MODIFIED", pod)

    def ended(self, name: str, code: int, reason: str = "") -> None:
        with self.changed:
            pod = self.objects.get(name)
            if pod is None:
                return
            ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
            pod["status"] |= {"phase": "Failed" if code or pod["status"].get("reason") else "Succeeded"}
            pod["status"]["containerStatuses"] = [{"name": "worker", "state": {"terminated": ended}}]
            self.tell("MODIFIED", pod)
            if "deletionTimestamp" in pod["metadata"]:
                self.remove(name)

    def _disrupted(self, pod: Json, reason: str) -> None:
        with self.changed:
            pod["status"].setdefault("conditions", []).append(
                {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "of the test"}
            )
            self.tell("MODIFIED", pod)

    def _set_ready(self, name: str, status: str) -> None:
        self.nodes[name]["status"]["conditions"] = [{"type": "Ready", "status": status}]

    def _drive_out(self, node: str) -> None:
        with self.changed:
            there = [one for one in self.objects.values() if one["spec"].get("nodeName") == node]
        for pod in there:
            self._disrupted(pod, "DeletionByTaintManager")
            self.end(pod["metadata"]["name"], 20)

    def stop(self) -> None:
        for kubelet in self.kubelets.values():
            kubelet.die()


class Kubelet:
    """Of one node: has its Pods run, and says how they do."""

    def __init__(self, server: FakeKubernetes, node: str) -> None:
        self.server, self.node = server, node
        self.held = self.dead = False
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.RLock()

    def look(self) -> None:
        if self.held or self.dead:
            return
        with self.server.changed:
            new = [pod for pod in self.server.objects.values() if self._is_ours(pod)]
        for pod in new:
            self._begin(pod)

    def _is_ours(self, pod: Json) -> bool:
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [field] = terms["nodeSelectorTerms"][0]["matchFields"]
        return "nodeName" not in pod["spec"] and field["values"] == [self.node] and "deletionTimestamp" not in pod

    def _begin(self, pod: Json) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        if container["image"].startswith("missing"):
            self.server.waits(name, self.node, "ImagePullBackOff", f"Back-off pulling image {container['image']}")
            return
        with self.lock:
            if name in self.running:
                return
            environ = {one["name"]: one["value"] for one in container["env"]}
            self.server.began(name, self.node)
            process = subprocess.Popen(
                container["command"], env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            self.running[name] = process
        threading.Thread(target=self._wait, args=[name, process, environ[MARK]], daemon=True).start()

    def _wait(self, name: str, process: subprocess.Popen[bytes], mark: str) -> None:
        code = process.wait()
        kill_all(mark)
        if not self.dead:
            self.server.ended(name, 128 - code if code < 0 else code, getattr(process, "reason", ""))

    def ask(self, name: str, grace_s: int) -> None:
        """To its first process alone; after its grace it is killed."""
        process = self.running.get(name)
        if process is None or self.dead:
            if not self.dead:  # it waits for its image
                self.server.remove(name)
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        timer = threading.Timer(grace_s, process.kill)
        timer.daemon = True
        timer.start()

    def kill(self, name: str) -> None:
        self.running[name].kill()

    def starve(self, name: str) -> None:
        self.running[name].reason = "OOMKilled"  # type: ignore[attr-defined]
        self.running[name].kill()

    def die(self) -> None:
        """No client hears of it any more."""
        self.dead = True
        for name, process in self.running.items():
            process.kill()
            process.wait()
            pod = self.server.objects.get(name)
            if pod is not None:
                environ = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
                kill_all(environ[MARK])


def kill_all(mark: str) -> None:
    while signal_marked(mark, signal.SIGKILL):
        time.sleep(0.01)


def refused(code: int, reason: str, message: str) -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    fake: FakeKubernetes

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._act()

    def do_POST(self) -> None:
        self._act()

    def do_DELETE(self) -> None:
        self._act()

    def _act(self) -> None:
        fake, parts = self.fake, urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        fake.asked.append((self.command, self.path))
        time.sleep(fake.slow_s)
        if fake.down:
            self.close_connection = True
            return
        known = self.connection.getpeercert()  # of a client that has a certificate
        if not known and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, refused(401, "Unauthorized", "Unauthorized"))
            return
        fault = next(
            (one for one in fake.faults if one.times and one.verb == self.command and one.path in self.path), None
        )
        if fault is not None:
            fault.times -= 1
            if not fault.after:
                self._say(fault.code, refused(fault.code, "Test", fault.reason))
                return
        if asked.get("watch"):
            self._watch(asked)
            return
        code, answer = self._answer(parts.path, asked, body)
        if fault is not None:
            self.close_connection = True
            return
        self._say(code, answer)

    def _answer(self, path: str, asked: dict[str, str], body: Json) -> tuple[int, Json]:  # noqa: PLR0911 - a table
        fake, pods = self.fake, f"/api/v1/namespaces/{NAMESPACE}/pods"
        name = path.rpartition("/")[2]
        if path in DISCOVERED:
            return 200, DISCOVERED[path]
        if path == "/api/v1/nodes":
            return 200, {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": list(fake.nodes.values())}
        if path.startswith("/api/v1/nodes/"):
            return (200, fake.nodes[name]) if name in fake.nodes else (404, refused(404, "NotFound", "no node"))
        if path == pods and self.command == "POST":
            return fake.make(body)
        if path == pods:
            with fake.changed:
                items = [copy.deepcopy(one) for one in fake.objects.values() if fits(one, asked)]
                meta = {"resourceVersion": str(fake.version)}
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}
        if path.startswith(f"{pods}/") and self.command == "DELETE":
            grace_s = body.get("gracePeriodSeconds", TEMPLATE["spec"]["terminationGracePeriodSeconds"])
            return fake.end(name, grace_s, body.get("preconditions", {}).get("uid"))
        if path.startswith(f"{pods}/") and name in fake.objects:
            return 200, fake.objects[name]
        return 404, refused(404, "NotFound", f'"{path}" not found')

    def _watch(self, asked: dict[str, str]) -> None:
        fake, at = self.fake, int(asked["resourceVersion"])
        if at < fake.oldest:
            if at % 2:  # both ways are in use
                self._say(410, refused(410, "Expired", "too old resource version"))
                return
            self._begin_stream()
            self._chunk({"type": "ERROR", "object": refused(410, "Expired", "too old resource version")})
            self._chunk(None)
            return
        self._begin_stream()
        fake.watches.add(self.connection)
        until = time.monotonic() + float(asked["timeoutSeconds"])
        try:
            while time.monotonic() < until and not fake.down:
                with fake.changed:
                    news = [one for one in fake.history if one[0] > at]
                    if not news:
                        fake.changed.wait(0.2)
                for version, kind, pod in news:
                    at = version
                    if fits(pod, asked):
                        self._chunk({"type": kind, "object": pod})
            self._chunk({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(at)}}})
            self._chunk(None)
        except OSError:
            self.close_connection = True
        finally:
            fake.watches.discard(self.connection)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, what: Json | None) -> None:
        line = b"" if what is None else json.dumps(what).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _say(self, code: int, answer: Json) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def fits(pod: Json, asked: dict[str, str]) -> bool:
    key, _, value = asked.get("labelSelector", "").partition("=")
    return not key or pod["metadata"].get("labels", {}).get(key) == value


class Server(http.server.ThreadingHTTPServer):
    """A handshake that does not come, or breaks off, holds up no other client."""

    daemon_threads = True
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(60)
        with contextlib.suppress(OSError), self.context.wrap_socket(request, server_side=True) as line:
            self.RequestHandlerClass(line, client_address, self)  # type: ignore[arg-type]

    def handle_error(self, *_: Any) -> None:
        pass


def write_account(folder: Path) -> None:
    """As Kubernetes lays it into a Pod; the server's key beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    line = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    line += ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(folder / "ca.crt")]
    subprocess.run([*line, "-keyout", str(folder / "key.pem")], check=True, capture_output=True)
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text(NAMESPACE)


@contextlib.contextmanager
def fake_kubernetes(folder: Path) -> Iterator[FakeKubernetes]:
    write_account(folder)
    fake = FakeKubernetes(folder)
    handler: Callable[..., Any] = type("OfThis", (Handler,), {"fake": fake})
    server = Server(("127.0.0.1", 0), handler)
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    server.context.load_verify_locations(folder / "ca.crt")
    server.context.verify_mode = ssl.CERT_OPTIONAL
    fake.url = f"https://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    serving.start()
    try:
        yield fake
    finally:
        fake.down = True
        fake.cut()
        fake.stop()
        server.shutdown()
        server.server_close()
        serving.join()
