"""The names of replica sets and replicas."""

import pytest

from app_toolkit.core.identity import (
    ReplicaSetKey,
    application_of,
    are_proxies,
    node_of,
    proxies_of,
    replica_id,
    replica_set_of,
)
from app_toolkit.types import NodeId, ReplicaId


def test_the_key_of_a_replica_set_is_parsed_from_its_name() -> None:
    key = ReplicaSetKey("shop", "chat")
    assert (str(key), ReplicaSetKey.parse("shop/chat")) == ("shop/chat", key)


@pytest.mark.parametrize("name", ["proxy@3f20", "shop", "shop/", "/chat", ""])
def test_other_names_have_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="APPLICATION/DEPLOYMENT"):
        ReplicaSetKey.parse(name)


def test_only_replica_sets_of_deployments_have_an_application() -> None:
    proxies, driver = proxies_of(NodeId("3f20")), replica_set_of(ReplicaId("driver-0f"))
    assert [application_of(name) for name in ("shop/chat", proxies, driver)] == ["shop", None, None]
    assert (are_proxies(proxies), node_of(proxies), are_proxies("proxy/proxy")) == (True, "3f20", False)


def test_an_id_has_its_replica_set_and_is_unique() -> None:
    for name in ("proxy@3f20", "shop/chat", "a-1-2/b_3-4", "proxy/proxy"):
        id = replica_id(name, 7, 12)
        assert replica_set_of(id) == name
        assert "/" not in id
    assert replica_id("shop/chat", 1, 11) != replica_id("shop/chat", 11, 1)
