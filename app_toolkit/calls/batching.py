"""`@batch`: a function that works on lists, and that its callers call with one item each.

An item waits in a buffer until its batch closes, as `userapp/batch.py` decides. The caller waits for the entry of the
result that belongs to its item. There is one buffer for each event loop and each replica that runs the function, or
each instance if the function is a method. A buffer exists only while an item waits or a batch runs, so it does not keep
the event loop or the instance alive.
"""

import asyncio
import functools
import inspect
import operator
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import aclosing
from contextvars import Context
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakValueDictionary

from app_toolkit.calls.signatures import shape_of
from app_toolkit.calls.threads import threads_of
from app_toolkit.contract.methods import TAKES_MANY
from app_toolkit.errors import BatchError, ConfigError
from app_toolkit.observability.context import REPLICA, REQUEST_IDS, request_id
from app_toolkit.observability.counts import BatchCounts
from app_toolkit.observability.tracing import batch_span, current_span
from app_toolkit.userapp.batch import BatchSettings, Buffer, OverriddenBatch, is_batched

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")

AHEAD = 64
"""Entries of a stream that one caller may leave unread. A batch continues when every caller has fewer."""

MARK = "__app_toolkit_batch__"
SIZED = "__app_toolkit_batch_sized__"

MAX_ITEMS = 10_000
"""The maximum number of items of one call."""

NOTHING: Mapping[str, float] = {}


def batch_request_ids() -> tuple[str | None, ...]:
    """Within a batch: the request id of each item, in the order of the items. Outside of a batch: an empty tuple."""
    return REQUEST_IDS.get()


class Batched(Protocol[P, R_co]):
    """A batch function as its callers see it: they call it with one item."""

    @property
    def batch(self) -> BatchSettings: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class BatchedMethod(Protocol[S_contra, P, R_co]):
    """A batch method as an attribute of its class."""

    @property
    def batch(self) -> BatchSettings: ...

    def __call__(self, instance: S_contra, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Batched[Concatenate[S_contra, P], R_co]: ...

    @overload
    def __get__(self, instance: S_contra, owner: type | None = None, /) -> Batched[P, R_co]: ...


ResultCoroutine = Coroutine[Any, Any, R]
Result = Awaitable[Sequence[R | Exception]] | Sequence[R | Exception]
Stream = AsyncIterator[R]
Steps = AsyncIterator[Sequence[R | Exception | None]]


class Decorator(Protocol):
    """The decorator that `batch(...)` returns.

    Type checkers follow the parameters of functions with up to two lists. With more parameters they check only the
    result.
    """

    @overload
    def __call__(self, function: Callable[[list[A]], Steps[R]], /) -> Batched[[A], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B]], Steps[R]], /) -> Batched[[A, B], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A]], Steps[R]], /) -> BatchedMethod[S, [A], Stream[R]]: ...
    @overload
    def __call__(
        self, function: Callable[[S, list[A], list[B]], Steps[R]], /
    ) -> BatchedMethod[S, [A, B], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A]], Result[R]], /) -> Batched[[A], ResultCoroutine[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B]], Result[R]], /) -> Batched[[A, B], ResultCoroutine[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A]], Result[R]], /) -> BatchedMethod[S, [A], ResultCoroutine[R]]: ...
    @overload
    def __call__(
        self, function: Callable[[S, list[A], list[B]], Result[R]], /
    ) -> BatchedMethod[S, [A, B], ResultCoroutine[R]]: ...
    @overload
    def __call__(self, function: Callable[..., Steps[R]], /) -> Batched[..., Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[..., Result[R]], /) -> Batched[..., ResultCoroutine[R]]: ...


