"""The outcome of a call is recorded when its caller ends."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.errors import DeadlineExceeded, QueueFull
from app_toolkit.exchange.call_exchange import CallDownstream, CallPlane
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.filters import Filters
from app_toolkit.interfaces import Call
from app_toolkit.observability.records import Record, Records

NONE: Any = None


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (None, "ok", 200),
        (ValueError("out of stock"), "ok", 500),
        (DeadlineExceeded("it is late"), "deadline_exceeded", 504),
        (QueueFull("10 wait"), "queue_full", 503),
        (asyncio.CancelledError(), "client_gone", 499),
        (GeneratorExit(), "client_gone", 499),
    ],
)
def test_call_is_recorded_when_it_ends(error: BaseException | None, outcome: str, status: int) -> None:
    found: list[Record] = []
    plane = CallPlane(ReplicaSetKey("shop", "writer"), NONE, NONE, Records(found.append), Filters())
    with suppress(BaseException), CallDownstream(plane, CallRequest(Call("write", (), {}), "it")):
        if error is not None:
            raise error
    (record,) = found
    assert (record.kind, record.deployment, record.outcome, record.status) == ("call", "shop/writer", outcome, status)
    assert (record.method, record.id, record.replica, record.tries) == (b"write", b"it", "-", 0)
