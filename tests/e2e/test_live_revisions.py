"""Live revisions on processes: requests are divided, stay in their revision, and none fails."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest

from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.control.canary import BeginRelease
from app_toolkit.control.operations import AddCandidate
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.queries import GetStatus
from app_toolkit.control.weights import SetTraffic
from tests.cluster import Cluster, Served

PAUSE_S = 0.01
"""Seconds between two requests of a client, so that the clients do not take all processors."""


@pytest.fixture
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("versions:one")
    yield served
    served.delete()


def add(served: Served, share: float, version: str = "two", mirror: float = 0.0) -> int:
    """Start a version beside the main revision, wait until it gets requests, and return its number."""
    spec = served.spec.model_copy(update={"target": f"versions:{version}"})
    client = served.cluster.client
    number = client.execute(AddCandidate(spec, share=share, owner=client.owner, mirror=mirror))
    served.wait(lambda now: any(each["revision"] == number and each["is_ready"] for each in now["traffic"]))
    served.wait(lambda _: share == 0 or version in islice(versions(served), 50))
    return number


def versions(served: Served) -> Iterator[str]:
    """The versions that serve the next requests. Raises `AssertionError` if one fails or has two versions."""
    with served.client() as client:
        while True:
            got = client.get("/both")
            assert got.status_code == 200, got.text
            ingress, model = got.json()
            assert ingress == model, "a request stays in its revision"
            yield ingress


def test_a_promotion_starts_no_process_and_fails_no_request_or_call(processes: Cluster, served: Served) -> None:
    """Two clients send requests, and two more let another application call the class."""
    number, caller = add(served, 0.1), processes.deploy("versions:caller")
    before = pids(processes, served.spec.name, number)
    seen, called, failed, over = Counter[str](), Counter[str](), [], threading.Event()

    def ask(path: str, counts: Counter[str], at: Served) -> None:
        try:
            with at.client() as client:
                while not over.wait(PAUSE_S):
                    got = client.get(path)
                    assert got.status_code == 200, got.text
                    counts["".join(set(got.json())) if isinstance(got.json(), list) else got.json()] += 1
        except Exception as error:
            failed.append(error)

    asks = [("/both", seen, served), (f"/ask/{served.spec.name}", called, caller)] * 2
    clients = [threading.Thread(target=ask, args=each) for each in asks]
    for each in clients:
        each.start()
    try:
        served.wait(lambda _: (seen["one"] > 20 and called["one"] > 20) or bool(failed))
        assert called.keys() == {"one"}, "it is the main revision"
        assert processes.client.execute(Promote(served.spec.name)) == number
        served.wait(lambda _: called["two"] > 20 or bool(failed))
        served.wait(lambda now: not now["traffic"] or bool(failed))  # requests may wait for the other one until then
    finally:
        over.set()
        for each in clients:
            each.join()
    caller.delete()
    assert not failed, failed
    assert seen.keys() == called.keys() == {"one", "two"}
    assert set(islice(versions(served), 20)) == {"two"}
    assert pids(processes, served.spec.name, number) == before


def pids(processes: Cluster, application: str, revision: int) -> set[int]:
    """Return the process IDs of the replicas of a live revision."""
    status = processes.client.execute(GetStatus()).application(application)
    live = None if status is None else status.live(revision)
    assert live is not None
    return {processes.pid(replica.id) for deployment in live.deployments for replica in deployment.replicas}


def test_an_aborted_revision_gets_no_more_requests(processes: Cluster, served: Served) -> None:
    add(served, 0.5)
    processes.client.execute(Abort(served.spec.name))
    served.wait(lambda _: set(islice(versions(served), 20)) == {"one"})


def test_no_request_fails_or_uses_two_revisions_while_weights_change(processes: Cluster, served: Served) -> None:
    number = add(served, 0.5)
    seen, failed, over = Counter[str](), [], threading.Event()

    def ask() -> None:
        try:
            for version in versions(served):
                seen[version] += 1
                if over.wait(PAUSE_S):
                    return
        except Exception as error:
            failed.append(error)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for each in clients:
        each.start()
    for step in range(20):
        processes.client.execute(SetTraffic(served.spec.name, {1: 1 + step % 3, number: 1 + step % 2}))
        before = seen.total()
        served.wait(lambda _, before=before: seen.total() > before + 5 or bool(failed))
    over.set()
    for each in clients:
        each.join()
    assert not failed, failed
    assert min(seen["one"], seen["two"]) > 20, seen


@pytest.mark.slow
def test_a_mirror_gets_copies_and_no_client_notices_its_death(processes: Cluster, served: Served) -> None:
    number = add(served, 0.0, mirror=1.0)
    ingress = f"{served.spec.name}@{number}/app"
    served.wait(lambda _: set(islice(versions(served), 10)) == {"one"} and mirrored(processes, ingress).compared > 20)
    assert mirrored(processes, ingress).different_body == mirrored(processes, ingress).compared
    for pid in pids(processes, served.spec.name, number):
        os.kill(pid, signal.SIGKILL)
    before = mirrored(processes, ingress)
    assert set(islice(versions(served), 50)) == {"one"}
    served.wait(lambda _: set(islice(versions(served), 10)) == {"one"} and mirrored(processes, ingress) != before)


def mirrored(processes: Cluster, ingress: str) -> MirrorCounts:
    return processes.client.load()[ingress].mirrored


@pytest.mark.slow  # three revisions start
def test_a_canary_release_returns_or_is_promoted(processes: Cluster, served: Served) -> None:
    statuses, over = Counter[int](), threading.Event()

    def ask() -> None:
        with served.client() as client:
            while not over.wait(PAUSE_S):
                statuses[client.get("/both").status_code] += 1

    def release(version: str, *steps: float) -> Mapping[str, Any]:
        number = add(served, 0.0, version)
        begin = BeginRelease(served.spec.name, number, steps, "1s", ["error_rate<1%", "p95<30s"], min_requests=50)
        processes.client.execute(begin)
        found: Mapping[str, Any] = served.wait(lambda now: now["canary"]["outcome"] is not None)["canary"]
        assert found["revision"] == number
        return found

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for each in clients:
        each.start()
    try:
        flaky = release("flaky", 50, 100)
        assert (flaky["outcome"], flaky["step"]) == ("returned", 1)
        assert flaky["why"].startswith("the guard error_rate<1% does not hold: ")
        served.wait(lambda _: set(islice(versions(served), 20)) == {"one"})
        assert statuses[500] < 50, "it returned soon"
        failed = statuses[500]
        good = release("two", 10, 50, 100)
        assert (good["outcome"], good["step"]) == ("promoted", 3)
        served.wait(lambda now: all(each["is_removed"] for each in now["traffic"][1:]) and now["status"] == "healthy")
        assert set(islice(versions(served), 20)) == {"two"}
    finally:
        over.set()
        for each in clients:
            each.join()
    assert set(statuses) == {200, 500}
    assert statuses[500] == failed, "a good revision fails no request"
