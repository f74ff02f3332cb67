"""The wire format of calls: serialized arguments in the body of a request, and serialized results in its response.

Both bodies are sequences of frames. A request has one frame with the arguments. If results of other calls are among
the arguments, their unchanged frames follow. A response has a value or an error, or else any number of items followed
by the end or an error. A frame consists of a head (its kind, the number of its buffers, the lengths of the following
parts), one pickle (protocol 5), and the buffers that the pickle refers to: the data of NumPy arrays and of Arrow
tables, and long `bytes`.

* Receiving a frame does not unpickle it. Code that decodes a frame must first make sure that its sender is
  authenticated.
* A frame of `OUT_OF_BAND_BYTES` or more is sent out-of-band (`interfaces.Payloads`) if caller and replica support it,
  in the same pieces as over a socket. In a response, a frame of the kind "out_of_band" replaces it.
* Buffers are not copied. The sender must not change a buffer until it is sent. The receiver owns its buffers, and they
  are read-only: to change an array, copy it. Long `bytes` are copied once if they arrived together with other data. A
  `bytearray` is always copied once.
* Objects that `pickle` does not support (lambdas, definitions of `__main__`) are serialized by value with cloudpickle.

Design: docs/design/calls.md
"""

import os
import pickle
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ctypes import addressof, c_char
from pathlib import Path
from struct import Struct, pack, unpack
from types import FunctionType
from typing import Any, Literal, NamedTuple, get_args

import cloudpickle

from app_toolkit.errors import ContentTooLarge, RemoteError
from app_toolkit.interfaces import Call
from app_toolkit.observability.tracebacks import shortened

FrameKind = Literal["call", "value", "error", "item", "end", "out_of_band"]

MOST_BYTES = 1024**3
"""The most bytes in one frame. A frame that announces more is rejected before any of it is buffered."""

MOST_BUFFERS = 65_536
"""The most buffers in one frame. Further buffers of an object become a part of its pickle."""

LARGE = 64 * 1024
"""A part of this many bytes or more is written separately, and not joined with adjacent parts."""

OUT_OF_BAND_BYTES = 32 * 1024 * 1024
"""A frame of this size or more is sent out-of-band, if caller and replica support it."""

ALIGNED = 16
"""The alignment of array data in bytes. No NumPy type requires more."""

LONGEST_TEXT = 10_000
"""The most characters of an error's text, which is sent if the error cannot be serialized."""

Piece = bytes | memoryview

_KINDS: tuple[FrameKind, ...] = get_args(FrameKind)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_HEAD = Struct("<BxxxIQ")
_LENGTH = 8
_OURS = f"{Path(__file__).parents[1]}{os.sep}"


class Frame(NamedTuple):
    """One complete frame that is not unpickled."""

    kind: FrameKind
    pickled: Piece
    buffers: list[Piece]

    @property
    def size(self) -> int:
        """The size of the pickle and the buffers, in bytes."""
        return len(self.pickled) + sum(map(len, self.buffers))


class EncodedValue:
    """A received value that is not unpickled. As an argument of a call, it is passed on unchanged."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def open(self) -> Any:
        """Unpickle the value. Raise `RemoteError` if it cannot be unpickled in this process."""
        return decode_value(self.frame)


class Passed:
    """A placeholder for an encoded value among pickled arguments. The class itself is used, not an instance."""


class FrameReader:
    """Reads frames from a stream of bytes that arrives in arbitrary chunks."""

    def __init__(self) -> None:
        self._chunks: deque[memoryview] = deque()
        self._have = 0
        self._need = _HEAD.size
        # The current frame
        self._kind: FrameKind | None = None
        self._lengths: list[int] = []
        #: The number of buffers whose lengths have not arrived.
        self._unknown = 0

    @property
    def between(self) -> bool:
        """Whether the received bytes end at the end of a frame."""
        return self._kind is None and not self._have

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Add data, and return the frames that are now complete.

        The reader and its frames refer to `data`, so `data` must not change.

        Raises:
            ValueError: The data is not a valid frame, or a frame is too large.
        """
        if data:
            self._chunks.append(memoryview(data))
            self._have += len(data)
        frames = []
        while self._have >= self._need:
            if self._kind is None:
                self._read_head()
            elif self._unknown:
                self._read_lengths()
            else:
                pickled, *buffers = [self._take(length) for length in self._lengths]
                frames.append(Frame(self._kind, pickled, buffers))
                self._kind = None
                self._need = _HEAD.size
        return frames

    def _read_head(self) -> None:
        number, self._unknown, length = _HEAD.unpack(self._take(_HEAD.size))
        if number >= len(_KINDS):
            raise ValueError(f"unknown frame kind {number}; the highest known kind is {len(_KINDS) - 1}")
        if self._unknown > MOST_BUFFERS:
            raise ValueError(f"a frame has {self._unknown} buffers, the limit is {MOST_BUFFERS}")
        self._kind = _KINDS[number]
        self._lengths = [length]
        self._need = self._unknown * _LENGTH if self._unknown else _checked(length)

    def _read_lengths(self) -> None:
        self._lengths += unpack(f"<{self._unknown}Q", self._take(self._need))
        self._unknown = 0
        self._need = _checked(sum(self._lengths))

    def _take(self, size: int) -> Piece:
        """Remove and return the next `size` bytes, which have arrived.

        A long part that arrived in one chunk is not copied if its alignment allows that. A writable chunk is owned by
        the reader, and may be split without a copy.
        """
        self._have -= size
        if size >= LARGE:
            chunk = self._chunks[0]
            if len(chunk) == size and (chunk.readonly or _is_aligned(chunk)):
                return self._chunks.popleft().toreadonly()
            if len(chunk) > size and not chunk.readonly and _is_aligned(chunk):
                self._chunks[0] = chunk[size:]
                return chunk[:size].toreadonly()
        pieces = []
        while size:
            piece = self._chunks.popleft()
            if len(piece) > size:
                self._chunks.appendleft(piece[size:])
                piece = piece[:size]
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _is_aligned(chunk: memoryview) -> bool:
    """Return whether array data may begin at the start of this chunk, which must be writable."""
    return addressof(c_char.from_buffer(chunk)) % ALIGNED == 0


