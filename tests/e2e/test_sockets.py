"""A chat over WebSockets on processes, through the proxy."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec
from tests.cluster import Cluster, Served
from tests.patience import PATIENCE_S

KEY = "ada-0123456789abcdef"

MORE = 250
"""Events that a model takes 2.5 seconds to generate."""


@pytest.fixture(scope="module")
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("sockets:app")
    assert served.status()["status"] == "healthy", served.status()
    yield served
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
def test_a_response_goes_on_while_the_replica_of_its_websocket_is_replaced(served: Served) -> None:
    events: list[Any] = []
    codes: list[int | None] = []
    seen = 0
    ids = {each["id"] for each in served.ingress("front")["replicas"]}
    command = {"type": "chat", "id": "update", "messages": [{"role": "user", "content": "1000000"}]}
    while not codes or len(events) < seen + MORE:
        with opened(served.url) as socket, suppress(ConnectionClosed):
            socket.send(json.dumps(command))
            events.append(read(socket))
            if not codes:
                served.cluster.update(with_other_front(served.spec))
            while not codes or len(events) < seen + MORE:
                events.append(read(socket))
                assert events[-1]["type"] == "text", events[-1]
        if socket.close_code != 1000:  # not closed by this client
            seen = seen or len(events)
            codes.append(socket.close_code)
        command = {"type": "resume", "id": "update", "after": events[-1]["number"]}
    with opened(served.url) as socket:
        socket.send('{"type": "stop", "id": "update"}')
        socket.send(json.dumps(command))
        while (event := read(socket))["type"] == "text":
            events.append(event)
    assert (event["type"], event.get("reason")) == ("finish", "stopped")
    assert set(codes) == {1012}
    assert [each["number"] for each in events] == list(range(1, len(events) + 1))
    served.wait(lambda _: ids.isdisjoint(each["id"] for each in served.ingress("front")["replicas"]))


def with_other_front(spec: ApplicationSpec) -> ApplicationSpec:
    """The application with another option of `front`, which only new replicas take up."""

    def changed(deployment: DeploymentSpec) -> DeploymentSpec:
        config = deployment.config
        if config.name != "front":
            return deployment
        other = config.resources.model_copy(update={"num_cpus": 0.11})
        return deployment.model_copy(update={"config": config.model_copy(update={"resources": other})})

    return spec.model_copy(update={"deployments": tuple(changed(each) for each in spec.deployments)})
