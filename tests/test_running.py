"""`deploy`, `status` and others in a process that has run nothing, on an engine that follows a script."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import Request

import app_toolkit
from app_toolkit import ConfigError
from app_toolkit.client.client import Client, Driver
from app_toolkit.client.commands import Command, Compare, Deploy, GetApplications, GetStatus
from app_toolkit.config.models import ClassConfig, ClassSpec, HTTPOptions
from app_toolkit.core.applications import compare
from app_toolkit.core.status import ApplicationStatus, InstanceStatus
from app_toolkit.engines import select
from app_toolkit.interfaces import Callee
from tests.client.scripted import PROXY, STARTING, UP, OneInstance
from tests.patience import PATIENCE_S


async def hello(request: Request) -> str:
    return "hello"


class Starting(OneInstance):
    """An instance whose application is up after `go`."""

    def __init__(self) -> None:
        self.connected = 0
        self.most_connected = 0
        self.waited_for = threading.Event()
        self.go = threading.Event()
        self.addresses: list[str | None] = []

    def connect(self, address: str | None) -> Client:
        self.connected += 1
        self.most_connected = max(self.most_connected, self.connected)
        self.addresses.append(address)
        return self

    def start(self, *, address: str | None, **_: object) -> Client:
        return self.connect(address)

    def close(self) -> None:
        self.connected -= 1

    def execute(self, command: Command[Any]) -> Any:
        match command:
            case Compare(specs, http, only):
                return compare(specs, {}, HTTPOptions(), http, only)
            case GetApplications():
                return {}, HTTPOptions()
            case Deploy():
                return 1
            case GetStatus(after=after):
                if after >= 0:
                    self.waited_for.set()
                    self.go.wait(0.05)
                group = UP if self.go.is_set() else STARTING
                shop = ApplicationStatus("shop", "starting", "/shop", (group,), 1)
                return InstanceStatus(1, after + 1, "starting", (shop,), (PROXY,), ())
            case _:
                raise AssertionError(f"{command} was not expected")


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    engine = Starting()
    monkeypatch.setattr(select, "engine", lambda *_, **__: engine)
    yield engine
    assert engine.connected == 0


def test_status_does_not_wait_until_a_deployment_of_another_thread_is_up(starting: Starting) -> None:
    with ThreadPoolExecutor() as threads:
        deployed = threads.submit(app_toolkit.deploy, hello, name="shop", route_prefix="/shop")
        try:
            assert starting.waited_for.wait(PATIENCE_S)
            status = threads.submit(app_toolkit.status).result(PATIENCE_S)
            assert (status.applications[0].status, deployed.done()) == ("starting", False)
            other = threads.submit(app_toolkit.status, address="127.0.0.1:6379")
        finally:
            starting.go.set()
        deployed.result(PATIENCE_S)
        other.result(PATIENCE_S)
    assert starting.addresses == ["auto", "127.0.0.1:6379"]
    assert starting.most_connected == 1, "a process belongs to one cluster at a time"


class OneCluster(OneInstance, Driver):
    """An engine with one cluster, whose client and driver do nothing."""

    def __init__(self) -> None:
        self.client: Client = self

    def check_address(self, address: str) -> None:
        if address not in ("auto", "10.0.0.1:6379"):
            raise ConfigError(f"this process cannot join {address}")

    def drive(self, client: Client) -> Driver:
        return self

    def execute(self, command: Command[Any]) -> Any:
        return ClassSpec(config=ClassConfig(name="writer"))

    def serve(self, application: str, callees: Iterable[Callee]) -> None: ...


def test_command_for_another_cluster_than_that_of_the_handles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OneCluster()
    monkeypatch.setattr(select, "engine", lambda *_, **__: engine)
    app_toolkit.get_handle("shop", "writer", address="10.0.0.1:6379")
    try:
        app_toolkit.status(address="10.0.0.1:6379")
        app_toolkit.status()
        with pytest.raises(ConfigError, match=r"cannot join 10\.0\.0\.2:6379"):
            app_toolkit.status(address="10.0.0.2:6379")
    finally:
        app_toolkit.shutdown()
