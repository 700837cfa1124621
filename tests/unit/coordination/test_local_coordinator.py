"""Which local coordinator a machine has: ZooKeeper first, etcd where there is no Java, else edl's own."""

from __future__ import annotations

import pytest

from edl.coordination import local_coordinator
from edl.coordination.local_coordinator import choose, find_etcd
from edl.errors import ConfigError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Programs of these names are all there is; with java come ZooKeeper's jars."""
    monkeypatch.setattr(local_coordinator, "_SYSTEM_JARS", tmp_path)
    monkeypatch.setattr(local_coordinator, "_in_package", lambda *_: iter(()))

    def has(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": str(tmp_path)}

    return has


def test_zookeeper_is_the_usual_one(machine):
    env = machine("java", "zookeeper.jar", "etcd")
    assert (choose(None, env).kind, choose(None, env).because) == ("zookeeper", "")
    assert (choose("etcd", env).kind, choose("etcd", env).because) == ("etcd", "")


def test_without_java_it_is_an_etcd_and_that_is_said(machine):
    chosen = choose(None, machine("etcd"))
    assert chosen.kind == "etcd"
    assert chosen.because.startswith("no Java on this machine: the local coordinator is an etcd (/")
    with pytest.raises(ConfigError, match="needs Java"):
        choose("zookeeper", machine("etcd"))


def test_without_its_jars_it_is_an_etcd_too(machine):
    assert choose(None, machine("etcd", "java")).because.startswith("no ZooKeeper on this machine")


def test_with_neither_it_is_the_embedded_one_and_that_is_said(machine):
    chosen = choose(None, machine(), alone=True)
    assert chosen.kind == "embedded"
    assert chosen.because == (
        "no Java and no etcd on this machine: the local coordinator is edl's own, for jobs of this machine; a cluster, "
        "or workers of other hosts, need a ZooKeeper or an etcd"
    )
    assert choose(None, machine("java"), alone=True).because.startswith("no ZooKeeper and no etcd on this machine")


def test_the_embedded_one_may_be_asked_for_anywhere_and_that_is_said(machine):
    env = machine("java", "zookeeper.jar", "etcd")
    chosen = choose("embedded", env, alone=True)
    assert chosen.kind == "embedded" and "jobs of this machine; a cluster" in chosen.because
    assert choose(None, env, alone=True).kind == "zookeeper"


def test_more_than_jobs_of_one_machine_are_no_embedded_ones(machine):
    with pytest.raises(ConfigError, match=r"^--local-coordinator embedded: [^\n]*have a ZooKeeper or an etcd[^\n]*$"):
        choose("embedded", machine())


@pytest.mark.parametrize("wanted", ["zookeeper", "etcd"])
def test_what_is_asked_for_is_not_replaced_by_the_embedded_one(machine, wanted):
    with pytest.raises(ConfigError, match="needs"):
        choose(wanted, machine(), alone=True)


def test_for_a_cluster_with_neither_one_line_names_both_remedies(machine):
    with pytest.raises(ConfigError, match=r"^[^\n]*openjdk-17-jre-headless[^\n]*etcd-server[^\n]*$"):
        choose(None, machine())
    with pytest.raises(ConfigError, match=r"^a local etcd needs [^\n]*etcd-server[^\n]*$"):
        choose("etcd", machine())


def test_what_is_named_must_be_right(machine):
    env = machine("etcd")
    with pytest.raises(ConfigError, match="EDL_JAVA=/nowhere is no program"):
        choose(None, {**env, "EDL_JAVA": "/nowhere"})
    with pytest.raises(ConfigError, match="EDL_ETCD=/nowhere is no program"):
        choose(None, {**env, "EDL_ETCD": "/nowhere"}, alone=True)
    with pytest.raises(ConfigError, match="EDL_ETCD=/nowhere is no program"):
        find_etcd({**env, "EDL_ETCD": "/nowhere"})
    assert find_etcd({"EDL_ETCD": env["PATH"] + "/etcd"}).name == "etcd"
