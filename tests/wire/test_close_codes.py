"""Which codes and reasons a WebSocket's close frame can have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ProtocolError
from websockets.frames import Close

from app_toolkit.wire.frames import why_not_closed_with


@given(st.integers(0, 70_000), st.text(max_size=130))
def test_exactly_the_close_frames_that_websockets_refuses_are_refused(code: int, reason: str) -> None:
    try:
        Close(code, reason).check()
        sendable = len(Close(code, reason).serialize()) <= 125
    except (ProtocolError, ValueError):
        sendable = False
    assert (why_not_closed_with(code, reason) is None) == sendable


def test_a_reason_is_measured_in_bytes() -> None:
    assert why_not_closed_with(1000, "é" * 61) is None
    assert why_not_closed_with(1000, "é" * 62) == "the reason has 124 bytes, the limit is 123"
    assert why_not_closed_with(1005, "") == "code 1005 cannot be sent: use 1000 to 1003, 1007 to 1014 or 3000 to 4999"


def test_a_reason_with_a_lone_surrogate_is_refused() -> None:
    why = why_not_closed_with(1000, "no \ud800")
    assert why == "the reason is no valid text: character 3 is a lone surrogate"


@pytest.mark.parametrize("code", ["1000", 1000.0, b"4000", [1000]])
def test_a_code_that_is_no_integer_is_refused(code: object) -> None:
    assert why_not_closed_with(code, "") == f"code {code!r} is no integer"


def test_a_reason_that_is_no_text_is_refused() -> None:
    assert why_not_closed_with(1000, b"over") == "the reason is of type bytes, and must be text"
