"""`@multiplexed` on processes: requests go to the replica that has loaded their model."""

from collections.abc import Iterator

import httpx
import pytest

from tests.cluster import Cluster, Served
from tests.patience import wait_until

from .translators import NAMES


@pytest.fixture(scope="module")
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("translators:app")
    yield served
    served.delete()


def test_all_requests_of_a_model_go_to_one_replica_and_the_models_are_spread(served: Served) -> None:
    with served.client() as client:
        rounds = [answers(client)]
        # A caller may know of the second replica a moment later than of the first.
        wait_until(lambda: rounds.append(answers(client)) or rounds[-1] == rounds[-2])
        for _ in range(4):
            assert answers(client) == rounds[-1]
    assert all(text.startswith(f"{name.upper()} of ") for name, text in rounds[-1].items())


def answers(client: httpx.Client) -> dict[str, str]:
    """What each model says, and which replica it is in."""

    def ask(name: str) -> str:
        body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
        document = client.post("/v1/chat/completions", json=body).json()
        return str(document["choices"][0]["message"]["content"])

    return {name: ask(name) for name in NAMES}
