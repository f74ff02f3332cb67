"""No request fails in updates under load, and a bad revision is rolled back."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app_toolkit.operate.instance import Instance
from tests.cluster import Cluster, Served
from tests.e2e.test_deploy import here


@pytest.fixture
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("versions:one")
    yield served
    served.delete()


@contextmanager
def asked_all_the_time(served: Served) -> Iterator[list[tuple[int, str]]]:
    """What two clients were answered, one GET after the other."""
    answers: list[tuple[int, str]] = []
    over = threading.Event()

    def ask() -> None:
        with served.client() as client:
            while not over.wait(0.01):
                answer = client.get("/")
                answers.append((answer.status_code, answer.text))

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        over.set()
        for client in clients:
            client.join()


def next_texts(served: Served, answers: list[tuple[int, str]]) -> set[str]:
    """What the next requests are answered; of those that were under way there are two at most."""
    before = len(answers)
    served.wait(lambda _: len(answers) > before + 20)
    return {text for _, text in answers[before + 2 :]}


def update(served: Served, version: str) -> int:
    """Deploy this version; gives the application's revision."""
    return served.cluster.update(served.spec.model_copy(update={"target": f"versions:{version}"}))


def test_no_request_fails_in_an_update_or_in_one_that_is_rolled_back(processes: Cluster, served: Served) -> None:
    with asked_all_the_time(served) as answers:
        assert update(served, "two") == 2
        served.wait(lambda now: now["status"] == "healthy")
        assert next_texts(served, answers) == {'"two"'}, "nothing old answers"

        update(served, "raises")
        raised = served.wait(lambda now: now["status"] == "rolled_back")
        assert "FileNotFoundError: there are no weights of this version" in raised["last_error"]
        served.wait(lambda now: all(each["status"] == "healthy" for each in now["deployments"]))
        assert next_texts(served, answers) == {'"two"'}

    assert {status for status, _ in answers} == {200}
    assert {text for _, text in answers} <= {'"one"', '"two"'}


def pids(served: Served) -> set[int]:
    """The processes of all replicas of an application."""
    return {
        served.cluster.pid(replica["id"]) for each in served.status()["deployments"] for replica in each["replicas"]
    }


def test_a_restart_replaces_every_process_and_no_request_fails(processes: Cluster, served: Served) -> None:
    before = pids(served)
    with served.client() as client, asked_all_the_time(served) as answers:
        imported = client.get("/imported").json()
        assert Instance(processes.client).restart(served.spec.name) == 2
        served.wait(lambda now: all(len(each["replicas"]) == each["target"] for each in now["deployments"]))
        assert not before & pids(served)
        assert client.get("/imported").json() != imported, "the new replicas read at import what has changed since"
        assert next_texts(served, answers) == {'"one"'}


def test_no_request_fails_in_a_rollback_to_an_earlier_revision(
    processes_found: Cluster, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    name = served.spec.name
    with asked_all_the_time(served) as answers:
        for version in ("two", "three"):
            update(served, version)
            served.wait(lambda now: now["status"] == "healthy")
        assert here("rollback", name, "--to", "7") == 2
        expected = f"revision 7 of application {name!r} is not kept; a rollback can return to 1, 2"
        assert expected in capfd.readouterr().err
        assert here("rollback", name, "--to", "1", "--wait") == 0
        assert next_texts(served, answers) == {'"one"'}
        os.kill(processes_found.controller_pid(), signal.SIGKILL)
        capfd.readouterr()
        assert here("history", name, "--json") == 0
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["number"], row["state"]) for row in shown] == [(2, "earlier"), (3, "earlier"), (4, "runs")]
    since = [row["since"] for row in shown]
    assert since == sorted(since)
    assert shown[-1]["changes"].startswith("target versions:three -> versions:one; ")
    assert {status for status, _ in answers} == {200}
