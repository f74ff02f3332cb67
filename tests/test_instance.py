"""Connecting to an instance."""

from collections.abc import Iterable

import pytest

import app_toolkit
from app_toolkit import ConfigError
from app_toolkit.config.models import ClassConfig, ClassSpec
from app_toolkit.control.command import Command
from app_toolkit.engines import select
from app_toolkit.interfaces import Callee
from app_toolkit.operate.client import Client, Driver
from tests.operate.scripted import OneInstance


def test_an_address_and_an_admin_url_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="address and admin_url exclude each other"):
        app_toolkit.connect("auto", admin_url="http://127.0.0.1:8001")


def test_a_negative_time_to_wait_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^wait_timeout_s = -1: it should be 0 or more seconds$"):
        app_toolkit.connect(wait_timeout_s=-1)


class Joined(OneInstance, Driver):
    """An engine with one instance, whose handles this process calls."""

    def __init__(self) -> None:
        self.client: Client = self
        self.closed = 0

    def drive(self, client: Client) -> Driver:
        return self

    def execute(self, command: Command[object]) -> object:
        return ClassSpec(config=ClassConfig(name="writer"))

    def serve(self, application: str, callees: Iterable[Callee]) -> None: ...

    def close(self) -> None:
        self.closed += 1


def test_the_instance_of_the_handles_is_used_and_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, other = Joined(), Joined()
    monkeypatch.setattr(select, "engine", lambda *_, **__: joined)
    app_toolkit.get_handle("shop", "writer")
    try:
        monkeypatch.setattr(select, "engine", lambda *_, **__: other)
        with app_toolkit.connect() as instance:
            assert instance.client is joined
        with app_toolkit.connect("processes-12") as instance:
            assert instance.client is other
        assert (joined.closed, other.closed) == (0, 1)
    finally:
        app_toolkit.shutdown()
    assert joined.closed == 1
