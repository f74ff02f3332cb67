"""The API of OpenAI on Ray: the router in two replicas, the model in another, and the stream log in a fourth."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chat.served import chunks
from tests.cluster import Cluster
from tests.patience import PATIENCE_S, wait_until

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


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_model_keeps_its_status(http: httpx.Client, stream: bool) -> None:
    response = http.post(COMPLETIONS, json=ask("fail", stream=stream))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_client_that_stops_reading_stops_the_generators_in_the_other_replica(http: httpx.Client) -> None:
    with http.stream("POST", COMPLETIONS, json=ask("wait", stream=True, n=2)) as response:
        assert next(response.iter_lines()).startswith("data: ")
        wait_until(lambda: running(http) == 2)
    wait_until(lambda: not running(http))


def test_a_client_that_does_not_wait_stops_the_generator_in_the_other_replica(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post(COMPLETIONS, json=ask("wait"), timeout=httpx.Timeout(PATIENCE_S, read=1))
    wait_until(lambda: not running(http))


def test_the_texts_of_a_request_are_computed_in_batches(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json={"model": "assistant", "input": ["a", "abc"] * 100})
    assert [each["embedding"] for each in response.json()["data"]] == [[1.0], [3.0]] * 100


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


def test_a_stored_response_outlives_its_client_and_one_that_is_not_stored_does_not(http: httpx.Client) -> None:
    ids = []
    for store in (True, False):
        asked = {"model": "assistant", "input": "wait", "stream": True, "store": store}
        with http.stream("POST", RESPONSES, json=asked) as response:
            first = next(line for line in response.iter_lines() if line.startswith("data: "))
            ids.append(json.loads(first.removeprefix("data: "))["response"]["id"])
    wait_until(lambda: running(http) == 1)
    stored, other = ids
    assert http.get(f"{RESPONSES}/{other}").status_code == 404
    assert http.get(f"{RESPONSES}/{stored}").json()["status"] == "in_progress"
    assert http.delete(f"{RESPONSES}/{stored}").json()["deleted"] is True
    wait_until(lambda: not running(http))
    assert http.get(f"{RESPONSES}/{stored}").status_code == 404


def test_a_conversation_continues_in_any_replica(http: httpx.Client) -> None:
    before = None
    for word in ("a", "b", "c", "d"):
        asked = {"model": "assistant", "input": word, "previous_response_id": before}
        document = http.post(RESPONSES, json=asked).json()
        assert document["output"][0]["content"][0]["text"] == word
        before = document["id"]
