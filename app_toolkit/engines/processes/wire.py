"""Calls between the processes of an instance, over Unix sockets in a folder that only this user can open.

A call is one frame: its number, a method and its arguments. The answer is a frame with the same number. Frames are
pickled, so each side checks the user of the other side before it reads the first one. A connection carries several
calls at the same time.

`call` and `call_all` block. `Peer` and `serve` belong to an event loop. `Server` runs on a thread without one.
"""

import asyncio
import itertools
import os
import pickle
import selectors
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

from app_toolkit.transport.sockets import CREDENTIALS, check_peer, close_in_children

HEAD = struct.Struct("!IQ")
"""Before each frame: its size in bytes without this head, and the number of the call."""

MOST_BYTES = 1024 * 1024 * 1024
"""Maximum size of one frame in bytes. The largest ones contain the files of an application."""

CHUNK = 1024 * 1024
"""Bytes that are read at once."""

BACKLOG = 512
"""Connections that may wait until a process accepts them."""

SEND_S = 5.0
"""Seconds that the caller may take to read an answer of a `Server`. Then its connection is closed."""

LONGEST_PATH = 107
"""The longest path of a Unix socket in bytes."""

CONNECT_S = 10.0
"""Seconds that a process may take to accept a connection."""


class PeerGone(ConnectionError):
    """The process at the other end has ended, or does not listen."""


def _frame(number: int, value: Any) -> bytes:
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message between two processes has {len(body)} bytes, and may have {MOST_BYTES}")
    return HEAD.pack(len(body), number) + body


def _answer(number: int, value: Any) -> bytes:
    return _frame(number, (True, value))


def _failure(number: int, error: BaseException) -> bytes:
    try:
        return _frame(number, (False, error))
    except Exception:  # an error of user code, whose class cannot be pickled
        return _frame(number, (False, RuntimeError(f"{type(error).__name__}: {error}")))


