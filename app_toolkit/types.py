"""The words that every floor shares: ASGI aliases and the names of things."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, NewType

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Header = tuple[bytes, bytes]

ReplicaId = NewType("ReplicaId", str)
"""Names one replica for ever: minted by the plan, it is also the name of its actor."""

Address = NewType("Address", str)
"""Where a process listens: `unix:/path/to.sock` or `tcp:host:port`; a proxy that speaks TLS, at `tls:host:port`."""

NodeId = NewType("NodeId", str)
"""One node of the cluster, as Ray names it."""

OnDisconnect = Literal["auto", "cancel", "continue"]
"""What becomes of a handler whose client has gone."""

Kind = Literal["coroutine", "stream", "sync", "sync stream"]
"""What a method is to who calls it: `async def`, an async generator, `def`, a generator."""

Retry = Literal["idempotent", "all", "none"]
"""What is tried again where a replica was lost with it before it answered."""
