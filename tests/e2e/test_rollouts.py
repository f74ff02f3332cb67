"""No request fails in updates under load, and a bad revision is rolled back."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import Cluster, Served


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
        os.kill(processes.controller_pid(), signal.SIGKILL)
        assert served.wait(lambda now: now["status"] == "rolled_back")["last_error"] == raised["last_error"]

        served.wait(lambda now: all(each["status"] == "healthy" for each in now["deployments"]))
        assert next_texts(served, answers) == {'"two"'}

    assert {status for status, _ in answers} == {200}
    assert {text for _, text in answers} <= {'"one"', '"two"'}
