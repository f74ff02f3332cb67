"""The client of all engines, over a connection that a test scripts."""

from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from app_toolkit.control.command import Command
from app_toolkit.control.operations import Delete
from app_toolkit.control.queries import GetStatus
from app_toolkit.errors import ConfigError, InstanceEnded, StaleEpoch, WaitTimeout
from app_toolkit.host.orders import Order
from app_toolkit.operate import remote
from app_toolkit.operate.remote import ControllerUnavailable, RemoteClient

R = TypeVar("R")


class ScriptedControl:
    """Gives these answers to commands, one after another, and the last one from then on."""

    def __init__(self, *answers: Any) -> None:
        self._answers = [*answers]
        self.received: list[Command[Any]] = []

    def execute(self, command: Command[R], timeout_s: float | None = None) -> R:
        self.received.append(command)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        result: R = answer
        return result

    def ask(self, orders: Mapping[str, Order[Any, R]]) -> Mapping[str, R]:
        return {}

    def addresses(self) -> Mapping[str, str]:
        return {}

    def links(self) -> Mapping[str, str]:
        return {}

    def end_controller(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRY_INTERVAL_S", 0.0)


@pytest.mark.parametrize("error", [ControllerUnavailable("it restarts"), StaleEpoch("it was replaced")])
def test_a_command_is_sent_again_to_a_controller_that_restarts(error: Exception) -> None:
    assert RemoteClient(ScriptedControl(error, error, "done")).execute(GetStatus()) == "done"


def test_a_deletion_that_is_sent_again_may_find_nothing() -> None:
    control = ScriptedControl(ControllerUnavailable("it restarts"), None)
    RemoteClient(control).execute(Delete("shop"))
    assert control.received == [Delete("shop"), Delete("shop", missing_ok=True)]


@pytest.mark.parametrize("error", [ConfigError("no such application"), InstanceEnded("it was shut down")])
def test_the_error_of_a_command_ends_it(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        RemoteClient(ScriptedControl(error)).execute(GetStatus())


def test_a_controller_that_does_not_come_back_is_not_waited_for_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BACK_S", 0.01)
    with pytest.raises(WaitTimeout, match=r"the controller has not answered for 0.01 s: it restarts"):
        RemoteClient(ScriptedControl(ControllerUnavailable("it restarts"))).execute(GetStatus())
