"""The boundaries of WebSocket frames, found without decoding their payloads, and close frames."""

CLOSE = 0x8
MASKED = 0x80
LONGEST_HEAD = 14
LONGEST_REASON = 123
"""The most bytes in the reason of a close frame. With the code, they fill the payload of a control frame."""


UNSENDABLE = frozenset({1004, 1005, 1006})
"""Codes below 1015 that no endpoint may send (RFC 6455, 7.4.1)."""


def why_not_closed_with(code: object, reason: object) -> str | None:
    """Return why a close frame cannot have this code or reason, which come from an app. None: it can."""
    if not isinstance(code, int):
        return f"code {code!r:.100} is no integer"
    if not isinstance(reason, str):
        return f"the reason is of type {type(reason).__name__}, and must be text"
    if not (1000 <= code < 1015 or 3000 <= code < 5000) or code in UNSENDABLE:
        return f"code {code} cannot be sent: use 1000 to 1003, 1007 to 1014 or 3000 to 4999"
    try:
        size = len(reason.encode())
    except UnicodeEncodeError as error:
        return f"the reason is no valid text: character {error.start} is a lone surrogate"
    if size > LONGEST_REASON:
        return f"the reason has {size} bytes, the limit is {LONGEST_REASON}"
    return None


class WebSocketFrames:
    """Tracks the frames in one direction of a WebSocket, from its handshake on.

    Payloads are skipped, so the cost depends on the number of frames and chunks, and not on the number of bytes.
    """

    __slots__ = ("_head", "_left", "closed")

    def __init__(self) -> None:
        #: The received part of an incomplete frame head, else empty.
        self._head = b""
        #: Bytes of the last frame that have not arrived.
        self._left = 0
        #: Whether a close frame has begun.
        self.closed = False

    @property
    def may_close(self) -> bool:
        """Whether a close frame may be sent now, which is between two frames and not after another close frame."""
        return not (self._left or self._head or self.closed)

    def follow(self, data: bytes) -> None:
        """Process the next bytes of the stream, which may begin and end within a frame."""
        size = len(data)
        at = self._left  # the offset of the next frame
        if self._head:
            at = self._complete_head(data)
        while at < size:
            # Fast path for short frames without a mask.
            if size - at > 1 and data[at + 1] < 126:
                length: int | None = 2 + data[at + 1]
            else:
                length = _length(data[at : at + LONGEST_HEAD])
            if length is None:
                self._head = data[at:]
                at = size
            else:
                if data[at] & 0x0F == CLOSE:
                    self.closed = True
                at += length
        self._left = at - size

    def _complete_head(self, data: bytes) -> int:
        """Continue an incomplete head. Return the offset of the frame's end, or `len(data)` if it is unknown."""
        begun = len(self._head)
        head = self._head + data[: LONGEST_HEAD - begun]
        length = _length(head)
        if length is None:
            self._head = head
            return len(data)
        self._head = b""
        if head[0] & 0x0F == CLOSE:
            self.closed = True
        return length - begun


def close_frame(code: int, reason: str) -> bytes:
    """Return a server's close frame. The reason has at most 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()
    assert len(payload) <= 2 + LONGEST_REASON
    return bytes((0x80 | CLOSE, len(payload))) + payload


def _length(head: bytes) -> int | None:
    """Return the length of the frame with this head, including the head. None: the head is incomplete."""
    if len(head) < 2:
        return None
    mask = 4 if head[1] & MASKED else 0
    short = head[1] & 0x7F
    if short < 126:
        return 2 + mask + short
    begin = 4 if short == 126 else 10
    if len(head) < begin:
        return None
    return begin + mask + int.from_bytes(head[2:begin], "big")
