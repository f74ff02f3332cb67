"""`run --address`: a guest on a cluster that serves others, too."""

import signal

import httpx

from tests.cluster import Served
from tests.e2e.test_run import Run
from tests.patience import PATIENCE_S


def test_a_guest_takes_along_what_is_its_own_and_nothing_else(victim: Served) -> None:
    address = victim.cluster.address()
    options = ("--address", address, "--route-prefix", "/guest", "--port", "0")
    guest = Run("examples/hello/app.py", "--name", "guest", *options)
    try:
        url = guest.url()
        assert url == victim.cluster.proxy_url() + "/guest"
        assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).json()["text"] == "Hello, Ada!"

        second = Run("examples/hello/app.py", "--name", "guest", *options)
        output, _ = second.process.communicate(timeout=60)
        assert second.process.returncode == 2
        assert "the application 'guest' is held by another run on this cluster: choose another name" in output
        assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).status_code == 200

        assert guest.end(signal.SIGTERM) == 0, guest.said
    finally:
        if guest.process.poll() is None:
            guest.process.kill()
            guest.process.communicate()
    assert httpx.get(f"{url}/hello/Ada", trust_env=False, timeout=PATIENCE_S).status_code == 404
    with victim.client() as client:
        assert client.get("/pid").status_code == 200
    assert victim.status()["status"] == "healthy"
