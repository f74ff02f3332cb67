"""The methods of an instance, on a client that follows a script."""

import inspect
from collections.abc import Callable

import pytest

import app_toolkit
from app_toolkit import ConfigError, InstanceEnded, StartupError, WaitTimeout
from app_toolkit.control.canary import BeginRelease
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Delete, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.revisions import RevisionStatus
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.weights import SetTraffic
from app_toolkit.operate.instance import AsyncInstance, Commands, Instance
from tests.operate.scripted import FAILED, STARTING, UP, Scripted
from tests.operate.test_client import status

pytestmark = pytest.mark.anyio


def test_a_method_returns_once_what_it_starts_serves() -> None:
    client = Scripted(status(STARTING), status(UP))
    assert Instance(client).scale("shop/app", 1) == 1
    assert client.did == [Scale("shop/app", 1)]
    with pytest.raises(StopIteration):
        next(client.script)


@pytest.mark.parametrize("operation", [Promote("shop", 3), Rollback("shop", 3), Scale("shop/app", 1)])
def test_an_operation_that_is_only_sent_does_not_wait(operation: Command[object]) -> None:
    client = Scripted()
    instance = Instance(client, wait_timeout_s=0)
    result = instance.change(operation)
    assert client.did == [operation]
    client.script = iter([status(STARTING)])
    with pytest.raises(WaitTimeout, match="the rollout is not complete after 0 s: app: starting"):
        instance.wait(operation, result)


def test_a_method_that_starts_nothing_does_not_ask_for_the_status() -> None:
    client = Scripted()
    instance = Instance(client)
    instance.abort("shop")
    instance.set_traffic("shop", {1: 90, 2: 10})
    assert client.did == [Abort("shop"), SetTraffic("shop", {1: 90, 2: 10})]


def test_a_method_raises_the_error_of_what_it_started_and_delete_waits_for_the_end() -> None:
    with pytest.raises(StartupError, match="no model"):
        Instance(Scripted(status(FAILED))).scale("shop/app", 1)
    client = Scripted(InstanceEnded("the instance was shut down"))
    Instance(client).delete("shop")
    assert client.did == [Delete("shop")]


async def test_the_asynchronous_form_has_the_same_methods_and_closes_its_connection() -> None:
    client = Scripted(status(STARTING), status(UP))
    async with AsyncInstance(lambda: Instance(client)) as instance:
        assert await instance.scale("shop/app", 1) == 1
        await instance.change(Abort("shop"))
        for name in vars(Commands):
            if not name.startswith("_"):
                method, blocking = getattr(instance, name), getattr(instance.blocking, name)
                assert inspect.iscoroutinefunction(method)
                assert inspect.signature(method) == inspect.signature(blocking)
                assert "self" not in inspect.signature(method).parameters
                assert method.__doc__ == blocking.__doc__ is not None
    assert client.did == [Scale("shop/app", 1), Abort("shop"), "close"]


async def test_an_instance_that_is_not_connected_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^this instance is not connected: use it as `async with connect_async"):
        await app_toolkit.connect_async().status()
    client = Scripted()
    with Instance(client) as instance:
        pass
    with pytest.raises(ConfigError, match="this instance is closed: connect to it again"):
        instance.abort("shop")
    instance.close()
    assert client.did == ["close"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda to: to.scale("a/b", True), r"^num_replicas = True: Input should be a valid integer$"),
        (lambda to: to.scale("a/b", "2"), r"^num_replicas = '2': Input should be a valid integer$"),
        (lambda to: to.scale(None, 1), r"^deployment = None: Input should be a valid string$"),
        (lambda to: to.set_traffic("a", {}, [1]), r"^mirror = \[1\]: Input should be a valid dictionary$"),
        (lambda to: to.set_traffic("a", {1: "x"}), r"^weights\[1\] = 'x': Input should be a valid number$"),
    ],
)
def test_an_argument_of_another_type_is_refused(call: Callable[[Instance], object], message: str) -> None:
    client = Scripted()
    with pytest.raises(ConfigError, match=message):
        call(Instance(client))
    assert client.did == []


def test_arguments_of_each_form_that_is_documented_are_sent() -> None:
    client = Scripted()
    Instance(client).rollout("shop", 2, steps=[10, 100], every="1m", guards=["p95<300ms"])
    Instance(client).rollout("shop", 3, (1, 5.5), 60)
    assert client.did == [
        BeginRelease("shop", 2, steps=[10, 100], every="1m", guards=["p95<300ms"]),
        BeginRelease("shop", 3, (1, 5.5), 60),
    ]


def test_the_signatures_have_the_types_of_the_results_and_no_details_of_the_protocol() -> None:
    instance = Instance(Scripted())
    assert str(inspect.signature(instance.scale)).endswith("-> int")
    assert inspect.signature(instance.history).return_annotation == tuple[RevisionStatus, ...]
    assert list(inspect.signature(instance.events).parameters) == ["subject", "last"]
    assert list(inspect.signature(instance.status).parameters) == []
