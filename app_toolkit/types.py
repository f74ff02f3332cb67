"""Types that all packages share: ASGI aliases and names."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, NewType

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Header = tuple[bytes, bytes]

RecyclingLimit = Literal["max_requests", "max_age_s", "max_memory"]
"""The option by which a replica is replaced while it works."""

ReplicaId = NewType("ReplicaId", str)
"""The unique name of a replica. The plan creates it, and it is also the name of the replica's actor."""

Address = NewType("Address", str)
"""Where a process listens: `unix:/path/to.sock` or `tcp:host:port`; for a proxy with TLS, `tls:host:port`."""

NodeId = NewType("NodeId", str)
"""One node of the cluster, as named by the engine."""

LoopKind = Literal["uvloop", "asyncio"]
"""An event loop that can run an app."""

OnDisconnect = Literal["auto", "cancel", "continue", "notify"]
"""What happens to a handler when its client disconnects."""

Kind = Literal["coroutine", "stream", "sync", "sync stream"]
"""How a method is called: `async def`, an async generator, `def`, or a generator."""

Retry = Literal["idempotent", "all", "none"]
"""Which requests are retried if their replica was lost before it responded."""
