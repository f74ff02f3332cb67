"""The commands of an instance, and the instance in Python: a connection with a method for each command.

`Commands` lists each command once. `Instance` has the blocking form of its methods, and `AsyncInstance` the
asynchronous one. `connect` and `connect_async` (`app_toolkit/instance.py`) create them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from inspect import Signature, signature
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.command import Command
from app_toolkit.control.freeze import Freeze, Unfreeze
from app_toolkit.control.operations import AddCandidate, Delete, Deploy, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.queries import (
    Compare,
    GetApplication,
    GetApplications,
    GetEvents,
    GetHistory,
    GetStatus,
    Shutdown,
)
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.weights import SetSplit, SetTraffic
from app_toolkit.errors import ConfigError
from app_toolkit.operate.client import WAIT_S, Client
from app_toolkit.operate.encoding import check_arguments, result_type
from app_toolkit.operate.progress import Row

P = ParamSpec("P")
R = TypeVar("R")


class Method(Generic[P, R]):
    """A method that both forms of an instance have.

    It blocks in an `Instance`. In an `AsyncInstance`, it is a coroutine function that runs in a thread.
    """

    def __init__(self, function: Callable[Concatenate["Instance", P], R], documented: Callable[..., Any]) -> None:
        """`documented`: the class, or the method of `Client`, that has the arguments and the docstring."""
        self._function = function
        self.documented = documented
        self.__doc__ = documented.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @cached_property
    def __signature__(self) -> Signature:
        documented = signature(self.documented)
        parameters = [parameter for parameter in documented.parameters.values() if parameter.name != "self"]
        if isinstance(self.documented, type):
            return documented.replace(parameters=parameters, return_annotation=result_type(self.documented))
        return documented.replace(parameters=parameters)

    @overload
    def __get__(self, instance: None, owner: object) -> Self: ...
    @overload
    def __get__(self, instance: "Instance", owner: object) -> Callable[P, R]: ...
    @overload
    def __get__(self, instance: "AsyncInstance", owner: object) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, instance: Any, owner: object) -> Any:
        if instance is None:
            return self

        def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
            return self._function(instance, *args, **kwargs)

        async def in_a_thread(*args: P.args, **kwargs: P.kwargs) -> R:
            return await asyncio.to_thread(self._function, instance.blocking, *args, **kwargs)

        bound = blocking if isinstance(instance, Instance) else in_a_thread
        bound.__name__ = bound.__qualname__ = self._name
        bound.__doc__ = self.__doc__
        vars(bound)["__signature__"] = self.__signature__
        return bound


def command(kind: Callable[P, Command[R]]) -> Method[P, R]:
    """Declare a method that performs a command, and waits for its effect.

    `kind`: the class of the command. The method has the arguments of its constructor, its result and its docstring. It
    raises `ConfigError` for an argument of another type.
    """

    def perform(instance: "Instance", /, *args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(kind, signature(kind).bind(*args, **kwargs).arguments)
        return instance.perform(kind(*args, **kwargs))

    return Method(perform, kind)


def client_method(method: Callable[Concatenate[Client, P], R]) -> Method[P, R]:
    """Declare a method that the client of the instance has."""

    def call(instance: "Instance", /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = getattr(instance.client, method.__name__)(*args, **kwargs)  # `method` itself may be abstract
        return result

    return Method(call, method)


class Commands:
    """All commands of an instance that clients use, each once.

    A line is a method of an instance in Python, in both forms. `command` also adds a route to the admin API, and a
    command to `app-toolkit` if the fields of the class have an `Argument` (`cli/operating.py`).
    """

    status = client_method(Client.status)
    events = client_method(Client.newest_events)
    load = client_method(Client.load)
    logs = client_method(Client.logs)
    slow = client_method(Client.slow)
    scale = command(Scale)
    restart = command(Restart)
    set_traffic = command(SetTraffic)
    set_split = command(SetSplit)
    rollout = command(BeginRelease)
    pause_rollout = command(PauseRelease)
    promote = command(Promote)
    abort = command(Abort)
    rollback = command(Rollback)
    history = command(GetHistory)
    delete = command(Delete)
    freeze = command(Freeze)
    unfreeze = command(Unfreeze)
    shutdown = client_method(Client.shutdown)


WITHOUT_METHOD: tuple[type[Command[Any]], ...] = (
    *(Deploy, AddCandidate, Shutdown, Compare),
    *(GetStatus, GetEvents, GetApplications, GetApplication),
)
"""The other commands of the admin API."""


def commands() -> dict[str, type[Command[Any]]]:
    """Return the classes of the commands that an instance has methods for, by the name of the method."""
    methods = {name: method.documented for name, method in vars(Commands).items() if isinstance(method, Method)}
    return {name: kind for name, kind in methods.items() if isinstance(kind, type)}


def api_commands() -> tuple[type[Command[Any]], ...]:
    """Return the commands of the admin API."""
    return (*commands().values(), *WITHOUT_METHOD)


class Instance(Commands):
    """A connection to an instance. Its methods block, and several threads can use it.

    A method that starts replicas returns once they serve and nothing that they replace answers any more. `delete`
    returns once the replicas have drained. The methods raise the error of their operation. Those that wait also raise
    `StartupError` if replicas cannot start or were rolled back, `Superseded` if another client has changed the
    application meanwhile, and `WaitTimeout`. None of these three errors reverts the operation. All methods raise
    `InstanceEnded` if the instance is shut down.
    """

    def __init__(self, client: Client, wait_timeout_s: float = WAIT_S, *, shared: bool = False) -> None:
        """Use a client that is connected.

        Parameters:
            client: The connection.
            wait_timeout_s: Seconds that a method waits at most.
            shared: Whether the connection goes on when this object is closed.
        """
        self.wait_timeout_s = wait_timeout_s
        self._client = client
        self._shared = shared
        self._is_closed = False

    @property
    def client(self) -> Client:
        """The connection. Raises `ConfigError` if this object is closed."""
        if self._is_closed:
            raise ConfigError("this instance is closed: connect to it again with `app_toolkit.connect`")
        return self._client

    def change(self, operation: Command[R]) -> R:
        """Send an operation, and return its result without waiting until what it starts serves."""
        return self.client.change(operation)

    def wait(self, operation: Command[R], result: R, show: Callable[[Sequence[Row]], None] = lambda rows: None) -> None:
        """Wait until what an operation has started serves, or until the replicas that it deletes have ended.

        Parameters:
            operation: The operation that `change` has sent.
            result: Its result.
            show: Is called with the state of each replica set until then.
        """
        if revisions := operation.started(result):
            self.client.wait_until_serving(revisions, self.wait_timeout_s, show)
        elif removal := operation.removes:
            self.client.wait_until_gone(removal)

    def perform(self, operation: Command[R]) -> R:
        """Send an operation, wait for its effect, and return its result."""
        result = self.change(operation)
        self.wait(operation, result)
        return result

    def close(self) -> None:
        """Disconnect. The instance and its applications continue."""
        if not self._shared and not self._is_closed:
            self._client.close()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncInstance(Commands):
    """The methods of `Instance` as coroutine functions, for code that must not block its event loop.

    Use it as `async with connect_async() as instance`. Each method runs in a thread. If its coroutine is cancelled, the
    thread goes on.
    """

    def __init__(self, connect: Callable[[], Instance]) -> None:
        """`connect`: connects to the instance, which may block."""
        self._connect = connect
        self._blocking: Instance | None = None

    @property
    def blocking(self) -> Instance:
        """The instance that the threads use. Raises `ConfigError` before `async with`."""
        if self._blocking is None:
            raise ConfigError("this instance is not connected: use it as `async with connect_async() as instance`")
        return self._blocking

    async def change(self, operation: Command[R]) -> R:
        """Send an operation, and return its result without waiting until what it starts serves."""
        return await asyncio.to_thread(self.blocking.change, operation)

    async def __aenter__(self) -> Self:
        self._blocking = await asyncio.to_thread(self._connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.blocking.close)