class _Frames:
    """Finds the frames in the bytes that a connection receives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value of each frame that is complete."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEAD.size:
            size, number = HEAD.unpack_from(buffer)
            if size > MOST_BYTES:
                raise PeerGone(f"a message has {size} bytes, and may have {MOST_BYTES}")
            end = HEAD.size + size
            if len(buffer) < end:
                return
            value = pickle.loads(memoryview(buffer)[HEAD.size : end])
            del buffer[:end]
            yield number, value


# Blocking callers


def call(path: str, method: str, *args: Any, timeout_s: float | None = None) -> Any:
    """Call a method of the process that listens at `path`, and return its result.

    `timeout_s`: seconds that the process may take to answer; None: no limit.

    Raises what the method raised, `PeerGone` if the process does not listen or ends, and `TimeoutError`.
    """
    with _Call(path, method, args) as pending:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not pending.is_answered:
            pending.read(None if until is None else until - time.monotonic())
        return pending.result()


def call_all(calls: Mapping[str, tuple[str, str, tuple[Any, ...]]], timeout_s: float) -> dict[str, Any]:
    """Call several processes at the same time. Return the results that arrive within `timeout_s` seconds, by key.

    `calls`: the path, the method and the arguments of each call. A call that raises an error has no result.
    """
    until = time.monotonic() + timeout_s
    results: dict[str, Any] = {}
    with selectors.DefaultSelector() as selector:
        for key, (path, method, args) in calls.items():
            with suppress(OSError):
                selector.register(_Call(path, method, args), selectors.EVENT_READ, key)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for ready, _ in selector.select(left):
                pending: Any = ready.fileobj
                try:
                    pending.read(0)
                    if not pending.is_answered:
                        continue
                    results[ready.data] = pending.result()
                except Exception:  # an error of the method, or of the connection
                    pass
                selector.unregister(pending)
                pending.close()
        for ready in list(selector.get_map().values()):
            unanswered: Any = ready.fileobj
            unanswered.close()
    return results


class _Call:
    """One call on a connection of its own."""

    def __init__(self, path: str, method: str, args: tuple[Any, ...]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._frames = _Frames()
        self._result: tuple[bool, Any] | None = None
        try:
            self._socket.settimeout(CONNECT_S)
            with _address(path) as address:
                self._socket.connect(address)
            check_peer(self._socket)
            close_in_children(self._socket)
            self._socket.sendall(_frame(1, (method, args)))
        except OSError as error:
            self._socket.close()
            raise PeerGone(f"no process answers at {path}: {error}") from None
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_answered(self) -> bool:
        return self._result is not None

    def read(self, timeout_s: float | None) -> None:
        """Read what has arrived. Wait for it at most `timeout_s` seconds; None: as long as it takes."""
        self._socket.settimeout(None if timeout_s is None else max(timeout_s, 0.001))
        try:
            data = self._socket.recv(CHUNK)
        except TimeoutError:
            raise
        except OSError as error:
            raise PeerGone(f"the process has ended: {error}") from None
        if not data:
            raise PeerGone("the process has ended")
        for _, result in self._frames.feed(data):
            self._result = result

    def result(self) -> Any:
        assert self._result is not None
        succeeded, value = self._result
        if not succeeded:
            raise value
        return value

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Event loops


class _Connection(asyncio.Protocol):
    def __init__(self, received: Callable[["_Connection", int, Any], None], lost: Callable[["_Connection"], None]):
        self._received, self._lost = received, lost
        self._frames = _Frames()
        self.transport: asyncio.Transport
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # that of uvloop has another base class
        close_in_children(transport)
        try:
            check_peer(transport.get_extra_info("socket"))
        except PermissionError:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            for number, value in self._frames.feed(data):
                self._received(self, number, value)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)


class Peer:
    """Calls another process from one event loop. It connects with the first call, and again when it is disconnected."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method, and return its result. Raises what it raised, and `PeerGone`."""
        async with self._connecting:
            connection = self._connection or await self._connect()
        number = next(self._numbers)
        answered = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            connection.transport.write(_frame(number, (method, args)))
            return await answered
        finally:
            self._open.pop(number, None)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            with _address(self._path) as address:
                _, connection = await loop.create_unix_connection(
                    partial(_Connection, self._received, self._lost), address
                )
        except OSError as error:
            raise PeerGone(f"no process answers at {self._path}: {error}") from None
        if connection.transport.is_closing():
            raise PeerGone(f"another user listens at {self._path}")
        self._connection = connection
        return connection

    def _received(self, connection: _Connection, number: int, result: tuple[bool, Any]) -> None:
        answered = self._open.get(number)
        if answered is not None and not answered.done():
            succeeded, value = result
            if succeeded:
                answered.set_result(value)
            else:
                answered.set_exception(value)

    def _lost(self, connection: _Connection) -> None:
        self._connection = None
        for answered in self._open.values():
            if not answered.done():
                answered.set_exception(PeerGone(f"the process at {self._path} has ended"))

    def close(self) -> None:
        """Disconnect. Open calls raise `PeerGone`."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def aclose(self) -> None:
        """Disconnect, and wait for that."""
        self.close()
        while self._connection is not None:  # noqa: ASYNC110 - the next iteration of the event loop closes it
            await asyncio.sleep(0)


async def serve(listener: socket.socket, answer: Callable[[str, tuple[Any, ...]], Awaitable[Any]]) -> asyncio.Server:
    """Answer calls on this event loop, each in a task. A task is cancelled if its caller disconnects."""
    loop = asyncio.get_running_loop()

    async def perform(connection: _Connection, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            frame = _answer(number, await answer(method, args))
        except Exception as error:
            frame = _failure(number, error)
        connection.transport.write(frame)

    def received(connection: _Connection, number: int, order: tuple[str, tuple[Any, ...]]) -> None:
        task = loop.create_task(perform(connection, number, *order))
        connection.tasks.add(task)
        task.add_done_callback(connection.tasks.discard)

    def lost(connection: _Connection) -> None:
        for task in connection.tasks:
            task.cancel()

    return await loop.create_unix_server(partial(_Connection, received, lost), sock=listener)


# Threads without an event loop


class Request:
    """One call that a `Server` has received. `answer` or `fail` is called once, on any thread."""

    def __init__(self, caller: "_Caller", number: int, method: str, args: tuple[Any, ...]) -> None:
        self._caller, self._number = caller, number
        self.method, self.args = method, args

    @property
    def pid(self) -> int:
        """The process that calls."""
        return self._caller.pid

    def answer(self, value: Any = None) -> None:
        try:
            frame = _answer(self._number, value)
        except Exception as error:
            frame = _failure(self._number, error)
        self._caller.send(frame)

    def fail(self, error: BaseException) -> None:
        self._caller.send(_failure(self._number, error))

    def perform(self, function: Callable[..., Any]) -> None:
        """Answer with the result of a function with the arguments of the call, or with the error that it raises."""
        try:
            result = function(*self.args)
        except Exception as error:
            self.fail(error)
        else:
            self.answer(result)


class _Caller:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames = _Frames()
        self.pid: int = CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        )[0]
        self._lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        with self._lock, suppress(OSError):  # the caller has left
            try:
                self.connection.sendall(frame)
            except TimeoutError:  # a part of the frame may have been sent
                self.connection.shutdown(socket.SHUT_RDWR)


class Server:
    """Receives calls on the thread that runs it. Python's signal handlers run meanwhile, if it is the main thread."""

    def __init__(self, listener: socket.socket, received: Callable[[Request], None]) -> None:
        """`received` is called for each call, on the thread that runs the server."""
        self._received = received
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        close_in_children(self._selector)

    def watch(self, file: socket.socket, readable: Callable[[], None]) -> None:
        """Also call a function when this socket has something to read."""
        self._selector.register(file, selectors.EVENT_READ, readable)

    def unwatch(self, file: socket.socket) -> None:
        """Undo `watch`."""
        self._selector.unregister(file)

    def run_once(self, timeout_s: float | None = None) -> None:
        """Wait at most `timeout_s` seconds for calls, and receive those that have arrived. None: no limit."""
        for ready, _ in self._selector.select(timeout_s):
            ready.data()

    def close(self) -> None:
        """Close the listener and all connections."""
        for ready in list(self._selector.get_map().values()):
            cast(socket.socket, ready.fileobj).close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has left already, or this process has no free descriptor
            return
        connection.settimeout(SEND_S)
        close_in_children(connection)
        try:
            check_peer(connection)
            caller = _Caller(connection)
        except OSError:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, partial(self._read, caller))

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(CHUNK)
            if not data:
                raise PeerGone("the caller has left")
            for number, (method, args) in caller.frames.feed(data):
                self._received(Request(caller, number, method, args))
        except OSError:
            self._selector.unregister(caller.connection)
            caller.connection.close()


def listen(path: str) -> socket.socket:
    """Listen at a path for calls. It is made anew, if it exists."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        with _address(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def _address(path: str) -> Iterator[str]:
    """Yield a path of a socket that is short enough for the kernel. It is valid until the end of the block."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield path
        return
    folder, name = os.path.split(path)
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)
