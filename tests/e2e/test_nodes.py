"""Two nodes on one machine, two proxies on each; all four listen on one port, because the machine has one address."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app_toolkit.wire import hop
from tests.groups import ROOT
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Nodes:
    """The process of `nodes.py`, and what clients do."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, *what: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def wait(self, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(now := self.ask("status")):
            assert time.monotonic() < deadline, f"it never came about: {now}"
            time.sleep(0.1)
        return now

    def get(self, path: str) -> httpx.Response:
        """On a connection of its own: the kernel chooses a proxy."""
        return httpx.get(self.url + path, trust_env=False, verify=False, timeout=PATIENCE_S)

    def pairs(self, enough: int) -> set[tuple[str, int]]:
        """(proxy, pid of a replica) as they come, until there are enough of them."""
        found: set[tuple[str, int]] = set()
        deadline = time.monotonic() + PATIENCE_S / 2
        while len(found) < enough and time.monotonic() < deadline:
            answer = self.get("/pid")
            found.add((answer.headers["x-request-id"].partition("-")[0], answer.json()))
        return found

    @property
    def url(self) -> str:
        return str(self.ask("url"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # The first node has no access token. One that is found later must not make the second node ask for it.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, str(Path(__file__).with_name("nodes.py")), "2"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            nodes = Nodes(process)
            assert nodes.answer() == "ready"
            nodes.ask("deploy", 3, 0.8, 2)
            nodes.wait(lambda now: now["status"] == "healthy")
            yield nodes
        finally:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0


@contextmanager
def load(url: str, clients: int = 3) -> Iterator[list[tuple[float, object]]]:
    """GETs, each on a connection of its own; gives when each ended, and how."""
    outcomes: list[tuple[float, object]] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                how: object = httpx.get(f"{url}/sleep/0.01", trust_env=False, verify=False, timeout=10).status_code
            except httpx.HTTPError as error:
                how = repr(error)
            outcomes.append((time.monotonic(), how))

    threads = [threading.Thread(target=run, name=f"app-toolkit client {n}") for n in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def replicas(status: Mapping[str, Any], beginning: str = "spread/") -> list[Mapping[str, Any]]:
    """Those of the groups whose names begin so."""
    groups = [group for each in status["applications"] for group in each["deployments"]]
    return [replica for group in groups if group["name"].startswith(beginning) for replica in group["replicas"]]


def proxies(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [proxy for group in status["proxies"] for proxy in group["replicas"]]


def test_every_proxy_of_every_node_reaches_every_replica(nodes: Nodes) -> None:
    status = nodes.ask("status")
    assert len({replica["node"] for replica in replicas(status)}) == 2
    assert Counter(proxy["node"] for proxy in proxies(status)) == dict.fromkeys(
        {r["node"] for r in replicas(status)}, 2
    )
    assert {proxy["address"] for proxy in proxies(status)} == {"tcp:" + nodes.url.removeprefix("http://")}
    pairs = nodes.pairs(4 * 3)
    assert (len({proxy for proxy, _ in pairs}), len({pid for _, pid in pairs}), len(pairs)) == (4, 3, 12)


def test_replica_refuses_another_node_without_the_secret(nodes: Nodes) -> None:
    for replica in replicas(nodes.ask("status")):
        where = replica["remote_address"].removeprefix("tcp:")
        for fields in ({}, {hop.HOP.decode(): "1 guessed id 1.1 127.0.0.1 1 127.0.0.1 2 http"}):
            answer = httpx.get(f"http://{where}/pid", headers=fields, trust_env=False, timeout=PATIENCE_S)
            assert (answer.status_code, answer.headers[hop.REFUSED.decode()]) == (503, "secret")


def test_node_runs_at_most_max_replicas_per_node_and_the_others_wait(nodes: Nodes) -> None:
    def reasons(status: Mapping[str, Any]) -> list[str]:
        return [replica["asks"] for replica in replicas(status, "apart/app") if replica["asks"]]

    nodes.ask("deploy", 3, 0.05, 2, "apart", 1)
    status = nodes.wait(
        lambda now: reasons(now) == ["0.05 CPU on a node with fewer than 1 of its replicas (0 of 2 are such)"]
    )
    assert status["status"] == "waiting_for_resources"
    there = [replica["node"] for replica in replicas(status, "apart/app") if replica["phase"] == "running"]
    assert len(there) == len(set(there)) == 2
    nodes.ask("deploy", 2, 0.05, 2, "apart", 1)
    nodes.wait(lambda now: now["status"] == "healthy")
    nodes.ask("delete", "apart")
    nodes.wait(lambda now: not replicas(now, "apart/") and now["status"] == "healthy")


def test_a_proxy_that_is_killed_under_load_is_missed_for_less_than_a_second(nodes: Nodes) -> None:
    victim = proxies(nodes.ask("status"))[0]["id"]
    pid = nodes.ask("pid", victim)
    with load(nodes.url) as outcomes:
        wait_until(lambda: len(outcomes) > 100)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        nodes.wait(lambda now: victim not in {p["id"] for p in proxies(now)} and now["status"] == "healthy")
        back = len(outcomes)
        wait_until(lambda: len(outcomes) > back + 100)
    assert {how for at, how in outcomes if at < killed or at > killed + 1.0} == {200}
    assert len({proxy for proxy, _ in nodes.pairs(12)}) == 4


def test_once_a_node_is_known_to_be_dead_nothing_is_lost_and_nothing_started_there(nodes: Nodes) -> None:
    pids = {nodes.ask("pid", proxy["id"]): proxy["node"] for proxy in proxies(nodes.ask("status"))}
    node = nodes.ask("kill_node", 0)
    # On one machine the processes of a dead node outlive it for a moment, with the shared port open.
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid, at in pids.items() if at == node))

    def known(status: Mapping[str, Any]) -> bool:
        return node not in {p["node"] for p in (*proxies(status), *replicas(status))}

    nodes.wait(known)
    with load(nodes.url) as outcomes:
        wait_until(lambda: len(outcomes) > 300)
    assert {how for _, how in outcomes} == {200}
    [group] = nodes.ask("status")["proxies"]
    assert node not in group["name"]
    assert group["counts"] == {"running": 2}
