"""A chat over WebSockets on Ray, through the proxy."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.cluster import Cluster
from tests.patience import PATIENCE_S

KEY = "ada-0123456789abcdef"


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    served = cluster.deploy("sockets:app")
    assert served.status()["status"] == "healthy", served.status()
    with served.client() as client:
        yield str(client.base_url)
    served.delete()


def opened(url: str, key: str = KEY, **options: Any) -> AbstractContextManager[ClientConnection]:
    address = f"{url.rstrip('/').replace('http', 'ws', 1)}/ws"
    headers = {"authorization": f"Bearer {key}"}
    return connect(
        address, proxy=None, additional_headers=headers, open_timeout=PATIENCE_S, close_timeout=0.1, **options
    )


def read(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(PATIENCE_S))


@pytest.mark.slow
def test_a_client_that_loses_its_connection_often_gets_each_event_once(url: str) -> None:
    events: list[Any] = []
    with opened(url) as socket:
        body = {"id": "r", "messages": [{"role": "user", "content": "40"}]}
        socket.send(json.dumps({"type": "chat", **body}))
        events.append(read(socket))
    while events[-1]["type"] != "finish":
        with opened(url) as socket:
            socket.send(json.dumps({"type": "resume", "id": "r", "after": events[-1]["number"]}))
            for _ in range(5):
                events.append(read(socket))
                if events[-1]["type"] == "finish":
                    break
    assert [each["number"] for each in events] == list(range(1, 42))
    assert "".join(each["text"] for each in events[:-1]) == "".join(f"{number} " for number in range(40))


def test_any_connection_stops_a_response(url: str) -> None:
    with opened(url) as socket, opened(url) as other, opened(url, "bob-0123456789abcdef") as bob:
        body = {"id": "s", "messages": [{"role": "user", "content": "1000000"}]}
        socket.send(json.dumps({"type": "chat", **body}))
        read(socket)
        for each in (bob, other):
            each.send(json.dumps({"type": "stop", "id": "s"}))
        assert read(bob)["code"] == "response_unknown"
        while (event := read(socket))["type"] == "text":
            pass
        assert (event["type"], event["reason"]) == ("finish", "stopped")


def test_the_handshake_is_refused_through_the_proxy(url: str) -> None:
    for key, origin, status in (("wrong", None, 401), (KEY, "https://evil.example", 403)):
        with pytest.raises(InvalidStatus) as refused, opened(url, key, origin=origin):
            pass
        assert refused.value.response.status_code == status
    with opened(url, origin=url.rstrip("/")) as socket:
        socket.send('{"type": "ping"}')
        assert read(socket) == {"type": "pong"}
