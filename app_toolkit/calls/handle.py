"""Handles, whose methods user code calls like those of the class, and the responses of these calls."""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Generic, Never, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from app_toolkit.calls.multiplexing import has_loader
from app_toolkit.config.models import CallOptions
from app_toolkit.contract.methods import MANY, STREAMS, kind_of, many_of
from app_toolkit.errors import NoReplica
from app_toolkit.interfaces import Call, Callee, DataPlane, DeploymentClient, Reference
from app_toolkit.observability.context import READ_STREAMS, SHARD_KEY, THREAD_WORK, ReadStream, thread_work
from app_toolkit.types import Kind, Retry
from app_toolkit.wire.calls import EncodedValue

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

ENDED = "the engine of this process has shut down"

_data_plane: DataPlane | None = None


def use(data_plane: DataPlane | None) -> None:
    """Set the data plane that all handles of this process use. None: the deployments run in this process."""
    global _data_plane
    _data_plane = data_plane


def in_one_process() -> bool:
    """Return whether the deployments that handles call run in this process, because no instance runs them."""
    return _data_plane is None


def data_plane() -> DataPlane:
    """Return the data plane that all handles of this process use."""
    if (plane := _data_plane) is not None:  # read once: another thread may replace it
        return plane
    from app_toolkit.engines.one_process.calls import IN_PROCESS  # here, so that declarations do not import an engine

    return IN_PROCESS


class Handle(Reference):
    """Calls one deployment, or one split. A handle has the methods of the class, and no other public name.

    As a dependency, `Depends(writer.handle)`, a handle returns itself.

    Await an `async def` method, and iterate over a method that yields, from any event loop. A `def` method blocks until
    its result arrives. In a thread with a running event loop, it raises `TypeError`. Handles are thread-safe.
    """

    _options: CallOptions

    def __init__(self, deployment: Callee, options: CallOptions | None = None) -> None:
        self.__dict__.update(_deployment=deployment, _options=options or CallOptions())

    # Asynchronous, because FastAPI runs a synchronous dependency in a thread.
    async def __call__(self) -> "Handle":
        return self

    def __getattr__(self, name: str) -> "Method":
        method = Method(self._deployment, name, _kind(self._deployment.cls, name), self._options)
        self.__dict__[name] = method  # `__getattr__` is not called for this name again
        return method

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r} on a handle: the state is in the replicas")

    def __reduce__(self) -> Never:
        raise TypeError(
            f"the handle of {self._deployment.name!r} cannot be pickled: pass it as an argument of bind(), or send the "
            "result of a call"
        )

    def __repr__(self) -> str:
        return f"<Handle of {self._deployment.name}: {self._deployment.cls.__name__}>"


class CallKeywords(TypedDict, total=False):
    """`CallOptions`, for type checkers and editors."""

    timeout_s: float | None
    """seconds that each call may take, queue included. Default: None"""
    retry: Retry | None
    """calls that are retried when a replica is lost with them. Default: None"""
    affinity: str | None
    """calls with the same key prefer the same replica, for example the one that has loaded a model. Default: None"""
    shard_key: str | None
    """calls with the same key go to the same member of a split; replaces the key of the request. Default: None"""


def options(handle: T, **options: Unpack[CallKeywords]) -> T:
    """Return a handle to the same deployment with other options: `options(model, timeout_s=2).write(prompt)`.

    An option that is not given does not change.

    Parameters:
        handle: The handle.
        timeout_s: Seconds that each call may take, including the time in the queue. Default: that of the deployment.
        retry: Calls that are retried if their replica is lost: "all", "idempotent" (methods marked `@idempotent`) or
            "none". Default: that of the deployment.
        affinity: A key of 1 to 512 characters. Calls with the same key go to the same replica, unless it has no room,
            or clearly more requests than the replica that the key prefers next. If the class loads models by
            `@multiplexed`, the key must be the name of the model. Default: None, any replica.
        shard_key: A key of 1 to 512 characters. A split sends all calls with the same key to the same member, in every
            process. The calls that the method makes have the same key. Default: None, the key of the request that makes
            the call, which is its field `X-SERVE-SHARD-KEY`.

    Raises:
        ConfigError: An option is unknown or out of bounds.
        TypeError: `handle` is not a handle.
    """
    old = _handle(handle, "options(model, ...)")
    return cast(T, Handle(old._deployment, CallOptions(**{**old._options.model_dump(), **options})))


