"""A proxy without sockets: a test passes bytes to its connections, reads what it writes, and moves its clock."""

import asyncio
import json
import re
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Self, TypeVar, cast

from uvicorn.server import ServerState

from app_toolkit.config.models import HTTPOptions, networks
from app_toolkit.contract.snapshots import StartBlocked
from app_toolkit.edge.arrival import AcceptedConnection, Capacity, ConnectionLimiter
from app_toolkit.edge.forwarded import Trust
from app_toolkit.edge.protocol import ClientConnection, Timeouts
from app_toolkit.edge.request_parser import HeadLimits
from app_toolkit.edge.server import SWEEP_S
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.observability.records import Record
from app_toolkit.wire import hop
from tests import published
from tests.edge.app import SECRET
from tests.edge.world import Got, read_response
from tests.keys import key

T = TypeVar("T")

HIGH, LOW = 64 * 1024, 16 * 1024
"""The limits of the write buffer, in bytes, at which a transport pauses and resumes its protocol."""

READ_AT_ONCE = 64 * 1024
START_LINE = re.compile(rb"[A-Z]+ \S+ HTTP/1\.1\r\n")
CLIENT, SERVER = ("127.0.0.1", 40_000), ("127.0.0.1", 80)


class Idle(selectors.SelectSelector):
    """Stops the event loop when it would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            self.stop()
        return super().select(0)


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        idle = Idle()
        super().__init__(idle)
        idle.stop = self.stop
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the event loop, and let the loop run until it would wait."""

        async def run() -> T:
            return function()

        result = self.run_until_complete(run())
        self.run_forever()
        return result


class Transport(asyncio.Transport):
    """The proxy's end of a connection in memory. `unread` and `unsent` are the buffers of the network."""

    def __init__(self, protocol: asyncio.Protocol, sent: Callable[[bytes], None], extra: dict[str, Any]) -> None:
        super().__init__(extra)
        self._protocol = protocol
        self._sent = sent
        self.reading = True
        self.closing = self.closed = self.eof = False
        #: Whether the other end reads.
        self.flows = True
        self.unread = b""
        self.unsent = b""
        self._paused = False
        self._eof_arrived = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def write(self, data: Any) -> None:
        assert not self.closed
        assert not self.eof
        self.unsent += data
        if self.flows:
            self.send(len(self.unsent))
        if len(self.unsent) > HIGH and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def send(self, size: int) -> None:
        """Let the network take so many bytes."""
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        if data:
            self._sent(data)
        if self._paused and len(self.unsent) <= LOW:
            self._paused = False
            self._protocol.resume_writing()
        if self.closing and not self.unsent:
            self.lose()

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closing = True
        if not self.unsent:
            self.lose()

    def abort(self) -> None:
        self.closing = True
        self.unsent = b""
        self.lose()

    def lose(self, error: Exception | None = None) -> None:
        """End the connection, as the network or its other end does."""
        if not self.closed:
            self.closing = self.closed = True
            self.unread = b""
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        asyncio.get_running_loop().call_soon(self.deliver)

    def arrive(self, data: bytes) -> None:
        if not self.closing:
            self.unread += data
            self.deliver()

    def arrive_eof(self) -> None:
        self._eof_arrived = True
        self.deliver()

    def deliver(self) -> None:
        while self.unread and self.reading and not self.closing:
            data, self.unread = self.unread[:READ_AT_ONCE], self.unread[READ_AT_ONCE:]
            self._protocol.data_received(data)
        if self._eof_arrived and not self.unread and not self.closing:
            self._eof_arrived = False
            if not self._protocol.eof_received():
                self.close()


@dataclass
class Received:
    """One request at a replica: all bytes of its head, and those after it."""

    head: bytes
    body: bytes
    transport: Transport
    loop: ManualLoop

    def respond(self, data: bytes) -> None:
        self.loop.call(lambda: self.transport.arrive(data))

    def lose(self, error: Exception | None = None) -> None:
        """End the connection. `error`: `ConnectionResetError` if the replica has not read all bytes."""
        self.loop.call(lambda: self.transport.lose(error))

    def header(self, name: bytes) -> bytes | None:
        found = re.findall(rb"\r\n%b: ([^\r]*)" % name, self.head)
        return found[0] if found else None

    @property
    def hop(self) -> hop.Hop:
        decoded = hop.decode(self.header(hop.HOP) or b"", hop.token(SECRET))
        assert isinstance(decoded, hop.Hop)
        return decoded


