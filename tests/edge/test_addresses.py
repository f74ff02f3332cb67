"""Addresses that would not work are told in a sentence, before anything starts."""

import socket

import pytest

from app_toolkit.edge.addresses import check_port_is_free
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
