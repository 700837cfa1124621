"""EDL_COORDINATOR*: what they mean, and what is said when they make no sense."""

from __future__ import annotations

import pytest

from edl.coordination.coordinator_settings import Coordinator, Digest, Tls, from_environment
from edl.errors import ConfigError


def test_nothing_set_is_no_coordinator():
    assert from_environment({}) is None
    assert from_environment({"EDL_COORDINATOR_AUTH": "edl:pw"}) is None


@pytest.mark.parametrize(
    ("hosts", "endpoints", "chroot"),
    [
        ("zk", (("zk", 2181),), ""),
        ("zk:2182", (("zk", 2182),), ""),
        ("a:1,b:2,c", (("a", 1), ("b", 2), ("c", 2181)), ""),
        ("a:1, b:2/edl/jobs", (("a", 1), ("b", 2)), "/edl/jobs"),
        ("a:1//edl/", (("a", 1),), "/edl"),
        ("a/", (("a", 2181),), ""),
        ("[::1]:2182,[::1]", (("::1", 2182), ("::1", 2181)), ""),
    ],
)
def test_hosts_are_read_as_zookeepers_clients_read_them(hosts, endpoints, chroot):
    coordinator = from_environment({"EDL_COORDINATOR": hosts})
    assert (coordinator.endpoints, coordinator.chroot) == (endpoints, chroot)


@pytest.mark.parametrize("hosts", [":2181", "a:b", "a:0", "a:65536", "a:1,,b:2", "/chroot", "a:-1", "[]:1"])
def test_a_wrong_address_is_named_with_the_form_it_should_have(hosts):
    with pytest.raises(ConfigError, match=r"HOST:PORT\[,HOST:PORT\.\.\.\]\[/chroot\]"):
        from_environment({"EDL_COORDINATOR": hosts})


def test_a_flag_goes_before_the_environment():
    assert from_environment({"EDL_COORDINATOR": "env:1"}, hosts="flag:2").hosts == "flag:2"


def test_a_password_may_hold_colons_and_is_never_shown():
    coordinator = from_environment({"EDL_COORDINATOR": "zk:1", "EDL_COORDINATOR_AUTH": "edl:se:cret"})
    assert coordinator.digest == Digest("edl", "se:cret")
    assert "cret" not in repr(coordinator)


@pytest.mark.parametrize("auth", ["secret", ":secret", "user:", ":"])
def test_half_an_auth_is_refused_without_showing_it(auth):
    with pytest.raises(ConfigError, match=r"^EDL_COORDINATOR_AUTH must be user:password$"):
        from_environment({"EDL_COORDINATOR": "zk:1", "EDL_COORDINATOR_AUTH": auth})


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for path in paths:
        path.write_text("")
    return [str(path) for path in paths]


def test_tls_checks_the_host_name_unless_told_otherwise(files):
    env = {"EDL_COORDINATOR": "zk:1", "EDL_COORDINATOR_TLS_CA": files[0]}
    assert from_environment(env).tls == Tls(files[0])
    env["EDL_COORDINATOR_TLS_VERIFY_HOST"] = "no"
    assert from_environment(env).tls == Tls(files[0], check_hostname=False)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"EDL_COORDINATOR_TLS_CA": ""}, "EDL_COORDINATOR_TLS_CA is missing"),
        ({"EDL_COORDINATOR_TLS_KEY": ""}, "EDL_COORDINATOR_TLS_CERT and EDL_COORDINATOR_TLS_KEY go together"),
        ({"EDL_COORDINATOR_TLS_CERT": "/nowhere"}, "EDL_COORDINATOR_TLS_CERT: cannot read /nowhere"),
        ({"EDL_COORDINATOR_TLS_VERIFY_HOST": "maybe"}, "EDL_COORDINATOR_TLS_VERIFY_HOST must be 1 or 0"),
    ],
)
def test_tls_settings_that_make_no_sense_are_named(files, broken, named):
    with pytest.raises(ConfigError, match=named):
        from_environment({"EDL_COORDINATOR": "zk:1", **tls_variables(files), **broken})


def test_the_environment_made_for_a_child_gives_the_same_coordinator(files):
    for coordinator in (
        Coordinator("a:1,b:2/c"),
        Coordinator("a:1", Digest("u", "p:w")),
        Coordinator("a:1", None, Tls(files[0], files[1], files[2], check_hostname=False)),
        Coordinator("a:1", Digest("u", "p"), Tls(files[0])),
    ):
        assert from_environment(coordinator.environment()) == coordinator


def tls_variables(files):
    return {f"EDL_COORDINATOR_TLS_{name}": path for name, path in zip(("CA", "CERT", "KEY"), files, strict=True)}


@pytest.mark.parametrize(
    ("hosts", "kind", "endpoints", "chroot"),
    [
        ("zk", "zookeeper", (("zk", 2181),), ""),
        ("zookeeper://zk:1,[::1]:2/a/b", "zookeeper", (("zk", 1), ("::1", 2)), "/a/b"),
        ("etcd://e1,e2:5/a", "etcd", (("e1", 2379), ("e2", 5)), "/a"),
        ("etcd:///run/x/client:1", "etcd", (("/run/x/client:1", 0),), ""),
    ],
)
def test_an_address_says_which_coordinator_is_meant(hosts, kind, endpoints, chroot):
    found = Coordinator(hosts)
    assert (found.kind, found.endpoints, found.chroot) == (kind, endpoints, chroot)
    assert from_environment(found.environment()) == found
    assert found.socket == ("/run/x/client:1" if endpoints[0][1] == 0 else "")


@pytest.mark.parametrize("hosts", ["1000@127.0.0.1:5", "zookeeper://1000@127.0.0.1:5/a"])
def test_an_address_may_say_whose_the_server_is(hosts):
    found = from_environment({"EDL_COORDINATOR": hosts})
    assert (found.user, found.endpoints, found.servers) == (1000, (("127.0.0.1", 5),), "127.0.0.1:5")
    assert Coordinator("127.0.0.1:5").user is None


@pytest.mark.parametrize("hosts", ["ann@127.0.0.1:5", "etcd://1000@127.0.0.1:5"])
def test_a_user_that_cannot_be_checked_is_refused(hosts):
    with pytest.raises(ConfigError, match="before @ stands the number of a ZooKeeper's user"):
        from_environment({"EDL_COORDINATOR": hosts})


def test_a_kind_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match="not a coordinator: consul://"):
        from_environment({"EDL_COORDINATOR": "consul://here:1"})