def deployment_of(handle: object) -> Callee:
    """Return the deployment or the split of a handle. Raise `TypeError` if the argument is not a handle."""
    return _handle(handle, "deployment_of(model)")._deployment


def is_multiplexed(handle: object) -> bool:
    """Return whether a handle calls a class with `@multiplexed`. False for any other object.

    The key `affinity` of its calls must then be the name of the model: `options(handle, affinity=name)`.
    """
    return isinstance(handle, Handle) and has_loader(deployment_of(handle).cls)


def _handle(value: object, usage: str) -> Handle:
    if not isinstance(value, Handle):
        raise TypeError(f"{usage} takes a handle, not {value!r}")
    return value


@lru_cache(maxsize=1024)  # because `options` often creates a handle for a single call
def _kind(cls: type, name: str) -> Kind:
    """Return the kind of a method. Raise `AttributeError` if callers may not call it."""
    if name.startswith("_"):
        raise AttributeError(f"{cls.__name__}.{name} is private; callers can call public methods only")
    if isinstance(inspect.getattr_static(cls, name, None), classmethod):
        raise AttributeError(f"{cls.__name__}.{name} is a class method, which needs no replica: call it on the class")
    method = getattr(cls, name, None)
    if _is_method(method):
        return kind_of(cast(Callable[..., Any], method))
    if hasattr(cls, name):
        raise AttributeError(f"{cls.__name__}.{name} is not a method; a handle has only methods")
    near = " or ".join(get_close_matches(name, methods_of(cls)))
    raise AttributeError(f"{cls.__name__} has no method {name!r}" + (f"; did you mean {near}?" if near else ""))


def methods_of(cls: type) -> dict[str, Kind]:
    """Return the methods that callers may call, with their kinds."""
    public = {name: getattr(cls, name, None) for name in dir(cls) if not name.startswith("_")}
    return {
        name: kind_of(cast(Callable[..., Any], method))
        for name, method in public.items()
        if _is_method(method) and not isinstance(inspect.getattr_static(cls, name), classmethod)
    }


def _is_method(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


class Method:
    """One method of a handle."""

    def __init__(self, deployment: Callee, name: str, kind: Kind, options: CallOptions) -> None:
        self.deployment = deployment
        self.name = name
        self.kind = kind
        self._timeout_s = options.timeout_s
        self._retry = options.retry
        self._affinity = options.affinity
        self._shard_key = options.shard_key
        self._called = f"{deployment.cls.__name__}.{name}"

    def __repr__(self) -> str:
        return f"<{self._called} of {self.deployment.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call(args, kwargs)
        if self.kind == "coroutine":
            coroutine: Any = self.result(call)
            coroutine.__qualname__ = self._called  # shown in "was never awaited" warnings and in the repr of tasks
            return coroutine
        if self.kind == "stream":
            return self._items(call)
        if running_loop() is not None:
            what, way = ("", "await ") if self.kind == "sync" else (" that yields", "async for ... in ")
            raise TypeError(
                f"{self.deployment.cls.__name__}.{self.name} is a `def` method{what}, which would block the event loop "
                f"that runs here: {way}remote(model.{self.name}, ...)"
            )
        if self.kind == "sync":
            return CallFuture(self, call).result()
        return self._sync_items(call)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, suffix: str = "") -> Call:
        shard_key = self._shard_key or SHARD_KEY.get()
        return Call(
            self.name + suffix,
            args,
            kwargs,
            self._timeout_s,
            self._retry,
            self._affinity,
            shard_key,
            yields=self.kind in STREAMS,
        )

    def client(self, call: Call) -> DeploymentClient:
        return data_plane().client_of(self.deployment, call.shard_key)

    async def result(self, call: Call) -> Any:
        """Return the result of the method. Can be awaited on any event loop."""
        call = await resolved(call)
        client = self.client(call)
        if client.loop is asyncio.get_running_loop():
            return await client.call(call)
        return await asyncio.wrap_future(submit(client.loop, client.call, call))

    async def fetch(self, call: Call) -> Any:
        """Like `result`, but return a value that arrives as bytes as `EncodedValue`."""
        call = await resolved(call)
        client = self.client(call)
        if client.loop is asyncio.get_running_loop():
            return await client.fetch(call)
        return await asyncio.wrap_future(submit(client.loop, client.fetch, call))

    async def _items(self, call: Call) -> AsyncGenerator[Any, None]:
        call = await resolved(call)
        client = self.client(call)
        if client.loop is asyncio.get_running_loop():
            async with _closing_once(client.stream(call)) as items:
                read_stream = ReadStream(partial(_close, items))
                with _among_read_streams(read_stream):
                    read_stream.reader = asyncio.current_task()
                    async for item in items:
                        yield item
                        read_stream.reader = asyncio.current_task()
        else:
            async with aclosing(Stream[Any](self, call)) as stream:
                async for item in stream:
                    yield item

    def _sync_items(self, call: Call) -> Generator[Any, None, None]:
        yield from Stream[Any](self, call)  # closed when this generator is garbage-collected


