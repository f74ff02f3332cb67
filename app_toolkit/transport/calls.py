"""A call and its outcome as bytes: the body of a request, and of its answer.

Either is a sequence of frames. A request has one, the arguments, and behind it those of earlier answers that are passed
on among them, as they came. An answer has a value or an error; or any number of
items, and then the end or an error. A frame is a head (its kind, the number of its buffers, the lengths of all that
follows), one pickle (protocol 5), and the buffers that the pickle refers to: the data of NumPy arrays and of Arrow
tables, and long `bytes`.

* Nobody unpickles a frame by receiving it. Who decodes one has made sure that it comes from one of us.
* A frame of `OUT_OF_BAND_BYTES` or more goes out-of-band (`interfaces.Payloads`) if caller and replica have such a way,
  in the pieces that the socket would have got. In an answer, a frame of the kind "out_of_band" takes its place.
* Buffers are not copied. The writer must not change what he sends until it has left. What the reader gets is his alone
  and cannot be written to: an array is copied by whoever wants to change it. Long `bytes` are copied once where they
  came with other things, as a `bytearray` is in any case.
* What `pickle` cannot do (lambdas, what is defined in `__main__`) cloudpickle sends by value.
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

FrameKind = Literal["call", "value", "error", "item", "end", "out_of_band"]

MOST_BYTES = 1024**3
"""That one frame may have. What announces more is refused before any of it is kept."""

MOST_BUFFERS = 65_536
"""Of one frame; what an object has beyond them is a part of its pickle."""

LARGE = 64 * 1024
"""Bytes from which on a piece is written by itself, not joined with its neighbours."""

OUT_OF_BAND_BYTES = 32 * 1024 * 1024
"""A frame of this size or more goes out-of-band, if there is a way."""

ALIGNED = 16
"""Where the data of an array may begin: no type of NumPy's asks for more."""

LONGEST_TEXT = 10_000
"""Characters that are told of an error which cannot be sent otherwise."""

Piece = bytes | memoryview

_KINDS: tuple[FrameKind, ...] = get_args(FrameKind)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_HEAD = Struct("<BxxxIQ")
_LENGTH = 8
_OURS = f"{Path(__file__).parents[1]}{os.sep}"


class Frame(NamedTuple):
    """One frame, complete and not unpickled."""

    kind: FrameKind
    pickled: Piece
    buffers: list[Piece]

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.pickled) + sum(map(len, self.buffers))


class Sealed:
    """A value that came, and that nobody here has unpickled. As an argument of a call it goes on as it is."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def open(self) -> Any:
        """Raises `RemoteError` where it cannot be read here."""
        return decode_value(self.frame)


class Passed:
    """Stands, itself, where a sealed value belongs among arguments."""


class FrameReader:
    """Reads frames from a stream of bytes that is cut anywhere."""

    def __init__(self) -> None:
        self._chunks: deque[memoryview] = deque()
        self._have = 0
        self._need = _HEAD.size
        # Of the frame that has begun
        self._kind: FrameKind | None = None
        self._lengths: list[int] = []
        #: Buffers whose lengths have not come.
        self._unknown = 0

    @property
    def between(self) -> bool:
        """Whether what has come ends where a frame does."""
        return self._kind is None and not self._have

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that are complete now. `data` is kept, also by a frame of it, and must not change.

        Raises `ValueError` where these are no frames of ours, or one is too large.
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
            raise ValueError(f"a frame is of kind {number}, and the last that is known is {len(_KINDS) - 1}")
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
        """The next so many bytes, which have come; a long part that came in one piece is not copied where it lies well.

        One that can be written to is ours alone, and may be cut.
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
    """Whether an array may begin where this does, which can be written to."""
    return addressof(c_char.from_buffer(chunk)) % ALIGNED == 0


def frame_of(pieces: Iterable[Piece]) -> Frame:
    """The one frame that these pieces are. Raises `ValueError` where they are none, or more."""
    found = frames_of(pieces)
    if len(found) != 1:
        raise ValueError("it is not one whole frame")
    return found[0]


def frames_of(pieces: Iterable[Piece]) -> list[Frame]:
    """Raises `ValueError` where these pieces are no whole frames."""
    frames = FrameReader()
    found = [frame for piece in pieces for frame in frames.feed(piece)]
    if not frames.between:
        raise ValueError("it does not end where a frame does")
    return found


def is_out_of_band(pieces: Iterable[Piece]) -> bool:
    """Whether a frame in these pieces is too large for a socket that is not the only way."""
    return sum(map(len, pieces)) >= OUT_OF_BAND_BYTES


# What a caller sends, and what the replica makes of it


