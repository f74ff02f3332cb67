"""Addresses that would not work are told in a sentence, before anything starts."""

import socket

import pytest

from app_toolkit.cli.addresses import check_cluster_answers, check_port_is_free
from app_toolkit.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_that_is_taken_is_not_free_until_it_is_given_back(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^port {port} on {host} is in use$"):
            check_port_is_free(host, port)
    check_port_is_free(host, port)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("no such host", "the host 'no such host' has no address"),
        ("192.0.2.1", r"port 8000 on 192\.0\.2\.1 cannot be bound: "),
    ],
)
def test_a_host_that_is_not_ours_is_refused(host: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_port_is_free(host, 8000)


def test_a_cluster_that_listens_is_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_cluster_answers(f"127.0.0.1:{server.getsockname()[1]}")
    check_cluster_answers("auto")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        ("no such host:6379", "no Ray cluster answers at no such host:6379: "),
        ("head", "the address 'head' is neither 'auto' nor of the form HOST:PORT"),
        ("head:port", "the address 'head:port' is neither"),
        ("head:70000", "the address 'head:70000' is neither"),
        (
            "ray://head:10001",
            "the address 'ray://head:10001' is one of Ray Client, which carries no requests",
        ),
    ],
)
def test_a_cluster_that_is_none_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_cluster_answers(address)