@contextmanager
def _among_read_streams(read_stream: ReadStream) -> Iterator[None]:
    """Register a stream with the request that is being served, if any. The request closes it at its end."""
    read_streams = READ_STREAMS.get()
    if read_streams is None:
        yield
        return
    read_streams.add(read_stream)
    try:
        yield
    finally:
        read_streams.discard(read_stream)


@asynccontextmanager
async def _closing_once(items: AsyncGenerator[Any, None]) -> AsyncGenerator[AsyncGenerator[Any, None], None]:
    """Close a stream at the end of the block, unless its request closes it already."""
    try:
        yield items
    finally:
        if not getattr(items, "ag_running", False):
            await items.aclose()


def _close(items: AsyncGenerator[Any, None]) -> None:
    closing = asyncio.get_running_loop().create_task(items.aclose())
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    closing.add_done_callback(_retrieve)


_closing: set[asyncio.Task[None]] = set()
"""References to running tasks, because an event loop holds only weak ones."""


# A method that yields also matches the overloads for a result (an iterator). Type checkers use the first match.
@overload
def remote(  # type: ignore[overload-overlap]
    method: Callable[P, AsyncIterable[R]], *args: P.args, **kwargs: P.kwargs
) -> "Stream[R]": ...
@overload
def remote(method: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> "CallFuture[R]": ...
@overload
def remote(  # type: ignore[overload-overlap]
    method: Callable[P, Iterator[R]], *args: P.args, **kwargs: P.kwargs
) -> "Stream[R]": ...
@overload
def remote(method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "CallFuture[R]": ...
def remote(method: Any, *args: Any, **kwargs: Any) -> Any:
    """Start a call of a method and return at once: `remote(model.predict, x)`.

    Works for all kinds of methods, in event loops and in threads. If an argument is a `CallFuture`, the call is sent
    once that future has its result, and only the called replica unpickles the result.

    Parameters:
        method: A method of a handle.
        *args: Positional arguments of the method.
        **kwargs: Keyword arguments of the method.

    Returns:
        A `Stream` if the method yields, else a `CallFuture`.

    Raises:
        TypeError: `method` is not a method of a handle.
    """
    if not isinstance(method, Method):
        raise TypeError(f"remote() takes a method of a handle, as in remote(model.predict, x), not {method!r}")
    call = method.call(args, kwargs)
    return Stream(method, call) if method.kind in STREAMS else CallFuture(method, call)


@overload
async def call_many(method: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], /) -> list[R]: ...
@overload
async def call_many(
    method: Callable[..., Coroutine[Any, Any, R]], first: Sequence[Any], second: Sequence[Any], /, *lists: Sequence[Any]
) -> list[R]: ...
async def call_many(method: Any, /, *lists: Sequence[Any]) -> list[Any]:
    """Call a `@batch` method with many items in one call: `await call_many(encoder.embed, texts)`.

    Each item joins a batch as if it had been called alone, also with items of other callers. The call is one request
    at one replica, and counts once against its limits. If an item fails, the call raises the exception of the first
    such item, and those of its items that no batch has taken are dropped.

    Parameters:
        method: A `@batch` method of a handle or of an object, or a `@batch` function. It must not yield.
        *lists: One list for each parameter, with at most 10,000 items.

    Returns:
        The results, in the order of the items.

    Raises:
        BatchError: The lists have different lengths, or too many items.
        TypeError: `method` is not a `@batch` method, or it yields.
    """
    is_remote = isinstance(method, Method)
    many = many_of(getattr(method.deployment.cls, method.name, None) if is_remote else method)
    if many is None or not lists:
        raise TypeError(f"call_many() takes a @batch method that does not yield, and its lists, not {method!r}")
    if not is_remote:
        return cast(list[Any], await many(*lists))
    return cast(list[Any], await method.result(method.call(lists, {}, suffix=MANY)))


async def resolved(call: Call) -> Call:
    """Wait for the arguments that are responses, and return the call with their (encoded) results instead."""
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, CallFuture):
            break
    else:
        return call
    args = [await value.encoded() if isinstance(value, CallFuture) else value for value in call.args]
    kwargs = {
        name: await value.encoded() if isinstance(value, CallFuture) else value for name, value in call.kwargs.items()
    }
    return replace(call, args=tuple(args), kwargs=kwargs, passes_on=True)


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def submit(
    loop: asyncio.AbstractEventLoop, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
) -> "Future[R]":
    """Run a coroutine function on the event loop of another thread, in a copy of the current context.

    If the returned future is cancelled, the coroutine is cancelled. Raises `NoReplica` if the loop is closed.
    """
    run = _run_without_exception_log(work, *args, **kwargs)
    try:
        return asyncio.run_coroutine_threadsafe(run, loop)
    except RuntimeError:  # the loop is closed
        run.close()
        raise NoReplica(ENDED) from None