def batch(
    *,
    max_batch_size: int = 8,
    batch_wait_timeout_s: float = 0.01,
    max_concurrent_batches: int = 1,
    size_fn: Callable[..., int] | None = None,
) -> Decorator:
    """Call a function that works on lists with one item at a time. Put this below the decorator of a route.

    Callers see the signature for one item: each parameter, and the result, has one `list` less. All items share a bound
    deployment. An exception in the returned list is raised for its item. An async generator yields lists with one entry
    for each item; None is skipped. A `def` function runs in a thread, a `def` method in a thread of its object.

    The limits can be changed later, on the decorated function: `f.batch.max_batch_size = 16`. Limits of a method apply
    to all objects of its class.

    Parameters:
        max_batch_size: Items in one batch, or the sum of their sizes. Default: 8.
        batch_wait_timeout_s: Seconds that the first item of a batch waits for others. Default: 0.01.
        max_concurrent_batches: Batches that run at the same time. Default: 1.
        size_fn: Function that returns the size of an item from the arguments of its caller, as a whole number of 0 or
            more. Default: None, each item has size 1.

    Raises:
        ConfigError: A limit is out of bounds, or a parameter or the result is not a list.
    """
    limits = BatchSettings(max_batch_size, batch_wait_timeout_s, max_concurrent_batches)

    def decorate(function: Callable[..., Any]) -> Any:
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"@batch: {function!r} must be an `async def` or a `def` function that does not yield")
        return _batching_wrapper(Batching(function, replace(limits), size_fn))

    return decorate


def slots_for(function: Callable[..., Any], given: Mapping[str, float] = NOTHING) -> int:
    """Return how many calls a replica must run at a time for full batches of this function; 0: it has no batches.

    `given`: the limits that override those of the function. If the function has a `size_fn`, the number of items that
    fill a batch is not known, and the result is 1.
    """
    if not is_batched(function):
        return 0
    limits = OverriddenBatch(cast(Batched[..., Any], function).batch, given)
    return 1 if getattr(function, SIZED) else limits.max_batch_size * limits.max_concurrent_batches


def override(owner: object, given: Mapping[str, Mapping[str, float]]) -> None:
    """Override the limits of an owner's batch functions until `forget`. `given` has the limits by function name.

    `owner`: the object that has the methods, or the `ReplicaContext` of the ingress that has the endpoints. If one of
    the functions has been called already, call this on the event loop that the functions run on.
    """
    _OVERRIDES[id(owner)] = given
    for reference in BATCHES.valuerefs():
        batches = reference()
        if batches is not None and batches.owner is owner:
            batches.look_up_limits()


def forget(owner: object) -> None:
    """Remove the overrides of an owner that has ended: the limits of the functions themselves apply again."""
    _OVERRIDES.pop(id(owner), None)


_OVERRIDES: dict[int, Mapping[str, Mapping[str, float]]] = {}
"""The overrides by the id of the owner, until `forget`."""


def buffered() -> int:
    """Return the number of items in this process that no batch has taken yet. Safe from any thread."""
    batches = [reference() for reference in BATCHES.valuerefs()]
    return sum(len(items) for items in batches if items is not None)


def is_raw(endpoint: Callable[..., Any]) -> bool:
    """Return whether `@batch` stands above the decorator that registered this function as a route.

    Such a route would call the function with one item, and the function expects lists.
    """
    return MARK in getattr(endpoint, "__dict__", {})


def _batching_wrapper(batching: "Batching") -> Callable[..., Any]:
    """Return the function that callers see."""

    async def single(*args: Any, **kwargs: Any) -> Any:
        item = batching.enter(args, kwargs)
        try:
            while not item.over:
                await item.wait()
        except asyncio.CancelledError:
            await leave([item])
            raise
        return item.outcome()

    async def many(*args: Any) -> list[Any]:
        items: list[Item] = []
        try:
            for values in batching.items(args):
                items.append(batching.enter(values, NOTHING))
            results = []
            for item in items:
                while not item.over:
                    await item.wait()
                results.append(item.outcome())
            return results
        finally:
            await leave(items)

    async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        item = batching.enter(args, kwargs)
        try:
            while not item.over or item.steps:
                while item.steps:
                    yield item.step()
                if not item.over:
                    await item.wait()
        finally:
            await leave([item])
        item.outcome()

    function, shape = batching.function, batching.shape
    seen: Any = functools.wraps(function)(stream if batching.streams else single)
    seen.__signature__ = shape.seen
    seen.__annotations__ = {p.name: p.annotation for p in shape.seen.parameters.values() if p.annotation is not p.empty}
    if shape.seen.return_annotation is not inspect.Signature.empty:
        seen.__annotations__["return"] = shape.seen.return_annotation
    seen.batch = batching.limits
    setattr(seen, SIZED, batching.size_fn is not None)
    if not batching.streams:
        setattr(seen, TAKES_MANY, many)
    setattr(function, MARK, True)
    return cast(Callable[..., Any], seen)


