"""The models of a router, by name."""

import pytest

from app_toolkit.chat import TextEvent, ToolCall
from app_toolkit.chat.catalog import Catalog
from tests.chat.scripted import Scripted, question

pytestmark = pytest.mark.anyio


async def test_a_call_that_is_approved_twice_reaches_the_model_once() -> None:
    model = Scripted([TextEvent("sent")])
    pay, send = ToolCall("c1", "pay", "{}"), ToolCall("c2", "send", "{}")
    request = question(approved_calls=(pay, send, pay))
    assert [event async for event in Catalog({"m": model.chat}, {}).find("m")(request)]
    assert model.requests[0].approved_calls == (pay, send)
