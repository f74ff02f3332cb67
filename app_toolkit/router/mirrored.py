"""Sends copies of calls to mirrors (`dispatch.mirror`), and throws the results away."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from app_toolkit.dispatch.mirror import MOST_RESPONSE, MirroredRequest, Mirrors, ObservedResponse, Primary
from app_toolkit.interfaces import Call, DeploymentClient
from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.router.router import Router
from app_toolkit.router.targets import Permit
from app_toolkit.transport.calls import EncodedValue, Frame, Piece
from app_toolkit.transport.pool import Pool, PooledConnection
from app_toolkit.transport.sent import Sent

logger = logging.getLogger("app_toolkit.router")

OK = "ok"
"""The status of a call that raised nothing. That of another call is the class of the exception."""


class MirrorClient(DeploymentClient, Protocol):
    """The client of a deployment that may get copies of calls. Use it only on `loop`."""

    @property
    def router(self) -> Router: ...

    @property
    def replica_set(self) -> str:
        """The name of the deployment among the mirrors of this process."""
        ...

    async def copy(self, call: Call, body: Sequence[Piece] | None, mirrored: MirroredRequest[Permit]) -> None:
        """Send a copy of a call, once, and throw its result away.

        Report to `mirrored` how it has ended. Without a report, it has failed.

        `body`: the encoded arguments. None: they are not encoded.
        """
        ...


class MirroredCalls:
    """The mirrored calls of one event loop. Create it anywhere, and use it only on that loop, except where noted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.mirrors = Mirrors()
        self._loop = loop
        #: The copies that have not ended. `Mirrors` bounds their number.
        self._copies: set[asyncio.Task[None]] = set()
        self._closed = False

    def client(
        self, primary: MirrorClient, shares: Mapping[str, float], named: Callable[[str], MirrorClient | None]
    ) -> DeploymentClient:
        """Return the client for one call, which sends copies to the mirrors for which the call is sampled. Thread-safe.

        Parameters:
            primary: The client of the member that serves the caller. It gets no copy.
            shares: The share of the calls that each mirror gets copies of, by its name.
            named: Returns the client of a mirror. None: it gets no copies.
        """
        sampled = [named(name) for name, share in shares.items() if self.mirrors.is_sampled(share)]
        mirrors = [each for each in sampled if each not in (None, primary) and each.loop is self._loop]
        return MirroredClient(self, primary, mirrors) if mirrors else primary

    def begin(
        self,
        call: Call,
        body: Sequence[Piece] | None,
        primary: Primary,
        client: MirrorClient,
        mirrors: Sequence[MirrorClient],
    ) -> None:
        """Send copies of a call that was sent to its replica, in the context of its caller.

        Parameters:
            call: The call.
            body: Its encoded arguments. None: they are not encoded.
            primary: The call that the caller waits for.
            client: That of the member that serves the caller.
            mirrors: Those of the mirrors.
        """
        size = 0 if body is None else sum(map(len, body))
        for mirror in mirrors:
            if self._closed:
                return
            mirrored: MirroredRequest[Permit] | None = self.mirrors.begin(
                mirror.replica_set, primary, size, mirror.router, client.router, self._loop.time()
            )
            if mirrored is not None:
                copy = self._loop.create_task(self._send(mirror, call, body, mirrored))
                self._copies.add(copy)
                copy.add_done_callback(partial(self._ended, mirrored))

    async def aclose(self) -> None:
        """End all mirrored calls, and begin no others."""
        self._closed = True
        copies = list(self._copies)
        for each in copies:
            each.cancel()
        await asyncio.gather(*copies, return_exceptions=True)

    async def _send(
        self, mirror: MirrorClient, call: Call, body: Sequence[Piece] | None, mirrored: MirroredRequest[Permit]
    ) -> None:
        try:
            await mirror.copy(call, body, mirrored)
        except Exception:  # nobody else learns of it
            logger.exception("a mirrored call of %s failed", mirror.replica_set)

    def _ended(self, mirrored: MirroredRequest[Permit], copy: "asyncio.Task[None]") -> None:
        """End a copy also if its task was cancelled before it ran."""
        self._copies.discard(copy)
        mirrored.failed()  # no effect if it has ended


class MirroredClient:
    """The client of one call of which mirrors get copies. The caller gets what the member responds."""

    def __init__(self, calls: MirroredCalls, primary: MirrorClient, mirrors: Sequence[MirrorClient]) -> None:
        self.loop = primary.loop
        self._calls = calls
        self._primary = primary
        self._mirrors = mirrors

    async def call(self, call: Call) -> Any:
        value = await self.fetch(call)
        return value.open() if isinstance(value, EncodedValue) else value

    async def fetch(self, call: Call) -> Any:
        with self._compared(call) as (primary, observed):
            value = await self._primary.fetch(observed)
            if isinstance(value, EncodedValue):
                compare_result(primary.response, value.frame)
            else:
                primary.response.comparable = False
            return value

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        with self._compared(call) as (primary, observed):
            primary.response.comparable = False
            async with aclosing(self._primary.stream(observed)) as items:
                async for item in items:
                    yield item

    @contextmanager
    def _compared(self, call: Call) -> Iterator[tuple[Primary, Call]]:
        """Begin the copies once the call was sent, and compare them with what happens in the block."""
        primary = Primary(REQUEST_ID.get() or uuid.uuid4().hex, call.method, self.loop.time())
        context, soon, was_sent = copy_context(), self.loop.call_soon, False

        def sent(body: Sequence[Piece] | None) -> None:
            nonlocal was_sent
            if not was_sent:  # not again if it is retried
                was_sent = True
                # An event loop may write the bytes of the call only after the callbacks of this iteration.
                copied = (self._calls.begin, call, body, primary, self._primary, self._mirrors)
                soon(soon, *copied, context=context)

        try:
            yield primary, replace(call, sent=sent)
        except Exception as error:
            primary.end(type(error).__name__, self.loop.time())
            raise
        except BaseException:  # the caller has left
            primary.abandon()
            raise
        else:
            primary.end(OK, self.loop.time())


class TooLong(Exception):
    """The result of a mirror has more than `MOST_RESPONSE` bytes."""


class DiscardedResponse(Sent):
    """One copy of a call in flight, and its response, which is cut if it is too long."""

    __slots__ = ("_size",)

    def __init__(self, pool: Pool, connection: PooledConnection, pieces: Sequence[Piece]) -> None:
        self._size = 0
        super().__init__(pool, connection, pieces)

    def received(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MOST_RESPONSE:
            self.fail(TooLong())
        else:
            super().received(data)


def compare_result(response: ObservedResponse, frame: Frame) -> None:
    """Note the encoded result of a call for the comparison."""
    for piece in (frame.pickled, *frame.buffers):
        response.received(piece)
