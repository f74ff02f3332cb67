"""One object of a deployment's class: its lifecycle, and the execution of its methods."""

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Literal, cast

from app_toolkit.calls.batching import forget, override
from app_toolkit.calls.multiplexing import holdings, must_displace, unload
from app_toolkit.calls.threads import SyncThreads
from app_toolkit.contract.methods import MANY, STREAMS, kind_of, many_of
from app_toolkit.errors import ConfigError, ReconfigureError, StartupError
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.types import Kind
from app_toolkit.userapp.loading import users_traceback

logger = logging.getLogger("app_toolkit.replica")


class HostedObject:
    """An object that is constructed, started, called and closed.

    * `async def` methods and async generators run on the event loop of the caller. The constructor, `def` methods and
      generators run on the object's own threads, one at a time if there is one thread.
    * A generator does not occupy its thread between two items.
    * A `def` method whose call is cancelled runs to its end, and the call ends with it.

    Use it on one event loop only.
    """

    def __init__(
        self, make: Callable[[], object], *, name: str, sync_threads: int = 1, replica: ReplicaContext | None = None
    ) -> None:
        """`make` constructs the object. `name` is for errors and logs. `replica`: the context that user code sees."""
        self.name = name
        self.replica = replica
        self._make = make
        self._threads = SyncThreads(sync_threads, name=name)
        self._object: object = None
        self._methods: dict[str, tuple[Kind, Callable[..., Any]]] = {}
        self._constructed = False
        self._batch: Mapping[str, Mapping[str, float]] = {}
        #: The value that was applied last; False: not known, because a change is in progress or has failed.
        self._user_config: Mapping[str, Any] | Literal[False] | None = None

    # Lifecycle

    async def start(self, user_config: Mapping[str, Any] | None = None) -> None:
        """Construct the object, run its `start()` if it has one, and pass it its `user_config` if there is one.

        Raises `StartupError` with the end of the user's traceback as a note. The object is closed by then.
        """
        try:
            with self._in_replica_context():
                await self._threads.run(self._construct)
            await self._if_there("start")
            await self._apply_config(user_config)
        except BaseException as error:  # includes a `sys.exit()` of user code
            await self._close_what_began()
            if not isinstance(error, (Exception, SystemExit)):
                raise
            failure = StartupError(f"{self.name} did not start: {_in_one_line(error)}")
            failure.add_note(users_traceback(error))
            raise failure from error

    def _construct(self) -> None:
        # In the thread and not after the await: the object must be closed even if the awaiting task was cancelled.
        self._object = self._make()
        self._threads.own(self._object)
        override(self._object, self._batch)
        self._constructed = True

    def limit_batches(self, batch: Mapping[str, Mapping[str, float]]) -> None:
        """Override the limits of batch methods, by method name. Limits that are not given are those of the method."""
        self._batch = batch
        if self._constructed:
            override(self._object, batch)

    async def reconfigure(self, user_config: Mapping[str, Any] | None) -> None:
        """Apply a new `user_config`. Do nothing if it is equal to the current one.

        Raises `ReconfigureError` with the end of the user's traceback as a note. The same value is then applied again
        by the next call.
        """
        if not self._constructed:
            raise self._does_not_run()
        try:
            await self._apply_config(user_config)
        except (Exception, SystemExit) as error:
            failure = ReconfigureError(f"{self.name} could not apply its user_config: {_in_one_line(error)}")
            failure.add_note(users_traceback(error))
            raise failure from error

    async def _apply_config(self, user_config: Mapping[str, Any] | None) -> None:
        if user_config == self._user_config:
            return
        self._user_config = False
        if not hasattr(type(self._object), "reconfigure"):
            raise ConfigError(
                f"{self.name} has a user_config, and {type(self._object).__name__} no reconfigure(user_config)"
            )
        await self._if_there("reconfigure", user_config)
        self._user_config = user_config

    async def check_health(self) -> None:
        """Run the user's `check_health`, if there is one. Raises what it raises: the replica is not healthy then.

        Raises `RuntimeError` before the start and after the end of the object. A `def check_health` waits for a free
        thread of the object. Beside long `def` methods it should be `async`.
        """
        if not self._constructed:
            raise self._does_not_run()
        await self._if_there("check_health")

    # Keys

    def holdings(self) -> bytes | None:
        """Return which affinity keys the object holds, encoded for callers. None: keys have no places in it."""
        return holdings(self._object)

    def must_displace(self, key: str) -> bool:
        """Return whether the object must give up another key to hold this one."""
        return must_displace(self._object, key)

    # Its end

    async def aclose(self) -> None:
        """Run the object's `aclose()`, if it has one, unload its models, and end its threads.

        Raises what user code raises.
        """
        constructed, self._constructed = self._constructed, False
        try:
            if constructed:
                await self._if_there("aclose")
        finally:
            self._methods.clear()
            forget(self._object)
            model_owner, self._object = self._object, None
            try:
                await unload(model_owner)
            finally:
                await self._threads.aclose()

    async def _close_what_began(self) -> None:
        try:
            await self.aclose()
        except Exception as error:
            logger.error("%s did not close after its start had failed", self.name, exc_info=error)

    async def _if_there(self, name: str, *arguments: object) -> None:
        if not hasattr(type(self._object), name):
            return
        method = getattr(self._object, name)
        with self._in_replica_context():
            if kind_of(method) == "coroutine":
                await method(*arguments)
            else:
                await self._threads.run(partial(method, *arguments))

    @contextmanager
    def _in_replica_context(self) -> Iterator[None]:
        """Set the replica context for user code. For calls, `Calls` sets it, at a tenth of the cost."""
        outer = REPLICA.get()
        REPLICA.set(self.replica)
        try:
            yield
        finally:
            REPLICA.set(outer)

    # Methods

    def streams(self, method: str) -> bool:
        """Return whether the method yields items. Raises `AttributeError` for a method that callers may not call."""
        return self._method(method)[0] in STREAMS

    async def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a method and return its result.

        Raises what the method raises, `AttributeError` if there is no such public method, and `TypeError` if it yields
        items.
        """
        kind, bound = self._method(method)
        if kind == "coroutine":
            return await bound(*args, **kwargs)
        if kind == "sync":
            return await self._threads.run(partial(bound, *args, **kwargs))
        raise TypeError(f"{self._called(method)} yields items: iterate over it")

    async def respond(self, request: object) -> Any:
        """Call the object's `__call__` with a request and return its result. Raises what it raises."""
        if not self._constructed:
            raise self._does_not_run()
        respond = cast(Callable[[object], Any], self._object)
        if kind_of(type(respond).__call__) == "coroutine":
            return await respond(request)
        return await self._threads.run(partial(respond, request))

    def stream(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Return the items of a method that yields. The caller must exhaust or close them. Raises as `call` does."""
        kind, bound = self._method(method)
        if kind == "stream":
            items: AsyncGenerator[Any, None] = bound(*args, **kwargs)
            return items
        if kind == "sync stream":
            return self._stepped(bound(*args, **kwargs))
        raise TypeError(f"{self._called(method)} returns one result: await it")

    async def _stepped(self, items: Generator[Any, None, None]) -> AsyncGenerator[Any, None]:
        context = copy_context()  # one context for all steps, so that the generator finds its context variables again
        end = object()
        try:
            while (item := await self._threads.run(partial(next, items, end), context)) is not end:
                yield item
        finally:
            if getgeneratorstate(items) != GEN_CLOSED:  # the generator has not ended by itself
                await self._threads.run(items.close, context)

    def _method(self, name: str) -> tuple[Kind, Callable[..., Any]]:
        method = self._methods.get(name)
        if method is None:
            if not self._constructed:
                raise self._does_not_run()
            single = name.removesuffix(MANY)
            if name.startswith("_") or not callable(getattr(type(self._object), single, None)):
                private = "private" if name.startswith("_") else "not a method"
                raise AttributeError(f"{self._called(name)} is {private}")
            bound = getattr(self._object, single)
            if single != name and (bound := many_of(bound)) is None:
                raise AttributeError(f"{self._called(single)} is no @batch method without a stream")
            method = self._methods[name] = kind_of(bound), bound
        return method

    def _does_not_run(self) -> RuntimeError:
        return RuntimeError(f"{self.name} does not run")

    def _called(self, method: str) -> str:
        return f"{type(self._object).__name__}.{method}"

    def __repr__(self) -> str:
        return f"<HostedObject {self.name} [{'runs' if self._constructed else 'does not run'}]>"


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the process (SystemExit: {error.code})"
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