class Replica:
    """A replica whose bytes a test writes. It sends the responses of `says`, if there are any."""

    def __init__(self, loop: ManualLoop, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self.address = f"unix:/{name}"
        self.dialled = asyncio.Event()
        self.dialled.set()
        self.connections: list[Transport] = []
        self.received: list[Received] = []
        self._loop = loop
        self._responses: list[bytes] = []
        self._closes = False

    def says(self, *responses: bytes, close: bool = False) -> Self:
        """Send these to the next requests, and the last one to all later ones. `close`: then end the connection."""
        self._responses = list(responses)
        self._closes = close
        return self

    @property
    def last(self) -> Received:
        return self.received[-1]

    def connect(self, protocol: asyncio.Protocol) -> Transport:
        closed = socket.socket(socket.AF_UNIX)
        closed.close()
        transport = Transport(protocol, lambda data: self._read(transport, data), {"socket": closed})
        self.connections.append(transport)
        protocol.connection_made(transport)
        return transport

    def _read(self, transport: Transport, data: bytes) -> None:
        if not START_LINE.match(data):
            next(each for each in reversed(self.received) if each.transport is transport).body += data
            return
        head, _, body = data.partition(b"\r\n\r\n")
        self.received.append(Received(head, body, transport, self._loop))
        if self._responses:
            response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
            asyncio.get_running_loop().call_soon(self._respond, transport, response)

    def _respond(self, transport: Transport, response: bytes) -> None:
        transport.arrive(response)
        if self._closes:
            transport.lose()


class Client:
    """A client: what it sends reaches the proxy at once, and it reads responses one by one."""

    def __init__(self, wire: "Wire", address: tuple[str, int]) -> None:
        self._loop = wire.loop
        self.buffer = b""
        connection = AcceptedConnection(wire.limiter)
        self.transport = Transport(connection, self._read, {"peername": address, "sockname": SERVER})
        self._loop.call(lambda: connection.connection_made(self.transport))

    def _read(self, data: bytes) -> None:
        self.buffer += data

    def send(self, data: bytes) -> Self:
        self._loop.call(lambda: self.transport.arrive(data))
        return self

    def stop_reading(self) -> None:
        self.transport.flows = False

    def resume_reading(self, size: int | None = None) -> None:
        """Read so many bytes, or everything from now on."""
        self.transport.flows = size is None
        self._loop.call(lambda: self.transport.send(len(self.transport.unsent) if size is None else size))

    def leave(self, error: Exception | None = None) -> None:
        """Disconnect. `error`: with a reset."""
        self._loop.call(self.transport.arrive_eof if error is None else lambda: self.transport.lose(error))

    def rest(self) -> bytes:
        data, self.buffer = self.buffer, b""
        return data

    def until(self, end: bytes) -> bytes:
        assert end in self.buffer, self.buffer
        found, _, self.buffer = self.buffer.partition(end)
        return found + end

    def response(self, method: str = "GET") -> Got:
        return read_response(self, method)

    def exactly(self, length: int) -> bytes:
        assert len(self.buffer) >= length, self.buffer
        data, self.buffer = self.buffer[:length], self.buffer[length:]
        return data

    def closed(self) -> bool:
        """Whether the proxy has closed its end, and everything was read."""
        return not self.buffer and (self.transport.closed or self.transport.eof)


@dataclass
class Wire:
    """One proxy, its replicas and its clients."""

    loop: ManualLoop
    options: HTTPOptions = field(default_factory=lambda: HTTPOptions(port=0))
    capacity: Capacity = field(default_factory=lambda: Capacity(clients=1_000, refused=10, backlog=10))
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.clients: list[Client] = []
        self.records: list[Record] = []
        self._versions = count(1)
        self.proxy = self.loop.call(
            lambda: ProxyState(
                SECRET,
                lambda name, join, unserved: Router(name, join, unserved, rng=Random(1)),
                clock=self.loop.time,
            )
        )
        self.proxy.records.subscribe(self.records.append)
        self.proxy.configure(self.options)
        state = cast(Any, ServerState())
        state.default_headers = [(b"server", b"uvicorn")]
        trust = Trust(networks(self.options.forwarded_allow_ips))
        self.limiter = ConnectionLimiter(
            self.proxy,
            lambda: ClientConnection(self.proxy, state, HeadLimits(), self.timeouts, trust),
            state,
            self.capacity,
            self.timeouts,
            None,
        )

    async def connect(self, address: str, protocol: Callable[[], Any], secret: bytes = b"") -> tuple[Any, Any]:
        """Take the place of `pool.connect`."""
        replica = self.replicas.get(address)
        if replica is None:
            raise ConnectionRefusedError(address)
        await replica.dialled.wait()
        made = protocol()
        return replica.connect(made), made

    def replica(self, most: int = 100) -> Replica:
        replica = Replica(self.loop, f"replica-{len(self.replicas)}", most)
        self.replicas[replica.address] = replica
        return replica

    def one(self, *responses: bytes, close: bool = False, most: int = 100, **policy: Any) -> Replica:
        replica = self.replica(most).says(*responses, close=close)
        self.route(replica, **policy)
        return replica

    def publish(self, values: dict[str, Any]) -> None:
        version = Version(1, next(self._versions))
        self.loop.call(
            lambda: self.proxy.registry.update({key: Snapshot(version, value) for key, value in values.items()})
        )

    def route(
        self,
        *replicas: Replica,
        nowhere: bool = False,
        queued: int = 100,
        wait_s: float = 60.0,
        cannot_start: str | None = None,
        **policy: Any,
    ) -> None:
        """One application at `/` with these replicas. `nowhere`: and one that is not reached."""
        endpoints = [published.replica(each.name, each.address, each.most) for each in replicas]
        if nowhere:
            endpoints.insert(0, published.replica("nobody", "unix:/nowhere"))
        self.publish(
            {
                "routes": published.routes(published.application()),
                "replicas/shop/web": published.replica_set(
                    *endpoints,
                    reported=True,
                    cannot_start=None if cannot_start is None else StartBlocked("starts_fail", cannot_start),
                    max_queued_requests=queued,
                    max_queue_wait_s=wait_s,
                    **policy,
                ),
            }
        )

    def unroute(self) -> None:
        self.publish({"routes": published.routes(), "replicas/shop/web": None})

    def client(self, address: tuple[str, int] = CLIENT) -> Client:
        client = Client(self, address)
        self.clients.append(client)
        return client

    def connections(self) -> list[Any]:
        return [*self.limiter.state.connections, *self.limiter.refused]

    def advance(self, seconds: float) -> None:
        """Move the clock, and enforce the timeouts every `SWEEP_S`, as the server does."""
        until = self.loop.now + seconds
        while self.loop.now < until:
            self.loop.now = min(self.loop.now + SWEEP_S, until)
            self.loop.call(self._sweep)

    def _sweep(self) -> None:
        self.proxy.sweep(self.loop.now)
        for each in self.connections():
            each.sweep(self.loop.now)

    def each(self, function: Callable[[Any], None]) -> None:
        """Call it for each connection of a client, as the server does."""
        self.loop.call(lambda: [function(each) for each in self.connections()])

    @property
    def load(self) -> tuple[int, int, int, int]:
        """The numbers of waiting and ongoing requests, of WebSockets and of streams."""
        return self.loop.call(self.proxy.loads).get(key("shop/web"), (0, 0, 0, 0))

    def record(self, id: str = "it") -> Record:
        """The only record of this request."""
        (record,) = [each for each in self.records if each.id == id.encode()]
        return record

    def close(self) -> None:
        """Disconnect all clients, and check that nothing is left of their requests."""
        for client in self.clients:
            client.leave(ConnectionResetError())
        assert self.load == (0, 0, 0, 0)
        assert self.connections() == []
        ended = len(self.records)
        self.loop.now += 3_600.0
        self.loop.call(self._sweep)
        assert len(self.records) == ended, "a timer of a request was left"
        self.loop.run_until_complete(self.proxy.aclose())
        self.loop.call(lambda: None)
        assert all(transport.closed for replica in self.replicas.values() for transport in replica.connections)
        assert self.loop.failures == []


def detail(got: Got) -> str:
    return str(json.loads(got.body)["detail"])
