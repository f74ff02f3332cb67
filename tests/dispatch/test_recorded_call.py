"""The record of a call has its outcome."""

import asyncio
from contextlib import suppress

import pytest

from app_toolkit.dispatch.dispatcher import Dispatcher, RetainedRequest
from app_toolkit.dispatch.recorded_call import RecordedCall
from app_toolkit.errors import DeadlineExceeded, QueueFull
from app_toolkit.observability.records import Record, Records


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
    dispatcher: Dispatcher[None] = Dispatcher(RetainedRequest("write", "it", ""), 0.0)
    with suppress(BaseException), RecordedCall(Records(found.append), dispatcher, "shop/writer"):
        if error is not None:
            raise error
    (record,) = found
    assert (record.kind, record.deployment, record.outcome, record.status) == ("call", "shop/writer", outcome, status)
    assert (record.method, record.id, record.replica, record.tries) == (b"write", b"it", "-", 0)