class Item:
    """The part of one caller in a batch: its arguments and its result."""

    __slots__ = ("added", "batch", "buffer", "error", "news", "over", "request_id", "result", "span", "steps", "values")

    def __init__(self, buffer: "Batches", values: tuple[Any, ...]) -> None:
        self.buffer = buffer
        self.values = values
        self.request_id = request_id()
        self.span = current_span()
        self.added = 0.0
        """When it was added to the buffer, on the clock of the event loop."""
        self.batch: Batch | None = None
        """The batch that has taken the item; None: it waits in the buffer."""
        self.news: asyncio.Future[None] | None = None
        """The future that the caller waits for."""
        self.steps: list[Any] = []
        """Of a stream: the entries that the caller has not read yet, at most `AHEAD`."""
        self.result: Any = None
        self.error: Exception | None = None
        self.over = False
        """Whether the item has its result, or its caller no longer waits."""

    # For the item's caller

    @property
    def leaving(self) -> bool:
        """Whether the caller was cancelled and has not run since."""
        return self.news is not None and self.news.cancelled()

    async def wait(self) -> None:
        """Wait for the result, or for the next entry of a stream."""
        self.news = self.buffer.loop.create_future()
        await self.news

    def step(self) -> Any:
        step = self.steps.pop(0)
        if self.batch is not None and len(self.steps) < AHEAD:
            self.batch.has_room()
        return step

    def outcome(self) -> Any:
        if self.error is None:
            return self.result
        try:
            raise self.error
        finally:
            self.error = None  # its traceback refers to the frame that refers to this item

    # For the item's batch

    def end(self, result: Any = None, error: Exception | None = None) -> None:
        if not self.over:
            self.result, self.error, self.over = result, error, True
            self.wake()

    def wake(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)


async def leave(items: Iterable[Item]) -> None:
    """Remove the items of one caller that have no result and whose batch has not begun. Wait for batches that have.

    The batch uses what belongs to the request (a session, an upload), and the request closes these when its handler
    ends. So the handler stays, and the request keeps its slot, as long as the batch runs. If no caller waits for a
    batch any more, it is cancelled, unless it runs in a thread.
    """
    left = [item for item in items if not item.over]
    for item in left:
        item.over = True
    for item in left:
        if item.batch is None:
            item.buffer.remove(item)
    for batch in dict.fromkeys([item.batch for item in left if item.batch is not None]):
        await batch.left()


