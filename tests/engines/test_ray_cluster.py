"""A cluster is looked for, and asked whether it answers, before Ray tries to connect to it."""

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from app_toolkit.engines.ray import cluster as module
from app_toolkit.engines.ray.cluster import ADVICE, Raylet, only_cluster
from app_toolkit.errors import ConfigError
from tests.cluster import Cluster
from tests.security.other_user import NOBODY, needs_root, shared_folder


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", f"no Ray cluster answers at 127.0.0.1:1: Connection refused; {ADVICE}"),
        ("no such host:6379", "no Ray cluster answers at no such host:6379: "),
        ("head", "the address 'head' is neither 'auto' nor of the form HOST:PORT"),
        ("head:port", "the address 'head:port' is neither"),
        ("head:70000", "the address 'head:70000' is neither"),
        ("http://127.0.0.1:8265", "the address 'http://127.0.0.1:8265' is a URL: use HOST:6379 of the cluster's head"),
        ("ray://head:10001", "the address 'ray://head:10001' is for Ray Client, which app_toolkit does not support"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        module.find(address)


def test_a_silent_port_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^no Ray cluster answers at {address} within 0\.2 s; {ADVICE}$"):
            module.find(address)


def test_a_slow_response_of_a_cluster_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.4)
    given_up = threading.Event()
    settings_frame = bytes.fromhex("000000 04 00 00000000")

    def drip() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            for byte in settings_frame * 20:
                connection.send(bytes((byte,)))
                if given_up.wait(0.1):
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        before = time.monotonic()
        try:
            with pytest.raises(ConfigError, match=rf"within 0\.4 s; {ADVICE}$"):
                module.find(f"127.0.0.1:{server.getsockname()[1]}")
            assert time.monotonic() - before < 15, "all bytes take 18 s"
        finally:
            given_up.set()
            thread.join()


def test_a_slow_name_resolution_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    given_up = threading.Event()
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: given_up.wait(60))
    try:
        with pytest.raises(ConfigError, match=rf"^no Ray cluster answers at head:6379 within 0\.2 s; {ADVICE}$"):
            module.find("head:6379")
    finally:
        given_up.set()


@contextmanager
def raylet_of(real: int, effective: int, cluster: str) -> Iterator[int]:
    """A process of other users that says that it is a raylet of this cluster; gives its pid."""
    with shared_folder() as folder:
        (folder / "raylet").symlink_to("/bin/sh")
        become = "import os, sys; os.setgroups([]); os.setresgid(*[int(sys.argv[1])] * 3);"
        become += "os.setresuid(int(sys.argv[1]), *[int(sys.argv[2])] * 2); os.execv(sys.argv[3], sys.argv[3:])"
        arguments = [str(real), str(effective), str(folder / "raylet"), "-p", "-c", "echo runs; read end"]
        with subprocess.Popen(
            [sys.executable, "-c", become, *arguments, "raylet", f"--gcs-address={cluster}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"runs\n"
                yield process.pid
            finally:
                process.kill()


@needs_root
@pytest.mark.parametrize("effective", [NOBODY, 0], ids=["of another user", "started by another user as root"])
def test_the_token_is_not_sent_to_a_cluster_of_another_user(monkeypatch: pytest.MonkeyPatch, effective: int) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret" * 10)
    heard: list[bytes] = []

    def listen() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(1_000))
                if not heard[-1]:
                    return
                connection.sendall(bytes.fromhex("000000 01 05 00000001"))  # HEADERS: refused

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            with raylet_of(NOBODY, effective, address) as pid:
                processes = psutil.process_iter

                def only_this(attributes: list[str]) -> Iterator[Any]:
                    return (process for process in processes(attributes) if process.pid == pid)

                monkeypatch.setattr(module.psutil, "process_iter", only_this)
                said = f"^the Ray cluster on this machine belongs to user {NOBODY}: run the command as this user"
                with pytest.raises(ConfigError, match=said):
                    module.find("auto")
                assert not heard
                said = f"^the node of the Ray cluster at {address} on this machine belongs to user {NOBODY}: "
                with pytest.raises(ConfigError, match=said):
                    module.find(address)
                assert len(heard) == 1
                assert b"s3cret" not in heard[0]
        finally:
            with socket.create_connection(server.getsockname()):
                pass
            thread.join()


@contextmanager
def responding(response: bytes) -> Iterator[str]:
    """A server that says this to its first client."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(response)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes.fromhex("000000 04 00 00000000 000008 07 00 00000000 0000000000000001"),
    ],
    ids=["nothing", "HTTP/1.1", "HTTP/2 without the call"],
)
def test_another_server_is_no_cluster(response: bytes) -> None:
    with responding(response) as address, pytest.raises(ConfigError, match="something else listens there"):
        module.find(address)


def test_a_cluster_answers_also_if_its_token_is_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    address = cluster.address()
    assert module.find(address) == address
    for token in ("wrong", secrets.token_hex(200)):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        with pytest.raises(ConfigError, match=f"^the Ray cluster at {address} refuses the access token of this"):
            module.find(address)


def test_a_missing_token_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    with pytest.raises(ConfigError, match="asks for an access token: set RAY_AUTH_TOKEN"):
        module.find(cluster.address())


def test_a_machine_that_is_no_node_of_the_cluster_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "live_raylets", lambda: iter(()))
    with pytest.raises(ConfigError, match="this machine is not a node of the Ray cluster"):
        module.find(cluster.address())
    with pytest.raises(ConfigError, match=r"^neither an instance nor a Ray cluster runs on this machine: start one"):
        module.find("auto")


def test_one_of_several_clusters_must_be_named() -> None:
    nodes = [Raylet("10.0.0.1:6380", 0), Raylet("10.0.0.1:6379", 0), Raylet("10.0.0.1:6379", 0)]
    assert only_cluster(nodes[1:]) == "10.0.0.1:6379", "two nodes of one cluster"
    said = "several Ray clusters, at 10.0.0.1:6379, 10.0.0.1:6380: name one of them with --address or RAY_ADDRESS"
    with pytest.raises(ConfigError, match=said):
        only_cluster(nodes)


def test_a_cluster_that_is_named_is_found_beside_others(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [*module.live_raylets(), Raylet("10.0.0.1:1", os.geteuid())]
    monkeypatch.setattr(module, "live_raylets", lambda: iter(nodes))
    assert module.find(cluster.address()) == cluster.address()
    with pytest.raises(ConfigError, match="several Ray clusters"):
        module.find("auto")
