"""The identities of applications, replica sets and replicas."""

import pickle

import pytest

from app_toolkit.contract.identity import (
    LiveRevisionKey,
    ProxySetKey,
    ReplicaSetKey,
    are_proxies,
    live_revision_of,
    live_revision_of_caller,
    parse_set,
    proxy_set_of,
    replica_id,
    replica_set_of,
)
from app_toolkit.types import NodeId

PROXIES = ProxySetKey(NodeId("3f20"))
SETS = {
    "shop/chat": ReplicaSetKey("shop", "chat"),
    "shop@13/chat": ReplicaSetKey("shop", "chat", 13),
    "a-1-2/b_3-4": ReplicaSetKey("a-1-2", "b_3-4"),
    "proxy/proxy": ReplicaSetKey("proxy", "proxy"),
    "proxy@3f20": PROXIES,
}


@pytest.mark.parametrize(("name", "key"), SETS.items())
def test_a_key_is_parsed_from_its_name_and_an_id_has_its_replica_set(name: str, key: ReplicaSetKey) -> None:
    assert (key.name, str(key), parse_set(name)) == (name, name, key)
    assert pickle.loads(pickle.dumps(key)) == key
    id = replica_id(key, 7, 12)
    assert replica_set_of(id) == key
    assert "/" not in id
    assert replica_id(key, 1, 11) != replica_id(key, 11, 1)


@pytest.mark.parametrize("name", ["proxy@3f20", "shop", "shop/", "/chat", ""])
def test_other_names_have_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="APPLICATION/DEPLOYMENT"):
        ReplicaSetKey.parse(name)


@pytest.mark.parametrize("name", ["shop@", "shop@x", "shop@0", "shop@1", "shop@013", "shop@-1", "shop@\u0661"])
def test_another_live_revision_has_a_number_after_the_first(name: str) -> None:
    with pytest.raises(ValueError, match="NAME@REVISION"):
        LiveRevisionKey.parse(name)


def test_the_replica_sets_of_all_live_revisions_have_the_same_deployments():
    first, other = LiveRevisionKey("shop"), LiveRevisionKey("shop", 13)
    assert (first.name, other.name) == ("shop", "shop@13")
    assert LiveRevisionKey.parse("shop@13") == other
    assert other.replica_set("chat") == ReplicaSetKey("shop", "chat", 13) != first.replica_set("chat")
    main = other.replica_set("chat").main
    assert main == first.replica_set("chat").main != first.replica_set("chat")
    assert main.name == "shop/chat"


def test_only_replica_sets_of_deployments_have_an_application() -> None:
    names = ("shop@2/chat", "proxy@3f20", "shop", "-")
    assert [live_revision_of(name) for name in names] == [LiveRevisionKey("shop", 2), None, None, None]
    callers = ("shop.chat-1-1", "proxy@3f20-1-1", "driver-0f")
    assert [live_revision_of_caller(name) for name in callers] == [LiveRevisionKey("shop"), None, None]
    assert [proxy_set_of(name) for name in ("proxy@3f20", "shop@13", "shop@13/chat", "")] == [
        PROXIES,
        None,
        None,
        None,
    ]
    assert [are_proxies(key) for key in SETS.values()] == [False, False, False, False, True]
