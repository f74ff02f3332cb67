"""The polling sessions of Socket.IO behind two proxies, of which one is killed."""

import json
import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from app_toolkit.config.models import HTTPOptions
from benchmarks.conformance.ecosystem import APPS
from tests.cluster import Cluster, Served
from tests.patience import PATIENCE_S, wait_until

BETWEEN = "\x1e"
"""Between the packets of one body."""


class Session:
    """A session of a client that polls. Each request has its own connection, for which the kernel selects a proxy."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/socket.io/?EIO=4&transport=polling"
        self.proxies: set[str] = set()
        """The proxies that its requests met."""
        id = json.loads(self._ask("GET")[1:])["sid"]
        (self.begun_at,) = self.proxies
        self.replica = id.rpartition("~")[2]
        self._url += f"&sid={id}"
        self._send("40")
        self._receive("40")

    def talk(self) -> None:
        """Call the app, and receive its message and its answer. A replica without this session refuses all of it."""
        self._send('421["echo","word"]')
        self._receive('42["said","word"]', '431["word"]')

    def _receive(self, *beginnings: str) -> None:
        """Poll until packets with all of these beginnings have come."""
        missing = set(beginnings)
        while missing:
            for packet in self._ask("GET").split(BETWEEN):
                if packet == "2":  # a ping
                    self._send("3")
                missing -= {each for each in missing if packet.startswith(each)}

    def _send(self, packet: str) -> None:
        assert self._ask("POST", packet) == "OK"

    def _ask(self, method: str, body: str | None = None) -> str:
        response = httpx.request(method, self._url, content=body, trust_env=False, verify=False, timeout=PATIENCE_S)
        assert response.status_code == 200, response.text
        self.proxies.add(response.headers["x-request-id"].partition("-")[0])
        return response.text


@pytest.fixture
def served(cluster: Cluster) -> Iterator[Served]:
    """Two replicas behind two proxies."""
    served = cluster.deploy("socketio_app:sticky", APPS, num_replicas=2)
    try:
        share_the_port(served, 2)
        yield served
    finally:
        share_the_port(served, 1)
        served.delete()


def share_the_port(served: Served, number: int) -> None:
    """Change the number of proxies, and wait for them."""
    served.cluster.update(served.spec, HTTPOptions(port=0, proxies_per_node=number))
    wait_until(lambda: len(proxies(served.cluster)) == number)


def proxies(cluster: Cluster) -> list[str]:
    """The proxies, once they are those that there should be; before that, none."""
    (group,) = cluster.status()["proxies"]
    return [each["id"] for each in group["replicas"]] if group["status"] == "healthy" else []


def test_sessions_of_a_killed_proxy_go_on_with_their_replicas(served: Served) -> None:
    sessions: list[Session] = []

    def begun_everywhere() -> bool:
        sessions.append(Session(served.url))
        return len({(each.begun_at, each.replica) for each in sessions}) == 2 * 2

    wait_until(begun_everywhere)
    before = {each.begun_at for each in sessions}

    victim = proxies(served.cluster)[0]
    pid = served.cluster.pid(victim)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid))  # until then, its socket may still get connections
    for each in sessions:
        each.proxies.clear()
        each.talk()

    wait_until(lambda: len(now := proxies(served.cluster)) == 2 and victim not in now)

    def talked_through_both() -> bool:
        for each in sessions:
            each.talk()
        return all(len(each.proxies) == 2 for each in sessions)

    wait_until(talked_through_both)
    after = set().union(*(each.proxies for each in sessions))
    assert len(before & after) == len(after - before) == 1
