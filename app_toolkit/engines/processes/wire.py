"""Calls between the processes of an instance, over Unix sockets in a folder that only this user can open.

A call is one frame: its number, a method and its arguments. The answer is a frame with the same number. Frames are
pickled, so each side checks the user of the other side before it reads the first one. A connection carries several
calls at the same time.

`call` and `call_all` block. `Peer` and `serve` belong to an event loop. `Server` runs on a thread without one.
"""

import asyncio
import errno
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
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from app_toolkit.errors import ControlError
from app_toolkit.wire.sockets import CREDENTIALS, check_peer, close_in_children

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
"""Seconds for which a caller tries to connect to a process whose backlog is full."""

CONNECT_AGAIN_S = 0.02
"""Seconds between two of these attempts."""


ACCEPT_AGAIN_S = 0.1
"""Seconds until a `Server` accepts again after its process had no free descriptor or memory for a connection."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors of `accept` after which the connection still waits."""


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


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Takes the place of the value of a frame that cannot be unpickled, for example without a module."""

    error: Exception


class _Frames:
    """Finds the frames in the bytes that a connection receives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Any]]:
        """Yield the number and the value, which may be `_Unreadable`, of each frame that is complete."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEAD.size:
            size, number = HEAD.unpack_from(buffer)
            if size > MOST_BYTES:
                raise PeerGone(f"a message has {size} bytes, and may have {MOST_BYTES}")
            end = HEAD.size + size
            if len(buffer) < end:
                return
            with memoryview(buffer) as whole, whole[HEAD.size : end] as body:
                value = _load(body)
            del buffer[:end]
            yield number, value


def _load(body: memoryview) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # of a class of user code, or of a module that this process cannot import
        # The traceback would refer to the buffer, which changes.
        return _Unreadable(ControlError(f"a message cannot be read: {type(error).__name__}: {error}"))


def _result(value: Any) -> tuple[bool, Any]:
    """Return whether a call has succeeded, and its result or its error. `value`: that of a frame with an answer."""
    return (False, value.error) if isinstance(value, _Unreadable) else value


# Blocking callers


def call(path: str, method: str, *args: Any, timeout_s: float | None = None) -> Any:
    """Call a method of the process that listens at `path`, and return its result.

    `timeout_s`: seconds that the process may take to answer; None: no limit.

    Raises what the method raised, `PeerGone` if the process does not listen or ends, and `TimeoutError`, also if the
    process accepts no connection for `CONNECT_S`.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with Call(path, method, args, CONNECT_S if timeout_s is None else min(timeout_s, CONNECT_S)) as pending:
        while not pending.is_answered:
            pending.read(None if until is None else until - time.monotonic())
        return pending.result()


def call_all(calls: Mapping[str, tuple[str, str, tuple[Any, ...]]], timeout_s: float) -> dict[str, Any]:
    """Call several processes at the same time. Return the results that arrive within `timeout_s` seconds, by key.

    `calls`: the path, the method and the arguments of each call. A call that raises an error has no result, and so does
    one of a process whose backlog is full.
    """
    until = time.monotonic() + timeout_s
    results: dict[str, Any] = {}
    with selectors.DefaultSelector() as selector:
        for key, (path, method, args) in calls.items():
            with suppress(OSError):
                selector.register(Call(path, method, args, connect_s=0.0), selectors.EVENT_READ, key)
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


class Call:
    """One call on a connection of its own."""

    def __init__(self, path: str, method: str, args: tuple[Any, ...], connect_s: float = CONNECT_S) -> None:
        """Call a method of the process that listens at `path`. Raises `PeerGone` and `TimeoutError`.

        `connect_s`: seconds for which to try to connect.
        """
        self._socket = socket.socket(socket.AF_UNIX)
        self._frames = _Frames()
        self._result: tuple[bool, Any] | None = None
        try:
            self._socket.settimeout(CONNECT_S)
            self._connect(path, time.monotonic() + connect_s)
            check_peer(self._socket)
            close_in_children(self._socket)
            self._socket.sendall(_frame(1, (method, args)))
        except TimeoutError:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            raise PeerGone(f"no process answers at {path}: {error}") from None
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, path: str, until: float) -> None:
        while True:
            try:
                with _address(path) as address:
                    self._socket.connect(address)
                return
            except BlockingIOError:  # the backlog is full: the process is very busy, or stopped
                if time.monotonic() >= until:
                    raise TimeoutError(f"the process at {path} accepts no connection") from None
                time.sleep(CONNECT_AGAIN_S)

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
            self._result = _result(result)

    def result(self) -> Any:
        assert self._result is not None
        succeeded, value = self._result
        if not succeeded:
            raise value
        return value

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Call":
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
        #: The calls without an answer, with the connection of each one.
        self._open: dict[int, tuple[_Connection, asyncio.Future[Any]]] = {}
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method, and return its result. Raises what it raised, and `PeerGone`."""
        async with self._connecting:
            connection = self._connection or await self._connect()
        number = next(self._numbers)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = connection, answered
        try:
            connection.transport.write(_frame(number, (method, args)))
            return await answered
        finally:
            self._open.pop(number, None)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        until = loop.time() + CONNECT_S
        while True:
            try:
                with _address(self._path) as address:
                    _, connection = await loop.create_unix_connection(
                        partial(_Connection, self._received, self._lost), address
                    )
                break
            except BlockingIOError as error:  # the backlog is full: the process is very busy, or stopped
                if loop.time() >= until:
                    raise PeerGone(f"the process at {self._path} accepts no connection: {error}") from None
                await asyncio.sleep(CONNECT_AGAIN_S)
            except OSError as error:
                raise PeerGone(f"no process answers at {self._path}: {error}") from None
        if connection.transport.is_closing():
            raise PeerGone(f"another user listens at {self._path}")
        self._connection = connection
        return connection

    def _received(self, connection: _Connection, number: int, answer: Any) -> None:
        _, answered = self._open.get(number, (None, None))
        if answered is not None and not answered.done():
            succeeded, value = _result(answer)
            if succeeded:
                answered.set_result(value)
            else:
                answered.set_exception(value)

    def _lost(self, connection: _Connection) -> None:
        if connection is self._connection:
            self._connection = None
        for used, answered in self._open.values():
            if used is connection and not answered.done():
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

    def received(connection: _Connection, number: int, order: Any) -> None:
        if isinstance(order, _Unreadable):
            connection.transport.write(_failure(number, order.error))
            return
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
        self._accepts_at: float | None = None
        """When the server accepts again; None: it accepts now."""
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
        if self._accepts_at is not None:
            left_s = max(self._accepts_at - time.monotonic(), 0.0)
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
            if not left_s:
                self._accepts_at = None
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for ready, _ in self._selector.select(timeout_s):
            ready.data()

    def close(self) -> None:
        """Close the listener and all connections."""
        for ready in list(self._selector.get_map().values()):
            cast(socket.socket, ready.fileobj).close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in EXHAUSTED:  # otherwise the connection has left already
                self._selector.unregister(self._listener)
                self._accepts_at = time.monotonic() + ACCEPT_AGAIN_S
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
            for number, order in caller.frames.feed(data):
                if isinstance(order, _Unreadable):
                    caller.send(_failure(number, order.error))
                else:
                    self._received(Request(caller, number, *order))
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
