"""`@multiplexed`: several models in one replica, which are loaded when a request needs them.

`calls/model_slots.py` decides which models are loaded and unloaded. Each model has one task, which loads it, holds it
and unloads it, so that a loader may use task groups and timeouts.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar, overload

from app_toolkit.calls.model_slots import GrantModel, LoadModel, ModelPlaces
from app_toolkit.errors import ConfigError
from app_toolkit.observability.context import REPLICA
from app_toolkit.wire.hop import encode_holdings

S = TypeVar("S")
R = TypeVar("R")

logger = logging.getLogger("app_toolkit.replica")


class ModelPool(Generic[R]):
    """The models that one object has loaded."""

    def __init__(self, load: Callable[[str], AbstractAsyncContextManager[R]], max_models: int) -> None:
        self._load = load
        self.places: ModelPlaces[asyncio.Future[R]] = ModelPlaces(max_models)
        self._models: dict[str, R] = {}
        self._endings: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def names(self) -> list[str]:
        """The models that are loaded, least recently used first."""
        return [name for name in self.places.models if name in self._models]

    @asynccontextmanager
    async def __call__(self, name: str) -> AsyncIterator[R]:
        """Return a context with a model, which is not unloaded within it.

        The context begins when the model is loaded. If all `max_models` are in use, it waits for the end of one.
        Raises what the loader raises, and `RuntimeError` if the replica ends.
        """
        if self._closed:
            raise RuntimeError("the models of this replica have been unloaded")
        request: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.places.add(request, name)
        self._act()
        try:
            model = await request
        except BaseException:
            waited = self.places.remove(request)
            if not waited and not request.cancelled() and request.exception() is None:
                self._release(name)  # it was granted, and cancelled before it could run
            self._act()
            raise
        try:
            yield model
        finally:
            self._release(name)
            self._act()

    async def aclose(self) -> None:
        """Unload all models, and wait for the end. Requests that wait for one get `RuntimeError`."""
        self._closed = True
        for request in list(self.places.waiting):
            self.places.remove(request)
            if not request.done():
                request.set_exception(RuntimeError("the replica ends, so no further model is loaded"))
        for task in self._tasks:
            if task.get_name() not in self._endings:
                task.cancel()
        for ending in self._endings.values():
            ending.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _release(self, name: str) -> None:
        if name in self.places.models:  # otherwise `aclose` has unloaded it meanwhile
            self.places.release(name)

    def _act(self) -> None:
        while actions := self.places.decide():
            for action in actions:
                match action:
                    case GrantModel(request, name) if request.done():  # it was cancelled, and has not noticed yet
                        self._release(name)
                    case GrantModel(request, name):
                        request.set_result(self._models[name])
                    case LoadModel(name):
                        # Not in the context of the first request: the model belongs to no single one.
                        context = Context()
                        context.run(REPLICA.set, REPLICA.get())
                        task = asyncio.get_running_loop().create_task(self._run_model(name), name=name, context=context)
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                    case _:
                        self._endings[action.model].set()

    async def _run_model(self, name: str) -> None:
        """Load a model, hold it until its end is decided, and unload it."""
        try:
            async with self._load(name) as model:
                self._models[name], self._endings[name] = model, asyncio.Event()
                self.places.loaded(name)
                self._act()
                await self._endings[name].wait()
        except BaseException as error:  # user code may raise anything, and this task may be cancelled
            if name not in self._endings:
                self._fail(name, error)
            elif isinstance(error, Exception):
                logger.exception("the model %s did not unload", name)
            if not isinstance(error, Exception):
                raise
        finally:
            if self._endings.pop(name, None) is not None:
                del self._models[name]
                self.places.unloaded(name)
            self._act()

    def _fail(self, name: str, error: BaseException) -> None:
        """Raise an error in the requests that wait for a model."""
        if not isinstance(error, Exception):
            error = RuntimeError(f"the load of the model {name} was cancelled")
        for request in self.places.failed(name):
            if not request.done():
                request.set_exception(error)


class Multiplexed(Generic[S, R]):
    """A loader of models as an attribute of its class. Each object has a `ModelPool` of its own."""

    def __init__(self, load: Callable[[S, str], AsyncIterator[R]], max_models: int) -> None:
        self._load = asynccontextmanager(load)
        self._max_models = max_models
        self.__doc__ = load.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Multiplexed[S, R]": ...

    @overload
    def __get__(self, instance: S, owner: type) -> ModelPool[R]: ...

    def __get__(self, instance: S | None, owner: type) -> "Multiplexed[S, R] | ModelPool[R]":
        if instance is None:
            return self
        pools: dict[str, Any] = vars(instance)
        pool: ModelPool[R] = pools.setdefault(self._name, ModelPool(partial(self._load, instance), self._max_models))
        return pool


def multiplexed(*, max_models: int) -> Callable[[Callable[[S, str], AsyncIterator[R]]], Multiplexed[S, R]]:
    """Load several models in one replica, each when the first request needs it.

    ```python
    class Translator(Deployment):
        @multiplexed(max_models=3)
        async def model(self, name: str) -> AsyncIterator[Model]:
            model = await load(name)
            yield model
            await model.unload()

        async def translate(self, text: str, language: str) -> str:
            async with self.model(language) as model:
                return await model.translate(text)
    ```

    The method is an async generator: it loads a model, yields it, and unloads it. Callers get a context with the model.
    A model is loaded once, however many requests wait for it. If `max_models` are loaded, the least recently used one
    that is not in use is unloaded first; if all are in use, the request waits. When the replica ends, all are unloaded.
    An exception of the loader is raised in the requests that wait, and the next request loads again.

    Parameters:
        max_models: Maximum number of models in one replica, including those that are being loaded or unloaded.

    Raises:
        ConfigError: `max_models` is below 1.
    """
    if max_models < 1:
        raise ConfigError(f"multiplexed: max_models = {max_models!r}: must be at least 1")

    def decorate(load: Callable[[S, str], AsyncIterator[R]]) -> Multiplexed[S, R]:
        return Multiplexed(load, max_models)

    return decorate


@lru_cache(maxsize=1024)  # because chat routers ask for each request
def has_loader(cls: type) -> bool:
    """Return whether a class has a loader of models."""
    return any(isinstance(value, Multiplexed) for base in cls.__mro__ for value in vars(base).values())


def holdings(hosted: object) -> bytes | None:
    """Return which models an object has loaded, encoded for callers. None: it has no place for models yet."""
    pools = [pool.places for pool in _pools(hosted)]
    if not pools:
        return None
    models = tuple(name for places in pools for name in places.held)
    return _encoded(sum(places.changes for places in pools), min(places.free for places in pools), models)


_encoded = lru_cache(maxsize=16)(encode_holdings)


def must_displace(hosted: object, name: str) -> bool:
    """Return whether an object must unload a model to load this one."""
    pools = [pool.places for pool in _pools(hosted)]
    return bool(pools) and not any(places.free or name in places.held for places in pools)


async def unload(hosted: object) -> None:
    """Unload all models of an object, at its end."""
    for pool in _pools(hosted):
        await pool.aclose()


def _pools(hosted: object) -> list[ModelPool[Any]]:
    cls: type = type(hosted)
    if not has_loader(cls):
        return []
    # A copy: meanwhile, threads of `def` methods may add attributes.
    attributes = list(getattr(hosted, "__dict__", {}).values())
    return [attribute for attribute in attributes if isinstance(attribute, ModelPool)]
