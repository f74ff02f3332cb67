"""`deploy` and `status` in a process that has run nothing, on an engine that follows a script."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import Request

import app_toolkit
from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.application_specs import compare
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Deploy
from app_toolkit.control.queries import Compare, GetApplications, GetStatus
from app_toolkit.control.status import ApplicationStatus, InstanceStatus
from app_toolkit.engines import select
from app_toolkit.operate.client import Client
from tests.operate.scripted import PROXY, STARTING, UP, OneInstance
from tests.patience import PATIENCE_S


async def hello(request: Request) -> str:
    return "hello"


class Starting(OneInstance):
    """An instance whose application is up after `go`."""

    def __init__(self) -> None:
        self.connections = 0
        self.waited_for = threading.Event()
        self.go = threading.Event()
        self.addresses: list[str | None] = []

    def connect(self, address: str | None) -> Client:
        self.connections += 1
        self.addresses.append(address)
        return self

    def start(self, *, address: str | None, **_: object) -> Client:
        return self.connect(address)

    def close(self) -> None:
        self.connections -= 1

    def execute(self, command: Command[Any]) -> Any:
        match command:
            case Compare(specs, http):
                return compare(specs, {}, HTTPOptions(), http)
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
    assert engine.connections == 0


def test_status_does_not_wait_until_a_deployment_of_another_thread_is_up(starting: Starting) -> None:
    with ThreadPoolExecutor() as threads:
        deployed = threads.submit(app_toolkit.deploy, hello, name="shop", route_prefix="/shop")
        try:
            assert starting.waited_for.wait(PATIENCE_S)
            status = threads.submit(app_toolkit.status, address="127.0.0.1:6379").result(PATIENCE_S)
            assert (status.applications[0].status, deployed.done()) == ("starting", False)
        finally:
            starting.go.set()
        deployed.result(PATIENCE_S)
    assert starting.addresses == ["auto", "127.0.0.1:6379"]
