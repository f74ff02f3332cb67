"""What the actors do before they ask anything of Ray."""

import pytest

from app_toolkit.engines.ray import actors
from app_toolkit.errors import StaleEpoch
from app_toolkit.interfaces import ProxySpec
from app_toolkit.types import NodeId, ReplicaId


def test_an_order_to_start_that_is_not_obeyed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "node", lambda: NodeId("n"))
    monkeypatch.setattr(actors, "own_host", lambda: "127.0.0.1")
    monkeypatch.setattr(actors, "alive_nodes", lambda: ["127.0.0.1"])
    proxy = actors._Proxy(ReplicaId("proxy@n-1"))
    proxy.heed(7)
    with pytest.raises(StaleEpoch, match="an order of epoch 6 came after one of epoch 7"):
        proxy.start(ProxySpec(proxy.name, {"port": 0}, NodeId("n")), "proxy@n", "r1", b"secret", 6)
    assert not hasattr(proxy, "server")
    assert proxy.replica_set is None


def test_a_process_that_was_ordered_by_one_that_slept_over_its_answer_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Exception):
        pass

    def leave(code: int) -> None:
        raise Gone(code)

    monkeypatch.setattr(actors.os, "_exit", leave)
    monkeypatch.setattr(actors, "last_epoch", lambda: 7)
    proxy = actors._Proxy(ReplicaId("proxy@n-1"))
    with pytest.raises(Gone, match="0"):
        proxy.start(ProxySpec(proxy.name, {"port": 0}, NodeId("n")), "proxy@n", "r1", b"secret", 6)
    assert not hasattr(proxy, "server")
