"""Where one WebSocket frame ends and the next begins in a stream that nobody here decodes."""

CLOSE = 0x8
MASKED = 0x80
LONGEST_HEAD = 14
LONGEST_REASON = 123
"""Bytes; with the code, the most that a control frame may carry."""


UNSENDABLE = frozenset({1004, 1005, 1006})
"""Codes below 1015 that no endpoint may send (RFC 6455, 7.4.1)."""


def why_not_closed_with(code: object, reason: object) -> str | None:
    """Why a close frame cannot have this code or reason, which an app gave; None: it can."""
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
    """Follows one direction of a WebSocket from its handshake on, by the heads of its frames alone.

    Payloads are jumped over, so the cost is per frame and per chunk, never per byte.
    """

    __slots__ = ("_head", "_left", "closed")

    def __init__(self) -> None:
        #: What has come of a frame's head, where that is not all of it.
        self._head = b""
        #: Bytes of the last frame that still have to come.
        self._left = 0
        #: A close frame has begun.
        self.closed = False

    @property
    def may_close(self) -> bool:
        """Whether a close frame may follow now: between two frames, and not after another close frame."""
        return not (self._left or self._head or self.closed)

    def follow(self, data: bytes) -> None:
        """The next bytes of the stream, cut from it anywhere."""
        size = len(data)
        at = self._left  # where the next frame begins
        if self._head:
            at = self._complete_head(data)
        while at < size:
            # Most frames are short and come whole, head and all.
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
        """Gives where the frame ends whose head had begun; the end of `data` where that is not known yet."""
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
    """A server's close frame; the reason has at most 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()
    assert len(payload) <= 2 + LONGEST_REASON
    return bytes((0x80 | CLOSE, len(payload))) + payload


def _length(head: bytes) -> int | None:
    """Of the frame that begins so, head and payload; None: that cannot be known yet."""
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