def frame_of(pieces: Iterable[Piece]) -> Frame:
    """Return the frame that consists of these pieces. Raise `ValueError` if they are not exactly one frame."""
    read_frames = frames_of(pieces)
    if len(read_frames) != 1:
        raise ValueError("the data is not exactly one complete frame")
    return read_frames[0]


def frames_of(pieces: Iterable[Piece]) -> list[Frame]:
    """Return the frames that consist of these pieces. Raise `ValueError` if a frame is invalid or incomplete."""
    frames = FrameReader()
    read_frames = [frame for piece in pieces for frame in frames.feed(piece)]
    if not frames.between:
        raise ValueError("the data ends within a frame")
    return read_frames


def is_out_of_band(pieces: Iterable[Piece]) -> bool:
    """Return whether a frame in these pieces is large enough to be sent out-of-band."""
    return sum(map(len, pieces)) >= OUT_OF_BAND_BYTES


# Calls: encoded by callers, decoded by replicas


def encode_call(call: Call) -> list[Piece]:
    """Return the body of a call in pieces. It does not contain the name of the method.

    Raises:
        TypeError: The arguments cannot be serialized.
        ContentTooLarge: The serialized arguments exceed `MOST_BYTES`.
    """
    what = f"the arguments of {call.method}"
    if call.passes_on:
        return _encode_with_results(call, what)
    args = tuple(map(_apart, call.args))
    kwargs = {name: _apart(value) for name, value in call.kwargs.items()}
    return _encode("call", (args, kwargs), what)


def _encode_with_results(call: Call, what: str) -> list[Piece]:
    passed: list[Piece] = []

    def apart(value: Any) -> Any:
        if type(value) is not EncodedValue:
            return _apart(value)
        passed.extend(_pieces("value", [value.frame.pickled, *value.frame.buffers]))
        return Passed

    args = tuple(map(apart, call.args))
    kwargs = {name: apart(value) for name, value in call.kwargs.items()}
    return _encode("call", (args, kwargs), what) + passed


def decode_call(method: str, frames: Sequence[Frame]) -> Call:
    """Decode a call of `method`. Raise `TypeError` if the arguments cannot be unpickled in this process."""
    what = f"the arguments of {method}"
    args, kwargs = _decode(frames[0], what)
    if len(frames) > 1:
        passed = iter(frames[1:])
        args = tuple(_decode(next(passed), what) if value is Passed else value for value in args)
        kwargs = {name: _decode(next(passed), what) if value is Passed else value for name, value in kwargs.items()}
    return Call(method, args, kwargs)


# Results: encoded by replicas, decoded by callers


def encode_value(value: Any) -> list[Piece]:
    """Encode the result of a method. Raise as `encode_call` does. Encode that error with `encode_error` instead."""
    return _encode("value", _apart(value), "the result of the method")


def encode_item(item: Any) -> list[Piece]:
    """Encode an item that a method yielded. Raise as `encode_call` does."""
    return _encode("item", _apart(item), "an item of the method")


def encode_end() -> list[Piece]:
    return [_head("end", [0])]


def encode_out_of_band() -> list[Piece]:
    """Encode the frame that replaces one that the caller must get out-of-band."""
    return [_head("out_of_band", [0])]


