"""Routing policies on processes: turns of a conversation return to their replica, and a function is obeyed."""

from collections.abc import Iterator

import httpx
import pytest

from tests.cluster import Cluster, Served
from tests.patience import wait_until


@pytest.fixture(scope="module")
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("talkers:app")
    yield served
    served.delete()


def replica_of(client: httpx.Client, model: str, *texts: str) -> str:
    """Return the replica that says the next message of a conversation."""
    body = {"model": model, "messages": [{"role": "user", "content": text} for text in texts]}
    return str(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


def test_turns_of_a_conversation_return_to_their_replica_and_a_function_is_obeyed(served: Served) -> None:
    with served.client() as client:
        # A caller may know of the second replica a moment later than of the first.
        wait_until(lambda: len({replica_of(client, "prefix", f"new {number}") for number in range(20)}) == 2)
        wait_until(lambda: replica_of(client, "function", "first") != replica_of(client, "function", "last"))
        homes = {name: replica_of(client, "prefix", name) for name in map(str, range(20))}
        assert len(set(homes.values())) == 2
        turns = [(home, replica_of(client, "prefix", name, said)) for name, home in homes.items() for said in "abc"]
        assert all(home == replica for home, replica in turns)
        asked = [(said, replica_of(client, "function", said)) for said in ("first", "last") * 5]
        assert len(set(asked)) == 2
