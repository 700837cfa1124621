"""What a transaction becomes in etcd: against a naive etcd in a dictionary, and beside other clients."""

from __future__ import annotations

import random

import pytest

from edl.coordination.etcd.etcd_messages import CREATE, GREATER, KeyValue
from edl.coordination.etcd.etcd_transactions import (
    KeyLayout,
    Seen,
    ancestors,
    children_created,
    plan,
    to_node,
    to_value,
    touched,
    with_parents,
)
from edl.coordination.store import ANY, Check, Create, Delete, NodeExists, StoreRefused, Write
from edl.errors import EdlError, Fenced, PeerError, UsageError

LAYOUT = KeyLayout("/edl")
ME = 7


class NaiveEtcd:
    """Keys, and transactions that compare and change them; as strict as etcd about touching a key twice."""

    def __init__(self):
        self.revision = 1
        self.keys = {}
        self.put_all({LAYOUT.node("/"): b"0 0\n", LAYOUT.session(ME): b""})

    def put_all(self, values):
        self.revision += 1
        for key, value in values.items():
            self._put(key, value, 0)

    def _put(self, key, value, lease):
        before = self.keys.get(key) or KeyValue(key, create_revision=self.revision)
        self.keys[key] = KeyValue(key, before.create_revision, self.revision, before.version + 1, value, lease)

    def commit(self, request):
        for compare in request.compare:
            kv = self.keys.get(compare.key, KeyValue())
            if compare.target == CREATE:
                assert compare.result == GREATER
                if not kv.create_revision > compare.create_revision:
                    return False
            elif kv.mod_revision != compare.mod_revision:
                return False
        self.revision += 1
        touched_keys = [(op.request_put or op.request_delete_range).key for op in request.success]
        assert len(set(touched_keys)) == len(touched_keys), "etcd refuses a key given twice"
        for op in request.success:
            if op.request_delete_range:
                self.keys.pop(op.request_delete_range.key, None)
            elif op.request_put.ignore_value:
                kv = self.keys[op.request_put.key]  # else etcd refuses
                self._put(kv.key, kv.value, 0)
            else:
                self._put(op.request_put.key, op.request_put.value, op.request_put.lease)
        return True

    def look(self, paths):
        seen = {}
        for path, below in paths.items():
            first, end = LAYOUT.children(path)
            children = [key for key in self.keys if first <= key < end] if below else []
            names = frozenset(key.rpartition(b"/")[2].decode() for key in children)
            seen[path] = Seen(self.keys.get(LAYOUT.node(path)), self.keys.get(LAYOUT.count(path)), names)
        return seen

    def plan(self, *ops, fence=None, seen=None):
        return plan(LAYOUT, seen or self.look(touched(ops, fence)), ops, fence, ME)

    def do(self, *ops, fence=None):
        done = self.plan(*ops, fence=fence)
        assert self.commit(done.request)
        return done.results


@pytest.fixture
def etcd():
    return NaiveEtcd()


def test_a_node_comes_and_goes_with_its_count(etcd):
    assert etcd.do(Create("/a"), Create("/a/b", b"x")) == ("/a", "/a/b")
    assert etcd.do(Create("/a/x-", sequence=True)) == ("/a/x-0000000001",)
    etcd.do(Delete("/a/b"), Delete("/a/x-0000000001"), Delete("/a"))
    assert set(etcd.keys) == {LAYOUT.node("/"), LAYOUT.count("/"), LAYOUT.session(ME)}


def test_a_node_made_anew_in_one_transaction_is_new(etcd):
    etcd.do(Create("/a", b"old"), Create("/a/b"), Write("/a", b"older"))
    before = to_node(etcd.keys[LAYOUT.node("/a")])
    etcd.do(Delete("/a/b"), Delete("/a"), Create("/a", b"new"))
    after = to_node(etcd.keys[LAYOUT.node("/a")])
    assert (after.version, after.value) == (0, b"new")
    assert after.created == etcd.revision > before.created
    assert etcd.do(Create("/a/x-", sequence=True)) == ("/a/x-0000000000",)
    etcd.do(Write("/a", b"newer"))
    assert to_node(etcd.keys[LAYOUT.node("/a")]).created == after.created


def test_two_may_create_in_one_folder_at_once(etcd):
    etcd.do(Create("/a"), Create("/a/0"))
    mine, yours = etcd.plan(Create("/a/1")), etcd.plan(Create("/a/2"))
    assert etcd.commit(mine.request) and etcd.commit(yours.request)
    assert children_created(etcd.keys[LAYOUT.count("/a")]) == 3


@pytest.mark.parametrize(
    ("mine", "meanwhile"),
    [
        ([Create("/a/x-", sequence=True)], Create("/a/y")),  # the number is taken
        ([Create("/a/y")], Create("/a/y")),
        ([Create("/a/0/y")], Delete("/a/0")),  # the parent
        ([Write("/a/0", b"1")], Write("/a/0", b"2")),
        ([Write("/a/0", b"1")], Delete("/a/0")),
        ([Delete("/a/0")], Create("/a/0/child")),
        ([Delete("/a/0")], Write("/a/0", b"1")),
        ([Check("/a/0"), Write("/f", b"")], Delete("/a/0")),
        ([Check("/a/0", 0), Write("/f", b"")], Write("/a/0", b"1")),
        ([Create("/a/1"), Create("/a/2")], Create("/a/3")),  # a count that grows by two is no blind one
    ],
    ids=repr,
)
def test_what_another_client_changed_meanwhile_is_not_overwritten(etcd, mine, meanwhile):
    etcd.do(Create("/a"), Create("/a/0"), Create("/f"))
    planned = etcd.plan(*mine)
    etcd.do(meanwhile)
    assert not etcd.commit(planned.request)