async def _run_without_exception_log(work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    # If the future is cancelled, no code retrieves an exception that the task raises during its cancellation.
    task = asyncio.current_task()
    assert task is not None, "a coroutine on an event loop has a task"
    task.add_done_callback(_retrieve)
    return await work(*args, **kwargs)


async def _follow(task: "asyncio.Task[R]") -> R:
    return await task


def _retrieve(task: "asyncio.Task[Any]") -> None:
    # This prevents asyncio's log message "Task exception was never retrieved".
    if not task.cancelled():
        task.exception()


class CallFuture(Generic[R]):
    """The result of an in-flight call: `await` it, or wait in a thread with `result()`.

    A response can be awaited more than once. If a task that awaits it is cancelled, the call is cancelled. The call is
    also cancelled if the response is garbage-collected or if its event loop ends.
    """

    def __init__(self, method: Method, call: Call) -> None:
        self._method = method
        loop = running_loop()
        self._work: asyncio.Task[Any] | Future[Any]
        #: The unpickled result, once it was requested in this process.
        self._opened: tuple[R] | None = None
        if loop is None:
            self._work = submit(method.client(call).loop, method.fetch, call)
        else:
            self._work = loop.create_task(method.fetch(call))
            self._work.add_done_callback(_retrieve)

    def __repr__(self) -> str:
        return f"<CallFuture of {self._method!r}: {'done' if self._work.done() else 'under way'}>"

    def __await__(self) -> Generator[Any, None, R]:
        # A generator, because its frame holds a reference to the response while the response is awaited.
        return self._open((yield from self.encoded().__await__()))

    async def encoded(self) -> Any:
        """Return the result for use as an argument of another call. It is `EncodedValue` if it arrived as bytes."""
        work = self._work
        if isinstance(work, asyncio.Task):
            if work.get_loop() is asyncio.get_running_loop():
                return await work
            work = submit(work.get_loop(), _follow, work)
        return await asyncio.wrap_future(work)

    def _open(self, found: Any) -> R:
        if type(found) is not EncodedValue:
            return cast(R, found)
        if self._opened is None:
            self._opened = (found.open(),)
        return self._opened[0]

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the result in a thread.

        Parameters:
            timeout_s: Seconds to wait. The call continues after a timeout. Default: None, no limit.

        Raises:
            TimeoutError: The result did not arrive in time.
            RuntimeError: An event loop runs in this thread, and waiting would block it.
        """
        _refuse_in_a_loop("response.result()", "await response")
        work = self._work
        if isinstance(work, asyncio.Task):
            work = submit(work.get_loop(), _follow, work)
        try:
            return self._open(work.result(timeout_s))
        except TimeoutError:
            if work.done():
                raise
            raise TimeoutError(f"{self._method!r} gave no result within {timeout_s:g} s") from None

    def cancel(self) -> None:
        """Cancel the call. A task that awaits it gets `CancelledError`. Thread-safe."""
        work = self._work
        if work.done():
            return
        if isinstance(work, Future):
            work.cancel()
            return
        with suppress(RuntimeError):  # the loop is closed, and the call ended with it
            work.get_loop().call_soon_threadsafe(work.cancel)

    def later(self) -> R:
        """The response itself, typed as its result: pass it as an argument of another call."""
        return cast(R, self)

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self.cancel()


def _refuse_in_a_loop(what: str, way: str) -> None:
    if running_loop() is not None:
        raise RuntimeError(f"{what} would block the event loop that runs here: {way}")


class Stream(Generic[R]):
    """The items that a method yields: use `async for` in event loops and `for` in threads.

    The method starts at once and is at most one item ahead of its reader. `aclose()` and `cancel()` close it, and so
    does garbage collection of the stream.
    """

    def __init__(self, method: Method, call: Call) -> None:
        self._method = method
        self._relay = _Relay(method, call)
        self._relay.begin()

    def __repr__(self) -> str:
        return f"<Stream of {self._method!r}>"

    def __aiter__(self) -> "Stream[R]":
        return self

    async def __anext__(self) -> R:
        relay = self._relay
        if relay.loop is asyncio.get_running_loop():
            relay.read_stream.reader = asyncio.current_task()
            item = await relay.next()
        else:
            item = await asyncio.wrap_future(submit(relay.loop, relay.next))
        if item is None:
            raise StopAsyncIteration
        return cast(R, item[0])

    def __iter__(self) -> "Stream[R]":
        return self

    def __next__(self) -> R:
        _refuse_in_a_loop("for", "async for")
        self._relay.read_stream.reader = thread_work()
        item = submit(self._relay.loop, self._relay.next).result()
        if item is None:
            raise StopIteration
        return cast(R, item[0])

    def cancel(self) -> None:
        """Close the method. A task that waits for an item gets `CancelledError`. Thread-safe."""
        self._relay.cancel()

    async def aclose(self) -> None:
        """Close the method, and wait until it is closed."""
        relay = self._relay
        if relay.loop is asyncio.get_running_loop():
            await relay.aclose()
        else:
            await asyncio.wrap_future(submit(relay.loop, relay.aclose))

    def __del__(self) -> None:
        if hasattr(self, "_relay"):
            self._relay.cancel()


class _Relay:
    """The part of a stream that runs on the event loop of its caller.

    A single task iterates over the generator, because context variables and timeouts in it require that.
    """

    def __init__(self, method: Method, call: Call) -> None:
        self._client = method.client(call)
        self._call = call
        self.loop = self._client.loop
        self._asked = asyncio.Semaphore(0)
        # Holds at most the requested items and a None for the end.
        self._found: asyncio.Queue[tuple[Any] | None] = asyncio.Queue()
        self._steps: asyncio.Task[None] | None = None
        self.read_stream = ReadStream(self.cancel)

    def begin(self) -> None:
        if self.loop is running_loop():
            self._begin()
            return
        context = copy_context()
        context.run(THREAD_WORK.set, None)  # the copied context must not keep the object alive
        try:
            self.loop.call_soon_threadsafe(self._begin, context=context)
        except RuntimeError:  # the loop is closed
            raise NoReplica(ENDED) from None

    def _begin(self) -> None:
        self._steps = self.loop.create_task(self._step())
        self._steps.add_done_callback(self._ended)

    async def _step(self) -> None:
        with _among_read_streams(self.read_stream):
            async with aclosing(self._client.stream(await resolved(self._call))) as items:
                async for item in items:
                    await self._asked.acquire()
                    self._found.put_nowait((item,))

    def _ended(self, steps: "asyncio.Task[None]") -> None:
        _retrieve(steps)
        self._found.put_nowait(None)

    async def next(self) -> tuple[Any] | None:
        """Return the next item in a tuple, or None at the end. Raise the exception that the method raised, if any."""
        self._asked.release()
        item = await self._found.get()
        if item is None:
            self._found.put_nowait(None)  # for another call of `next`
            assert self._steps is not None, "what has not begun has not ended"
            self._steps.result()
        return item

    def cancel(self) -> None:
        if self._steps is not None and self._steps.done():
            return
        with suppress(RuntimeError):  # the loop is closed, and the stream ended with it
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._steps is not None:
            self._steps.cancel()

    async def aclose(self) -> None:
        self._cancel()
        if self._steps is not None:
            await asyncio.wait((self._steps,))
