"""By which address a proxy reaches a replica."""

import socket
from pathlib import Path
from typing import Any

from app_toolkit.transport.published import way
from app_toolkit.types import NodeId

HERE, THERE = NodeId("here"), NodeId("there")
REMOTE = "tcp:10.0.0.7:4242"


def replica(path: Path, **facts: Any) -> dict[str, Any]:
    return {"id": "r", "address": f"unix:{path}", "remote_address": REMOTE, "node": HERE, **facts}


def test_on_its_own_node_a_replica_is_reached_by_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "r.sock"))
        shown = replica(tmp_path / "r.sock")
        assert way(shown, HERE) == shown["address"]
        assert way(shown, THERE) == REMOTE


def test_a_socket_that_is_not_there_for_us_gives_way_to_the_port(tmp_path: Path) -> None:
    shown = replica(tmp_path / "in another container.sock")
    assert way(shown, HERE) == REMOTE
    assert way({**shown, "remote_address": None}, HERE) == shown["address"]


def test_a_replica_that_serves_its_own_node_alone_has_no_way_from_another(tmp_path: Path) -> None:
    assert way(replica(tmp_path / "r.sock", remote_address=None), THERE) is None


def test_a_port_of_its_own_host_alone_is_none_of_another_nodes(tmp_path: Path) -> None:
    shown = replica(tmp_path, address="tcp:127.0.0.1:5151")
    assert way(shown, HERE) == "tcp:127.0.0.1:5151"
    assert way(shown, THERE) == REMOTE
