"""A router with a routing policy, and calls for it."""

from random import Random

from app_toolkit.chat.protocol import ChatMessage, ChatRequest
from app_toolkit.config.models import Policy
from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.preference import Outcome
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Call, Endpoint
from app_toolkit.types import Address, ReplicaId


def router_of(*names: str, policy: str, room: int = 100) -> Router:
    router = Router("shop/chat", policy=Policy(routing_policy=policy), rng=Random(1))
    router.update(Endpoint(ReplicaId(name), Address(f"unix:/{name}"), room) for name in names)
    return router


def turn(*texts: str) -> Call:
    return Call("chat", (ChatRequest(tuple(ChatMessage("user", text) for text in texts)),), {})


def begin(router: Router, call: Call) -> Permit:
    permit = router.try_acquire(preference=router.preference(call))
    assert permit is not None
    return permit


def outcome(router: Router, call: Call) -> tuple[str, Outcome | None]:
    """Make a call that ends at once."""
    permit = begin(router, call)
    router.release(permit)
    return permit.endpoint.id, permit.affinity
