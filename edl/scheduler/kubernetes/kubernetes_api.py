"""The API server of Kubernetes, over HTTPS: Pods made, listed, watched, ended. lightkube knows who asks: a service
account, or a context of a kubeconfig with its certificates, tokens and exec plug-ins.

Owns: these calls, and what their answers mean. Does not own: what they are for (`kubernetes_engine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, NameValue, User
from lightkube.core.exceptions import ConfigError as LightkubeError

from edl.errors import ConfigError, EdlError
from edl.host.network import LOOPBACK, is_loopback
from edl.scheduler.cluster_home import KubernetesGiven

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # in each Pod that has one
ANSWER_S: Final = 10.0
WATCH_S: Final = 20  # then it is asked for anew: a connection that died without a word is noticed
EXISTS: Final = "AlreadyExists"
GONE, CONFLICT, MISSING, BUSY, NO_TOKEN, TIMED_OUT = 410, 409, 404, 429, 401, 408
BAD_REQUEST, SERVERS_FAULT = 400, 500
EXEC_V1, EXEC_V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
T = TypeVar("T")


class KubernetesError(EdlError):
    """Kubernetes did not do what it was asked, or did not answer. It may the next time."""


class KubernetesRefused(KubernetesError):
    """The API server refuses a call, and would refuse it the next time."""

    def __init__(self, words: str, code: int, reason: str = "") -> None:
        """`reason`: a word of the API, such as `AlreadyExists`."""
        super().__init__(words)
        self.code, self.reason = code, reason


class WatchExpired(KubernetesError):
    """The API server no longer knows what has happened since a watch's version: list all Pods again."""


class PodEvent(msgspec.Struct, frozen=True):
    """`pod` was added or changed, or is gone; None: only the version has moved on."""

    gone: bool
    pod: dict[str, Any] | None
    version: str


