"""A cluster is looked for, and asked whether it answers, before Ray tries to connect to it."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app_toolkit.engines.ray import cluster as module
from app_toolkit.engines.ray.cluster import _Node, _preference
from app_toolkit.errors import ConfigError
from tests.cluster import Cluster


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        ("no such host:6379", "no Ray cluster answers at no such host:6379: "),
        ("head", "the address 'head' is neither 'auto' nor of the form HOST:PORT"),
        ("head:port", "the address 'head:port' is neither"),
        ("head:70000", "the address 'head:70000' is neither"),
        ("ray://head:10001", "the address 'ray://head:10001' is one of Ray Client, which carries no requests"),
    ],
)
def test_an_address_where_no_cluster_is_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        module.find(address)


def test_a_port_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^no Ray cluster answers at {address} within 0\.2 s$"):
            module.find(address)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that says this to its first client."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes.fromhex("000000 04 00 00000000 000008 07 00 00000000 0000000000000001"),
    ],
    ids=["nothing", "HTTP/1.1", "HTTP/2 without the call"],
)
def test_another_server_is_no_cluster(answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(ConfigError, match="something else listens there"):
        module.find(address)


def test_a_cluster_answers_also_if_its_token_is_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    address = cluster.address()
    assert module.find(address) == address
    for token in ("wrong", secrets.token_hex(200)):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        with pytest.raises(ConfigError, match=f"^the Ray cluster at {address} refuses our access token"):
            module.find(address)


def test_a_missing_token_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    with pytest.raises(ConfigError, match="asks for an access token: set RAY_AUTH_TOKEN"):
        module.find(cluster.address())


def test_a_cluster_whose_node_this_machine_is_not_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_nodes", lambda: iter(()))
    with pytest.raises(ConfigError, match="this machine is not a node of the Ray cluster"):
        module.find(cluster.address())
    with pytest.raises(ConfigError, match=r"^no Ray cluster runs on this machine: start one with `ray start --head`$"):
        module.find("auto")


def test_a_cluster_of_ones_own_is_preferred_and_of_those_the_last_one() -> None:
    older, newer = _Node("10.0.0.1:1", True, 1.0), _Node("10.0.0.1:2", True, 2.0)
    others = _Node("10.0.0.1:3", False, 3.0)
    assert max((older, newer, others), key=_preference) == newer
