"""The connection that the functions of one process share, without a cluster."""

from collections.abc import Iterable
from typing import Any

import pytest

import app_toolkit
from app_toolkit import ConfigError
from app_toolkit.client.client import Client, Driver
from app_toolkit.client.commands import Command
from app_toolkit.engines import select
from app_toolkit.interfaces import Deployable
from tests.client.scripted import OneInstance


class OneCluster(OneInstance, Driver):
    """An engine with one cluster, whose client and driver do nothing."""

    def __init__(self) -> None:
        self.client: Client = self

    def connect(self, address: str | None) -> Client:
        if address not in (None, "auto", "10.0.0.1:6379"):
            raise ConfigError(f"this process cannot join {address}")
        return self

    def drive(self, client: Client) -> Driver:
        return self

    def execute(self, command: Command[Any]) -> Any:
        return {}

    def serve(self, application: str, deployments: Iterable[Deployable]) -> None: ...


def test_command_for_another_cluster_than_that_of_the_handles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OneCluster()
    monkeypatch.setattr(select, "engine", lambda: engine)
    app_toolkit.get_handle("shop", "writer", address="10.0.0.1:6379")
    try:
        app_toolkit.status(address="10.0.0.1:6379")
        app_toolkit.status()
        with pytest.raises(ConfigError, match=r"cannot join 10\.0\.0\.2:6379"):
            app_toolkit.status(address="10.0.0.2:6379")
    finally:
        app_toolkit.shutdown()