class Batching:
    """One decorated function."""

    def __init__(self, function: Callable[..., Any], limits: BatchSettings, size_fn: Callable[..., int] | None) -> None:
        self.function = function
        self.limits = limits
        self.size_fn = size_fn
        self.streams = inspect.isasyncgenfunction(function)
        self.in_thread = not self.streams and not inspect.iscoroutinefunction(function)
        self.shape = shape_of(function, stream=self.streams)

    @property
    def name(self) -> str:
        return self.function.__qualname__

    def limits_for(self, owner: object) -> BatchSettings | OverriddenBatch:
        overrides = _OVERRIDES.get(id(owner))
        own_override = overrides.get(self.function.__name__) if overrides else None
        return OverriddenBatch(self.limits, own_override) if own_override else self.limits

    def enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Item:
        """Add the item of a call to its buffer. Raises what `size_fn` raises, and `TypeError` for wrong arguments."""
        instance = None
        if self.shape.has_self:
            if not args:
                raise TypeError(f"{self.name} is a method, and was called without an instance")
            instance, args = args[0], args[1:]
        values = self.shape.values(args, kwargs)
        size = 1 if self.size_fn is None else self._size(values)
        item = Item(self._batches(instance), values)
        item.buffer.add(item, size)
        return item

    def items(self, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Return the arguments of each item of a call that has a list for each parameter.

        Raises `BatchError` for lists of different lengths, or with more than `MAX_ITEMS` items.
        """
        instance, lists = (args[:1], args[1:]) if self.shape.has_self else ((), args)
        lengths = {len(values) for values in lists}
        if len(lengths) != 1:
            raise BatchError(f"{self.name} was called with lists of {sorted(lengths)} items: they must have as many")
        if (length := lengths.pop()) > MAX_ITEMS:
            raise BatchError(f"{self.name} was called with {length:,} items: one call has at most {MAX_ITEMS:,}")
        return ((*instance, *values) for values in zip(*lists, strict=True))

    def _size(self, values: tuple[Any, ...]) -> int:
        assert self.size_fn is not None
        size = self.size_fn(*self.shape.sized(values))
        try:
            number = operator.index(size)
        except TypeError:
            number = -1
        if number < 0:
            raise BatchError(f"size_fn of {self.name} returned {size!r}: it must be a whole number of 0 or more")
        return number

    def _batches(self, instance: object) -> "Batches":
        loop = asyncio.get_running_loop()
        owner = instance if self.shape.has_self else REPLICA.get()
        key = id(self), id(loop), id(owner)
        batches = BATCHES.get(key)
        if batches is None:
            batches = BATCHES[key] = Batches(self, loop, instance, owner)
        return batches


class Batches:
    """The items and batches of one function in one replica, or of one instance's method, on one event loop."""

    def __init__(self, batching: Batching, loop: asyncio.AbstractEventLoop, instance: object, owner: object) -> None:
        """`owner`: the instance of a method. Of a function: the context of the replica that runs it, or None."""
        self.batching = batching
        self.loop = loop
        self.hosted = instance
        self.owner = owner
        self.buffer: Buffer[Item] = Buffer(batching.limits_for(owner))
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return len(self.buffer.items)

    def __bool__(self) -> bool:
        return True

    def look_up_limits(self) -> None:
        """Apply limits that changed."""
        self.buffer.limits = self.batching.limits_for(self.owner)
        self._start_due_batches(self.loop.time())

    def add(self, item: Item, size: int) -> None:
        item.added = now = self.loop.time()
        self.buffer.add(item, size, now)
        self._start_due_batches(now)

    def remove(self, item: Item) -> None:
        self.buffer.remove(item)
        self._start_due_batches(self.loop.time())

    def ended(self) -> None:
        self.buffer.ended()
        self._start_due_batches(self.loop.time())

    def _start_due_batches(self, now: float) -> None:
        """Start the batches that are due, and set the timer for the next one."""
        while items := self.buffer.close(now):
            Batch(self, items)
        closes_at = self.buffer.closes_at
        if closes_at is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None or closes_at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(closes_at, self._wake, closes_at)

    def _wake(self, closes_at: float) -> None:
        self._timer = None
        self._start_due_batches(max(self.loop.time(), closes_at))  # a timer may fire slightly early by the loop's clock


BATCHES: WeakValueDictionary[tuple[int, int, int], Batches] = WeakValueDictionary()
"""By the ids of the function, the event loop and the owner.

Each entry refers to these three objects, so no other object can have one of the ids while the entry exists. Only the
items and the batches of an entry keep it alive.
"""


BATCH_COUNTS = BatchCounts()
"""The batches of this process that have ended."""


class Batch:
    """Items that run together."""

    def __init__(self, batches: Batches, items: list[Item]) -> None:
        self._batches = batches
        self._items = items
        self._room: asyncio.Future[None] | None = None
        """The future that a stream waits for while one of its callers has `AHEAD` unread entries."""
        self._begun = False
        for item in items:
            item.batch = self
        # Not in the context of the first or the last caller: the batch belongs to no single request.
        context = Context()
        context.run(REPLICA.set, REPLICA.get())
        self._task = batches.loop.create_task(self._run(), context=context)
        self._task.add_done_callback(self._ended)

    @property
    def _live(self) -> list[Item]:
        return [item for item in self._items if not item.over]

    def has_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def left(self) -> None:
        """Wait for the end of the batch after a caller has left, unless the batch has not begun."""
        if not self._begun:
            return
        self.has_room()
        if not self._batches.batching.in_thread and not self._live:
            self._task.cancel()
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                continue  # the caller is being cancelled already, and raises CancelledError at the end

    async def _run(self) -> None:
        self._begun = True
        began = self._batches.loop.time()
        for item in self._items:
            if item.over or item.leaving:
                item.batch = None
        self._items = [item for item in self._items if item.batch is self]
        if not self._items:
            return
        batching = self._batches.batching
        REQUEST_IDS.set(tuple([item.request_id for item in self._items]))
        args, kwargs = batching.shape.arguments([item.values for item in self._items])
        if batching.shape.has_self:
            args = [self._batches.hosted, *args]
        try:
            with batch_span(batching.name, [item.span for item in self._items]):
                if batching.streams:
                    await self._pass_on(batching.function(*args, **kwargs))
                elif batching.in_thread:
                    self._end_items(await self._in_thread(functools.partial(batching.function, *args, **kwargs)))
                else:
                    self._end_items(await batching.function(*args, **kwargs))
        except Exception as error:
            for item in self._live:
                item.end(error=_copy(error, batching.name))
        finally:
            waited_s, ran_s = began - self._items[0].added, self._batches.loop.time() - began
            BATCH_COUNTS.add(REPLICA.get(), batching.name, len(self._items), waited_s, ran_s)

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        threads = threads_of(self._batches.hosted)
        return await (asyncio.to_thread(function) if threads is None else threads.run(function))

    def _ended(self, task: asyncio.Task[None]) -> None:
        for item in self._live:
            item.end(error=BatchError(f"the batch of {self._batches.batching.name} was cancelled"))
        self._batches.ended()

    def _end_items(self, results: Any) -> None:
        for item, result in zip(self._items, self._checked(results), strict=True):
            if isinstance(result, Exception):
                item.end(error=_copy(result, self._batches.batching.name))
            else:
                item.end(result)

    async def _pass_on(self, steps: AsyncGenerator[Any, None]) -> None:
        async with aclosing(steps):
            async for step in steps:
                for item, entry in zip(self._items, self._checked(step), strict=True):
                    if item.over or entry is None:
                        continue
                    if isinstance(entry, Exception):
                        item.end(error=_copy(entry, self._batches.batching.name))
                    else:
                        item.steps.append(entry)
                        item.wake()
                while any(len(item.steps) >= AHEAD for item in self._live):
                    self._room = self._batches.loop.create_future()
                    await self._room
                if not self._live:
                    return
        for item in self._items:
            item.end()

    def _checked(self, results: Any) -> Iterable[Any]:
        """Return the results. Raises `BatchError` unless they have one entry for each item."""
        name, expected = self._batches.batching.name, len(self._items)
        if not isinstance(results, Sized) or isinstance(results, str | bytes | Mapping):
            raise BatchError(f"{name} returned {type(results).__name__} for {expected} items instead of a list")
        if len(results) != expected:
            raise BatchError(f"{name} received {expected} items and returned {len(results)} results")
        return cast(Iterable[Any], results)


def _copy(error: Exception, name: str) -> Exception:
    """Copy an error for one more caller. One object that several callers raise would collect all their tracebacks."""
    kind = type(error)
    # Created without the constructor, as `pickle` does: the constructor of a user's class may require any arguments.
    base: Any = next(base_type for base_type in kind.__mro__ if base_type.__module__ == "builtins")
    try:
        _, args, *state = base.__reduce__(error)
        copy = kind.__new__(kind, *args)
        base.__init__(copy, *args)
        for attribute in state:
            base.__setstate__(copy, attribute)
    except Exception:
        copy = BatchError(f"the batch of {name} failed with {kind.__name__}: {error}")
        copy.__cause__ = error
        return copy
    if hasattr(error, "__notes__"):
        copy.__notes__ = list(error.__notes__)
    copy.__cause__, copy.__context__ = error.__cause__, error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy.with_traceback(error.__traceback__)