class KubernetesApi:
    """Client of the API server, for the Pods of one namespace. Its calls belong to one event loop."""

    def __init__(self, given: KubernetesGiven) -> None:
        """Raises ConfigError."""
        self._url = given.url
        self._path = f"/api/v1/namespaces/{quote(given.namespace)}/pods"
        config, params = connection_of(given)
        try:
            self._client = AsyncClient(config, params)
        except (OSError, ssl.SSLError, ValueError, LightkubeError) as error:
            raise ConfigError(f"{given.kubeconfig or given.account}: a certificate cannot be read: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    # ----------------------------------------------------------------------------------------------------------- calls

    async def make(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Make a Pod. Return the Pod as it stands in Kubernetes now, also where it was made before. Raises
        KubernetesError, KubernetesRefused.

        A conflict has one more cause than a name that is taken: two Pods are counted for one quota at once. Such a
        Pod was not made, and is to be asked for again.
        """
        try:
            return await self._call("POST", self._path, body=pod)
        except KubernetesRefused as refused:
            if refused.code != CONFLICT:
                raise
            conflict = refused
        there = await self._pod(pod["metadata"]["name"])
        if there is not None:
            return there
        if conflict.reason == EXISTS:
            raise KubernetesRefused(f"its Pod was there and is gone: {conflict}", MISSING)
        raise KubernetesError(f"{self._url}: {conflict}")

    async def end(self, name: str, uid: str, grace_s: int) -> None:
        """Delete the Pod that has this uid, and no other Pod of its name. A Pod that is gone is no error. Raises
        KubernetesError.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}
        options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", f"{self._path}/{quote(name)}", body=options)
        except KubernetesRefused as refused:
            if refused.code not in {MISSING, CONFLICT}:
                raise
            there = await self._pod(name) if refused.code == CONFLICT else None
            if there is not None and there["metadata"].get("uid") == uid:  # the conflict is about something else
                raise KubernetesError(f"{self._url}: {refused}") from None

    async def pods(self, selector: str) -> tuple[list[dict[str, Any]], str]:
        """List Pods; return also the version from which on they can be watched. Raises KubernetesError."""
        found = await self._call("GET", self._path, asked={"labelSelector": selector})
        return list(found.get("items") or ()), str((found.get("metadata") or {}).get("resourceVersion", ""))

    async def watch(self, selector: str, version: str) -> AsyncGenerator[PodEvent, None]:
        """Yield events of Pods after a version. A watch ends now and then. Raises KubernetesError, WatchExpired."""
        asked = {
            "labelSelector": selector, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }  # fmt: skip
        timeout = httpx2.Timeout(ANSWER_S, read=WATCH_S + ANSWER_S)
        with self._heard():
            async with self._client.stream(
                "GET", self._path, params=asked, timeout=timeout, extensions=careful()
            ) as answer:
                if answer.status_code >= BAD_REQUEST:
                    raise refusal(answer.status_code, await answer.aread(), self._url)
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield _event(line)

    async def nodes(self) -> list[dict[str, Any]]:
        """Raises KubernetesError."""
        return list((await self._call("GET", "/api/v1/nodes")).get("items") or ())

    async def node(self, name: str) -> dict[str, Any] | None:
        """Raises KubernetesError."""
        return await self._found(f"/api/v1/nodes/{quote(name)}")

    # ---------------------------------------------------------------------------------------------------------- inside

    async def _pod(self, name: str) -> dict[str, Any] | None:
        return await self._found(f"{self._path}/{quote(name)}")

    async def _found(self, path: str) -> dict[str, Any] | None:
        try:
            return await self._call("GET", path)
        except KubernetesRefused as refused:
            if refused.code == MISSING:
                return None
            raise

    async def _call(
        self, verb: str, path: str, *, asked: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        with self._heard():
            async with asyncio.timeout(ANSWER_S):
                answer = await self._client.request(verb, path, params=asked, json=body, extensions=careful())
        if answer.status_code >= BAD_REQUEST:
            raise refusal(answer.status_code, answer.content, self._url)
        try:
            return cast("dict[str, Any]", json.loads(answer.content))
        except ValueError:
            raise KubernetesError(f"{self._url}: is no API server of Kubernetes: {answer.content[:80]!r}") from None

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Raises KubernetesError for whatever keeps an answer away."""
        try:
            yield
        except TimeoutError:
            raise KubernetesError(f"{self._url}: no answer within {ANSWER_S:g} s") from None
        except (httpx2.HTTPError, LightkubeError, OSError) as error:
            raise KubernetesError(f"{self._url}: {str(error) or type(error).__name__}") from None
        except (KeyError, TypeError, json.JSONDecodeError):  # of the client: it reads the plug-in's answer so
            raise KubernetesError(f"{self._url}: the exec plug-in of the kubeconfig gave no token") from None


def ask_once(given: KubernetesGiven, call: Callable[[KubernetesApi], Awaitable[T]]) -> T:
    """Carry out calls from a thread without an event loop. Raises ConfigError, KubernetesError."""

    async def asked() -> T:
        async with KubernetesApi(given) as api:
            return await call(api)

    return asyncio.run(asked())


def careful() -> dict[str, Any]:
    """Return request extensions that close a call's connection if the call is cancelled within its TLS handshake:
    httpcore closes it only if the handshake fails by an error.
    """
    opened: list[Any] = []

    async def follow(event: str, told: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(told["return_value"])
        elif event == "connection.start_tls.failed":
            await opened.pop().aclose()

    return {"trace": follow}


def refusal(code: int, body: bytes, url: str) -> KubernetesError:
    reason = ""
    try:
        told = json.loads(body)
        words, reason = str(told["message"])[:300], str(told.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        words = httpx2.codes.get_reason_phrase(code) or f"status {code}"
    if code == GONE:
        return WatchExpired(words)
    if code in {NO_TOKEN, TIMED_OUT, BUSY} or code >= SERVERS_FAULT:
        return KubernetesError(f"{url}: {words}")
    return KubernetesRefused(words, code, reason)


def _event(line: str) -> PodEvent:
    try:
        told = json.loads(line)
        kind, found = str(told["type"]), told["object"]
    except (ValueError, KeyError, TypeError):
        raise KubernetesError(f"a watch breaks off within a line: {line[:80]!r}") from None
    if kind == "ERROR":
        code = int(found.get("code") or 0)
        raise refusal(code or SERVERS_FAULT, json.dumps(found).encode(), "watch")
    version = str((found.get("metadata") or {}).get("resourceVersion", ""))
    return PodEvent(kind == "DELETED", None if kind == "BOOKMARK" else found, version)


# ------------------------------------------------------------------------------------------------------------ who asks


def connection_of(given: KubernetesGiven) -> tuple[SingleConfig, ConnectionParams]:
    """Return lightkube's settings. A service account's token is read again when Kubernetes has replaced it. Raises
    ConfigError.
    """
    timeout = httpx2.Timeout(ANSWER_S)
    if given.kubeconfig:
        config, proxy = context_of(given.kubeconfig, given.context)
        return config, ConnectionParams(timeout, proxy=proxy)
    account = Path(given.account)
    cluster = Cluster(server=given.url, certificate_auth=str(account / "ca.crt"))
    found = KubeConfig.from_one(cluster=cluster, user=User(token_file=str(account / "token"))).get()
    assert found is not None
    return found, ConnectionParams(timeout, trust_env=False)


def context_of(path: str, name: str) -> tuple[SingleConfig, str | None]:
    """Return a kubeconfig's context, by default its current one, and the proxy to its server. Raises ConfigError."""
    try:
        told = yaml.safe_load(Path(path).read_text())
        found = KubeConfig.from_dict(told, fname=path).get(name or None)
        assert found is not None
        [more] = [one["cluster"] for one in told["clusters"] if one["name"] == found.context.cluster]
    except OSError as error:
        raise ConfigError(f"--kubeconfig {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--kubeconfig {path}: is no YAML: {' '.join(str(error).split())}") from None
    except (LightkubeError, msgspec.ValidationError) as error:
        raise ConfigError(f"--kubeconfig {path}: {error}: `kubectl config get-contexts` lists them") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--kubeconfig {path}: is no kubeconfig: {error} is missing or wrong") from None
    if "tls-server-name" in more:
        raise ConfigError(f"--kubeconfig {path}: tls-server-name is not supported: name the server as its certificate")
    return found._replace(user=_told_of_exec(found.user or User())), more.get("proxy-url")


def _told_of_exec(user: User) -> User:
    """Let plug-ins of the API's newest version run, too: lightkube runs both alike, and tells them too little."""
    plugin = user.exec
    if plugin is None:
        return user
    told = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    plugin.env = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(told))]
    plugin.apiVersion = EXEC_V1BETA1 if plugin.apiVersion == EXEC_V1 else plugin.apiVersion
    return user


def checked_server(flag: str, url: str, *, with_path: bool = False) -> str:
    """Return the API server's address in the form in which it is connected to. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{flag} {url}: {error}") from None
    path = parts.path.strip("/")
    if parts.scheme not in {"http", "https"} or not host or (path and not with_path) or parts.query or parts.username:
        raise ConfigError(f"{flag} {url}: must be the API server's address, such as https://10.0.0.1:6443")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(f"{flag} {url}: the token would cross the network in the clear: name it by https://")
    if parts.scheme == "http" and host == "localhost":
        host = LOOPBACK  # where `kubectl proxy` listens: at [::1] another user may, and would be sent the token
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}{f'/{path}' if path else ''}"


def found_here(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the API server's address that Kubernetes tells each Pod; None: this is no Pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT_HTTPS")
    port = port or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
