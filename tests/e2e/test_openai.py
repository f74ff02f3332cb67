"""The API of OpenAI on Ray: the router in two replicas, the model in another, and the stream log in a fourth."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chat.served import chunks
from tests.cluster import Cluster
from tests.patience import wait_until

COMPLETIONS = "/v1/chat/completions"
RESPONSES = "/v1/responses"


@pytest.fixture(scope="module")
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    served = cluster.deploy("assistants:app")
    assert served.status()["status"] == "healthy", served.status()
    with served.client() as client:
        yield client
    served.delete()


def ask(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [{"role": "user", "content": prompt}], **fields}


def running(http: httpx.Client) -> int:
    return int(http.get("/running").json())


def test_choices_stream_through_the_proxy(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=ask("a b c", stream=True, n=2))
    assert response.headers["x-accel-buffering"] == "no"
    choices = [each for chunk in chunks(response.text) for each in chunk["choices"]]
    for index in range(2):
        texts = [each["delta"].get("content", "") for each in choices if each["index"] == index]
        assert "".join(texts) == "abc"
    assert not running(http)


def test_a_client_that_stops_reading_stops_the_generators_in_the_other_replica(http: httpx.Client) -> None:
    with http.stream("POST", COMPLETIONS, json=ask("wait", stream=True, n=2)) as response:
        assert next(response.iter_lines()).startswith("data: ")
        wait_until(lambda: running(http) == 2)
    wait_until(lambda: not running(http))


def test_a_response_in_the_background_is_followed_and_cancelled_through_any_replica(http: httpx.Client) -> None:
    asked = {"model": "assistant", "input": "wait", "background": True}
    ids = [http.post(RESPONSES, json=asked).json()["id"] for _ in range(4)]
    wait_until(lambda: running(http) == 4)
    for id in ids:
        assert http.get(f"{RESPONSES}/{id}").json()["status"] in ("queued", "in_progress")
        with http.stream("GET", f"{RESPONSES}/{id}?stream=true") as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            events = (json.loads(line.removeprefix("data: ")) for line in lines)
            assert "wait" in (event.get("delta") for event in events)
            assert http.post(f"{RESPONSES}/{id}/cancel").json()["status"] == "cancelled"
            assert [event["response"]["status"] for event in events] == ["cancelled"]
    wait_until(lambda: not running(http))


def test_a_conversation_continues_in_any_replica(http: httpx.Client) -> None:
    before = None
    for word in ("a", "b", "c", "d"):
        asked = {"model": "assistant", "input": word, "previous_response_id": before}
        document = http.post(RESPONSES, json=asked).json()
        assert document["output"][0]["content"][0]["text"] == word
        before = document["id"]