def test_no_write_follows_the_end_of_the_session_or_of_the_fence(etcd):
    etcd.do(Create("/fence", ephemeral=True), Create("/a"))
    planned = etcd.plan(Write("/a", b"1"), fence="/fence")
    etcd.do(Delete("/fence"))
    assert not etcd.commit(planned.request)
    with pytest.raises(Fenced):
        etcd.plan(Write("/missing", b""), fence="/fence")
    planned = etcd.plan(Write("/a", b"1"))
    del etcd.keys[LAYOUT.session(ME)]
    assert not etcd.commit(planned.request)


def test_an_ephemeral_goes_with_its_owners_lease_whoever_writes_it(etcd):
    etcd.do(Create("/mine", ephemeral=True))
    assert etcd.keys[LAYOUT.node("/mine")].lease == ME
    other = plan(LAYOUT, etcd.look({"/mine": False}), [Write("/mine", b"1")], None, 8)
    assert [op.request_put.lease for op in other.request.success] == [ME]


def test_a_number_that_is_taken_by_name_is_told(etcd):
    etcd.do(Create("/a"), Create("/a/x-0000000001"))
    planned = etcd.plan(Create("/a/x-", sequence=True))
    assert planned.numbered == {"/a/x-0000000001"}
    assert not etcd.commit(planned.request)
    seen = etcd.look(touched([Create("/a/x-", sequence=True)]) | dict.fromkeys(planned.numbered, False))
    with pytest.raises(NodeExists):
        etcd.plan(Create("/a/x-", sequence=True), seen=seen)


def test_missing_parents_are_made_in_the_same_transaction(etcd):
    create = Create("/a/b/c", b"deep")
    seen = etcd.look(touched([create]) | dict.fromkeys(ancestors(create.path), False))
    assert [op.path for op in with_parents(create, seen)] == ["/a", "/a/b", "/a/b/c"]
    etcd.do(Create("/a"))
    seen = etcd.look(touched([create]) | dict.fromkeys(ancestors(create.path), False))
    assert [op.path for op in with_parents(create, seen)] == ["/a/b", "/a/b/c"]


def test_the_root_stays(etcd):
    with pytest.raises(UsageError):
        etcd.plan(Delete("/"))


def test_what_edl_did_not_write_is_told():
    with pytest.raises(PeerError, match="give edl a prefix of its own"):
        to_node(KeyValue(b"/edl/nodes/1/a", value=b"somebody else's"))
    assert to_value(to_node(KeyValue(mod_revision=9, value=b"2 0\nx\ny"))) == b"2 9\nx\ny"


@pytest.mark.parametrize("seed", range(30))
def test_plans_made_at_once_leave_what_one_after_the_other_would(seed):
    """Two clients plan on the same view; the second goes through only if it may not notice."""
    rng = random.Random(seed)
    paths = ("/a", "/a/b", "/a/c", "/d")
    for _ in range(60):
        etcd, naive = NaiveEtcd(), NaiveEtcd()
        for _ in range(4):
            ops = [drawn(rng, paths)]
            for one in (etcd, naive):
                try:
                    one.do(*ops)
                except EdlError:
                    break
        mine, yours = ([drawn(rng, paths) for _ in range(rng.randint(1, 3))] for _ in range(2))
        try:
            plans = etcd.plan(*mine), etcd.plan(*yours)
        except EdlError:
            continue
        assert etcd.commit(plans[0].request)
        naive.do(*mine)
        if not etcd.commit(plans[1].request):
            continue
        assert naive.do(*yours) == plans[1].results
        assert {k: (v.value, v.version) for k, v in etcd.keys.items() if b"nodes" in k} == {
            k: (v.value, v.version) for k, v in naive.keys.items() if b"nodes" in k
        }
        assert counts(etcd) == counts(naive)


def counts(etcd):
    return {key: children_created(kv) for key, kv in etcd.keys.items() if b"/children" in key}


def drawn(rng, paths):
    path, version = rng.choice(paths), rng.choice((ANY, ANY, 0))
    kind = rng.choice((Create, Create, Create, Write, Delete, Check))
    if kind is Create:
        return Create(path, rng.randbytes(1), sequence=rng.random() < 0.3)
    return Write(path, rng.randbytes(1), version) if kind is Write else kind(path, version)


def test_refusals_are_those_of_the_port(etcd):
    etcd.do(Create("/a"), Create("/a/b"))
    for op in (Create("/a"), Create("/x/y"), Write("/x", b""), Write("/a", b"", 3), Delete("/a"), Check("/x")):
        with pytest.raises(StoreRefused) as caught:
            etcd.plan(op)
        assert caught.value.op == op
