"""One object of a deployment's class: its life, and its methods as whoever calls it wants them run."""

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Literal, cast

from app_toolkit.core.methods import STREAMS, kind_of
from app_toolkit.errors import ConfigError, ReconfigureError, StartupError
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.replica.batching import forget, override
from app_toolkit.replica.host import users_traceback
from app_toolkit.replica.threads import SyncThreads
from app_toolkit.types import Kind

logger = logging.getLogger("app_toolkit.replica")


class Instance:
    """An object that is constructed, started, called and closed.

    * `async def` methods and async generators run on the loop that calls; the constructor, `def` methods and generators
      on the object's own threads, one at a time where there is one thread.
    * A generator leaves its thread between two items.
    * A `def` method whose call is cancelled runs to its end, and the call ends with it.

    For one event loop.
    """

    def __init__(
        self, make: Callable[[], object], *, name: str, sync_threads: int = 1, replica: ReplicaContext | None = None
    ) -> None:
        """`make` constructs the object; `name` is for errors and logs; `replica`: what user code is told it runs in."""
        self.name = name
        self.replica = replica
        self._make = make
        self._threads = SyncThreads(sync_threads, name=name)
        self._object: object = None
        self._methods: dict[str, tuple[Kind, Callable[..., Any]]] = {}
        self._constructed = False
        self._batch: Mapping[str, Mapping[str, float]] = {}
        #: What it has taken up last; False: nobody knows, because that goes on, or has failed.
        self._user_config: Mapping[str, Any] | Literal[False] | None = None

    # Its life

    async def start(self, user_config: Mapping[str, Any] | None = None) -> None:
        """Construct it, run its `start()` where it has one, and give it its `user_config` where there is one.

        Raises `StartupError` with the end of the user's traceback as a note; what had begun is closed by then.
        """
        try:
            with self._told():
                await self._threads.run(self._construct)
            await self._if_there("start")
            await self._take_up(user_config)
        except BaseException as error:  # also a `sys.exit()` of the user's
            await self._close_what_began()
            if not isinstance(error, (Exception, SystemExit)):
                raise
            failure = StartupError(f"{self.name} did not start: {_in_one_line(error)}")
            failure.add_note(users_traceback(error))
            raise failure from error

    def _construct(self) -> None:
        # Here, and not where this is awaited: it is closed also if nobody waits any more.
        self._object = self._make()
        self._threads.own(self._object)
        override(self._object, self._batch)
        self._constructed = True

    def limit_batches(self, batch: Mapping[str, Mapping[str, float]]) -> None:
        """Let its batch methods keep to these limits, by name; what is not said is as the method says."""
        self._batch = batch
        if self._constructed:
            override(self._object, batch)

    async def reconfigure(self, user_config: Mapping[str, Any] | None) -> None:
        """Give it a new `user_config`; nothing happens where it has that one.

        Raises `ReconfigureError` with the end of the user's traceback as a note; the same one is then given again.
        """
        if not self._constructed:
            raise self._does_not_run()
        try:
            await self._take_up(user_config)
        except (Exception, SystemExit) as error:
            failure = ReconfigureError(f"{self.name} did not take up its user_config: {_in_one_line(error)}")
            failure.add_note(users_traceback(error))
            raise failure from error

    async def _take_up(self, user_config: Mapping[str, Any] | None) -> None:
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
        """Raises what the user's `check_health` raises, where there is one: it is not well then. Nor is it before its
        start and after its end: `RuntimeError`.

        A `def check_health` waits for its turn on the object's threads; beside long `def` methods it is better `async`.
        """
        if not self._constructed:
            raise self._does_not_run()
        await self._if_there("check_health")

    async def aclose(self) -> None:
        """Run its `aclose()`, where it has one, and end its threads. Raises what the user's code raises."""
        constructed, self._constructed = self._constructed, False
        try:
            if constructed:
                await self._if_there("aclose")
        finally:
            self._methods.clear()
            forget(self._object)
            self._object = None
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
        with self._told():
            if kind_of(method) == "coroutine":
                await method(*arguments)
            else:
                await self._threads.run(partial(method, *arguments))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Here user code may ask which replica this is; for calls `Calls` sees to it, at a tenth of the cost."""
        outer = REPLICA.get()
        REPLICA.set(self.replica)
        try:
            yield
        finally:
            REPLICA.set(outer)

    # Its methods

    def streams(self, method: str) -> bool:
        """Whether the method yields items. Raises `AttributeError` for what callers may not call."""
        return self._method(method)[0] in STREAMS

    async def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the method gives.

        Raises what it raises, `AttributeError` where there is none for callers, and `TypeError` where it is a stream.
        """
        kind, bound = self._method(method)
        if kind == "coroutine":
            return await bound(*args, **kwargs)
        if kind == "sync":
            return await self._threads.run(partial(bound, *args, **kwargs))
        raise TypeError(f"{self._called(method)} yields items: iterate over it")

    async def respond(self, request: object) -> Any:
        """What its `__call__` makes of a request. Raises what that raises."""
        if not self._constructed:
            raise self._does_not_run()
        respond = cast(Callable[[object], Any], self._object)
        if kind_of(type(respond).__call__) == "coroutine":
            return await respond(request)
        return await self._threads.run(partial(respond, request))

    def stream(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """What the method yields; whoever does not read it to its end closes it. Raises as `call` does."""
        kind, bound = self._method(method)
        if kind == "stream":
            items: AsyncGenerator[Any, None] = bound(*args, **kwargs)
            return items
        if kind == "sync stream":
            return self._stepped(bound(*args, **kwargs))
        raise TypeError(f"{self._called(method)} gives one result: await it")

    async def _stepped(self, items: Generator[Any, None, None]) -> AsyncGenerator[Any, None]:
        context = copy_context()  # one for all steps: what the generator sets, it finds again
        end = object()
        try:
            while (item := await self._threads.run(partial(next, items, end), context)) is not end:
                yield item
        finally:
            if getgeneratorstate(items) != GEN_CLOSED:  # it has not ended by itself
                await self._threads.run(items.close, context)

    def _method(self, name: str) -> tuple[Kind, Callable[..., Any]]:
        found = self._methods.get(name)
        if found is None:
            if not self._constructed:
                raise self._does_not_run()
            if name.startswith("_") or not callable(getattr(type(self._object), name, None)):
                private = "private, and not for callers" if name.startswith("_") else "no method"
                raise AttributeError(f"{self._called(name)} is {private}")
            bound = getattr(self._object, name)
            found = self._methods[name] = kind_of(bound), bound
        return found

    def _does_not_run(self) -> RuntimeError:
        return RuntimeError(f"{self.name} does not run")

    def _called(self, method: str) -> str:
        return f"{type(self._object).__name__}.{method}"

    def __repr__(self) -> str:
        return f"<Instance {self.name} [{'runs' if self._constructed else 'does not run'}]>"


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the process (SystemExit: {error.code})"
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