def encode_error(error: BaseException) -> list[Piece]:
    """Encode an error. Never raises: if the error cannot be serialized, only its text is sent."""
    text = "".join(traceback.format_exception_only(error)).strip()[:LONGEST_TEXT]
    try:
        pickled, _ = _pickle(_Error(error), apart=False)
        return _encode("error", (text, _traceback(error), pickled), "an error")
    except Exception:
        return _encode("error", (text, _traceback(error)[-LONGEST_TEXT:], None), "an error")


def decode_value(frame: Frame) -> Any:
    """Decode a value or an item. Raise `RemoteError` if it cannot be unpickled in this process."""
    try:
        return _decode(frame, "the result of the method")
    except TypeError as error:
        raise RemoteError(str(error)) from error


def decode_error(frame: Frame) -> Exception:
    """Return the error, with its traceback at the replica as a note.

    Return a `RemoteError` with its text if the error could not be serialized, or cannot be unpickled in this process.
    """
    text, trace, pickled = _decode(frame, "an error")
    error: object = None
    if pickled is not None:
        with suppress(Exception):  # the error's class may raise any exception when it is unpickled
            error = pickle.loads(pickled)
    if not isinstance(error, Exception):
        error = RemoteError(text)
    error.add_note(trace)
    return error


class _Apart:
    """Wraps long bytes to send them as a buffer. Otherwise they would be copied into the pickle."""

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self._value), (pickle.PickleBuffer(self._value),)


class _Error:
    """Wraps an error to unpickle it without a call of its `__init__`, whose parameters may not match `args`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self._error)
        plain = kind.__reduce__ is BaseException.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
        if plain and isinstance(kind.__init__, FunctionType):
            return _error_as_it_was, (kind, self._error.args, self._error.__dict__)
        return _itself, (self._error,)


def _error_as_it_was(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def _itself(error: BaseException) -> BaseException:
    return error


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first frame of user code on, with its causes."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    shown = traceback.TracebackException(type(error), error, trace)
    shown.__notes__ = None  # the notes are sent with the error
    return "At the replica: " + shortened("".join(shown.format()).rstrip())


def _apart(value: Any) -> Any:
    return _Apart(value) if type(value) in (bytes, bytearray) and len(value) >= LARGE else value


def _pickle(value: Any, *, apart: bool = True) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a pickle and its buffers. `apart`: keep the data of buffers out of the pickle."""
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) == MOST_BUFFERS:
            return True  # pickle the data in-band
        buffers.append(buffer)
        return False

    callback = keep if apart else None
    try:
        pickled = pickle.dumps(value, 5, buffer_callback=callback)
        if b"__main__" not in pickled:  # the receiver has another module of this name
            return pickled, buffers
    except Exception:
        pass  # cloudpickle succeeds, or raises the final error
    buffers.clear()
    return cloudpickle.dumps(value, 5, callback), buffers


def _encode(kind: FrameKind, value: Any, what: str) -> list[Piece]:
    try:
        pickled, buffers = _pickle(value)
        parts: list[Piece] = [pickled, *(buffer.raw() for buffer in buffers)]
    except Exception as error:
        raise TypeError(f"{what} cannot be sent: {type(error).__name__}: {error}") from error
    # Pad the pickle to align the buffers behind it. `pickle.loads` ignores bytes after the end of a pickle.
    parts[0] = pickled + bytes(-(_HEAD.size + _LENGTH * len(buffers) + len(pickled)) % ALIGNED)
    size = sum(map(len, parts))
    if size > MOST_BYTES:
        raise ContentTooLarge(f"{what}: {size} bytes, the limit is {MOST_BYTES}")
    return _pieces(kind, parts)


def _pieces(kind: FrameKind, parts: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of a frame. Short parts are joined, and long parts are separate pieces."""
    pieces: list[Piece] = []
    together: list[Piece] = [_head(kind, [len(part) for part in parts])]
    for part in parts:
        if len(part) < LARGE:
            together.append(part)
        else:
            pieces += (b"".join(together), part) if together else (part,)
            together = []
    if together:
        pieces.append(b"".join(together))
    return pieces


def _decode(frame: Frame, what: str) -> Any:
    try:
        return pickle.loads(frame.pickled, buffers=frame.buffers)
    except Exception as error:
        raise TypeError(f"{what} cannot be read here: {type(error).__name__}: {error}") from error


def _head(kind: FrameKind, lengths: list[int]) -> bytes:
    head = _HEAD.pack(_NUMBERS[kind], len(lengths) - 1, lengths[0])
    return head if len(lengths) == 1 else head + pack(f"<{len(lengths) - 1}Q", *lengths[1:])


def _checked(size: int) -> int:
    if size > MOST_BYTES:
        raise ValueError(f"a frame has {size} bytes, the limit is {MOST_BYTES}")
    return size
