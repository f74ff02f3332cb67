"""Sends orders to the actors of replicas and proxies."""

from collections.abc import Awaitable
from typing import Any, TypeVar

from app_toolkit.host.orders import Order

R = TypeVar("R")


def send(actor: Any, order: Order[Any, R]) -> Awaitable[R]:
    """Send an order to an actor, and return the reference to its result.

    Each lane except that for control is a concurrency group of the actor.
    """
    serve = actor.serve if order.lane == "control" else actor.serve.options(concurrency_group=order.lane)
    reference: Awaitable[R] = serve.remote(order)
    return reference
