"""`run --address`: a guest on a cluster that serves others, too."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from app_toolkit.engines.ray.cluster import ANSWER_S
from tests.cluster import Served
from tests.patience import PATIENCE_S
from tests.running import Start


@pytest.mark.slow
def test_joined_client_removes_only_its_own_applications(victim: Served, run: Start) -> None:
    address = victim.cluster.address()
    options = ("--address", address, "--route-prefix", "/guest", "--port", "0")
    guest = run("examples/hello/app.py", "--name", "guest", *options)
    url = guest.url()
    assert url == victim.cluster.proxy_url() + "/guest"
    assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).json()["text"] == "Hello, Ada!"

    second = run("examples/hello/app.py", "--name", "guest", *options)
    assert second.wait() == 2
    assert "the application 'guest' is held by another run of this instance: choose another name" in second.said
    assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).status_code == 200

    assert guest.end(signal.SIGTERM) == 0, guest.said
    assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).status_code == 404

    with victim.client() as client:
        assert client.get("/pid").status_code == 200
    assert victim.status()["status"] == "healthy"


def test_command_ends_on_ctrl_c_if_the_controller_does_not_respond() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        environment = {"RAY_ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "app_toolkit.cli", "status"],
            env={**os.environ, **environment},
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            process.communicate(timeout=PATIENCE_S)
            assert time.monotonic() - began < ANSWER_S - 1, "it did not wait until it would have given up"
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