def encode_call(call: Call) -> list[Piece]:
    """The body of a call, in the order in which it is sent; the method's name is not in it.

    Raises `TypeError` for arguments that cannot be sent, `ContentTooLarge` for too many bytes of them.
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
        if type(value) is not Sealed:
            return _apart(value)
        passed.extend(_pieces("value", [value.frame.pickled, *value.frame.buffers]))
        return Passed

    args = tuple(map(apart, call.args))
    kwargs = {name: apart(value) for name, value in call.kwargs.items()}
    return _encode("call", (args, kwargs), what) + passed


def decode_call(method: str, frames: Sequence[Frame]) -> Call:
    """Raises `TypeError` where the arguments cannot be read here."""
    what = f"the arguments of {method}"
    args, kwargs = _decode(frames[0], what)
    if len(frames) > 1:
        passed = iter(frames[1:])
        args = tuple(_decode(next(passed), what) if value is Passed else value for value in args)
        kwargs = {name: _decode(next(passed), what) if value is Passed else value for name, value in kwargs.items()}
    return Call(method, args, kwargs)


# What a replica answers, and what the caller makes of it


def encode_value(value: Any) -> list[Piece]:
    """Raises as `encode_call` does; that is an answer, too: `encode_error`."""
    return _encode("value", _apart(value), "what the method gave")


def encode_item(item: Any) -> list[Piece]:
    """Raises as `encode_call` does."""
    return _encode("item", _apart(item), "what the method yielded")


def encode_end() -> list[Piece]:
    return [_head("end", [0])]


def encode_elsewhere() -> list[Piece]:
    """Stands for a frame that is to be collected out-of-band."""
    return [_head("out_of_band", [0])]


def encode_error(error: BaseException) -> list[Piece]:
    """Never raises: of an error that cannot be sent its text is."""
    text = "".join(traceback.format_exception_only(error)).strip()[:LONGEST_TEXT]
    try:
        pickled, _ = _pickle(_Error(error), apart=False)
        return _encode("error", (text, _traceback(error), pickled), "an error")
    except Exception:
        return _encode("error", (text, _traceback(error)[-LONGEST_TEXT:], None), "an error")


def decode_value(frame: Frame) -> Any:
    """Of a value or an item. Raises `RemoteError` where it cannot be read here."""
    try:
        return _decode(frame, "what the method gave")
    except TypeError as error:
        raise RemoteError(str(error)) from error


def decode_error(frame: Frame) -> Exception:
    """The error itself, with its traceback at the replica as a note; a `RemoteError` that names it where it cannot be
    sent, or read here."""
    text, trace, pickled = _decode(frame, "an error")
    error: object = None
    if pickled is not None:
        with suppress(Exception):  # whatever its class does when it is made anew
            error = pickle.loads(pickled)
    if not isinstance(error, Exception):
        error = RemoteError(text)
    error.add_note(trace)
    return error


class _Apart:
    """Long bytes: as they are they would be a part of the pickle, and copied with it."""

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self._value), (pickle.PickleBuffer(self._value),)


class _Error:
    """An error that is not made anew by its class: that would be called with what happens to be in `args`."""

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
    """The user's part of it, with what it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    shown = traceback.TracebackException(type(error), error, trace)
    shown.__notes__ = None  # they travel with it
    return "At the replica: " + "".join(shown.format()).rstrip()


def _apart(value: Any) -> Any:
    return _Apart(value) if type(value) in (bytes, bytearray) and len(value) >= LARGE else value


def _pickle(value: Any, *, apart: bool = True) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """`apart`: leave buffers out of it, and give them beside it."""
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) == MOST_BUFFERS:
            return True  # into the pickle
        buffers.append(buffer)
        return False

    callback = keep if apart else None
    try:
        pickled = pickle.dumps(value, 5, buffer_callback=callback)
        if b"__main__" not in pickled:  # what it names is another module at the reader's
            return pickled, buffers
    except Exception:
        pass  # cloudpickle can, or knows why nobody can
    buffers.clear()
    return cloudpickle.dumps(value, 5, callback), buffers


def _encode(kind: FrameKind, value: Any, what: str) -> list[Piece]:
    try:
        pickled, buffers = _pickle(value)
        parts: list[Piece] = [pickled, *(buffer.raw() for buffer in buffers)]
    except Exception as error:
        raise TypeError(f"{what} cannot be sent: {type(error).__name__}: {error}") from error
    # What lies behind the pickle begins where an array may; nobody reads a pickle beyond its end.
    parts[0] = pickled + bytes(-(_HEAD.size + _LENGTH * len(buffers) + len(pickled)) % ALIGNED)
    size = sum(map(len, parts))
    if size > MOST_BYTES:
        raise ContentTooLarge(f"{what}: {size} bytes, the limit is {MOST_BYTES}")
    return _pieces(kind, parts)


def _pieces(kind: FrameKind, parts: Sequence[Piece]) -> list[Piece]:
    """A frame as it is sent: what is short together, what is long by itself."""
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
