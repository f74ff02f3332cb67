"""Calls and their outcomes as bytes."""

import pickle
import random
import struct
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import ContentTooLarge, QueueFull, RemoteError
from app_toolkit.interfaces import Call
from app_toolkit.wire import calls, hop
from app_toolkit.wire.calls import (
    LARGE,
    MOST_BUFFERS,
    MOST_BYTES,
    EncodedValue,
    Frame,
    FrameReader,
    Piece,
    decode_call,
    decode_error,
    decode_value,
    encode_call,
    encode_end,
    encode_error,
    encode_item,
    encode_value,
    frame_of,
    frames_of,
    is_out_of_band,
)

HEAD = struct.Struct("<BxxxIQ")


def whole(pieces: list[Piece]) -> bytes:
    return b"".join(pieces)


def only(pieces: list[Piece]) -> Frame:
    frames = FrameReader()
    (frame,) = frames.feed(whole(pieces))
    assert frames.between
    return frame


def there_and_back(value: Any) -> Any:
    return decode_value(only(encode_value(value)))


# What goes out-of-band


def test_every_array_of_a_long_body_is_aligned() -> None:
    odd, numbers = np.arange(LARGE + 1, dtype=np.uint8), np.arange(LARGE, dtype=np.float64)
    whole = memoryview(bytearray(b"".join(encode_call(Call("write", (odd, numbers), {})))))
    first, second = decode_call("write", FrameReader().feed(whole)).args
    assert np.shares_memory(first, np.frombuffer(whole, np.uint8)), "it lies where it was read"
    assert np.array_equal(first, odd)
    assert second.flags.aligned
    assert np.array_equal(second, numbers)


def test_pieces_are_read_in_place() -> None:
    array = np.arange(LARGE, dtype=np.uint8)
    pieces = encode_value(array)
    came = decode_value(frame_of(pieces))
    assert np.shares_memory(came, array)
    assert not came.flags.writeable


@pytest.mark.parametrize(
    "pieces",
    [[], [*encode_value(1)[:-1], b"\x00"], encode_value(1) * 2, [b"".join(encode_value(1))[:-1]]],
    ids=["nothing", "a broken one", "two", "half of one"],
)
def test_pieces_that_are_not_one_frame_are_refused(pieces: list[Piece]) -> None:
    with pytest.raises(ValueError, match=r"not exactly one complete frame|ends within a frame"):
        frame_of(pieces)


def test_a_frame_goes_to_the_object_store_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = encode_value(b"x" * LARGE)
    size = sum(map(len, pieces))
    monkeypatch.setattr(calls, "OUT_OF_BAND_BYTES", size + 1)
    assert not is_out_of_band(pieces)
    monkeypatch.setattr(calls, "OUT_OF_BAND_BYTES", size)
    assert is_out_of_band(pieces)


@pytest.mark.parametrize(
    "said",
    [
        hop.CallField("write", "", False),
        hop.CallField("größe", "a-1f", False),
        hop.CallField("write", "a-1f", True),
    ],
)
def test_the_field_of_a_call_is_decoded_as_encoded(said: hop.CallField) -> None:
    field = hop.encode_call(said.method, said.key, out_of_band=said.out_of_band)
    assert hop.decode_call(field.decode()) == said


def test_a_table_is_read_in_place() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pyarrow.table({"number": np.arange(LARGE), "text": [f"row {number}" for number in range(LARGE)]})
    pieces = encode_value(table)
    came = decode_value(frame_of(pieces))
    assert came.equals(table)
    for name in ("number", "text"):
        (here,), (there,) = came[name].chunks, table[name].chunks
        given = [buffer.address for buffer in there.buffers() if buffer is not None]
        assert [buffer.address for buffer in here.buffers() if buffer is not None] == given
        assert not any(buffer.is_mutable for buffer in here.buffers() if buffer is not None)


def test_a_received_value_is_passed_on_without_unpickling() -> None:
    here.clear()
    array = np.arange(LARGE, dtype=np.uint8)
    frames = [only(encode_value(value)) for value in (array, Traveller(), b"x" * LARGE)]
    encoded = [EncodedValue(frame) for frame in frames]
    keywords = {"more": encoded[2], "and": [1]}
    pieces = encode_call(Call("write", (encoded[0], "between", encoded[1]), keywords, passes_on=True))
    assert here == []
    assert any(piece is frames[0].buffers[0] for piece in pieces), "what is long is not copied"
    call = decode_call("write", frames_of(pieces))
    assert here == ["came"]
    came, between, traveller = call.args
    assert (between, type(traveller)) == ("between", Traveller)
    assert call.kwargs == {"more": b"x" * LARGE, "and": [1]}
    assert np.array_equal(came, array)
    assert np.shares_memory(came, encoded[0].open()), "which can be opened, too"


def test_a_value_that_cannot_be_decoded_is_an_error_when_it_is_opened() -> None:
    encoded = EncodedValue(only(encode_value(Fragile())))
    with pytest.raises(TypeError, match=r"^the arguments of write cannot be read here: ImportError"):
        decode_call("write", frames_of(encode_call(Call("write", (encoded,), {}, passes_on=True))))
    with pytest.raises(RemoteError, match=r"^the result of the method cannot be read here: ImportError"):
        encoded.open()


here: list[str] = []


class Traveller:
    """Notes each time that it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, ()


def _arrive() -> Traveller:
    here.append("came")
    return Traveller()


def test_a_call_that_names_its_method_alone_has_no_other_way() -> None:
    assert hop.decode_call("write") == hop.CallField("write", "", False)


# What travels


def test_a_call_brings_its_arguments_and_is_named_by_its_head() -> None:
    frame = only(encode_call(Call("write", (1, "a"), {"times": [2]}, timeout_s=3.0, retry="all")))
    assert frame.kind == "call"
    assert decode_call("write", [frame]) == Call("write", (1, "a"), {"times": [2]})


def test_each_kind_of_outcome_is_known_by_its_frame() -> None:
    pieces = [*encode_item(1), *encode_item(None), *encode_end(), *encode_value("a"), *encode_error(ValueError())]
    assert [frame.kind for frame in FrameReader().feed(whole(pieces))] == ["item", "item", "end", "value", "error"]


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False), st.lists))
def test_a_value_arrives_as_it_was(value: object) -> None:
    assert there_and_back(value) == value


def test_something_small_is_one_piece() -> None:
    assert len(encode_call(Call("write", (np.arange(10), b"abc"), {}))) == 1


@pytest.mark.parametrize("size", [3, LARGE])
def test_an_array_is_not_copied_on_either_side_and_cannot_be_written_to(size: int) -> None:
    array = np.arange(size, dtype=np.float64)
    pieces = encode_value({"deep": [array, array[:2]]})
    if size == LARGE:
        (view,) = [piece for piece in pieces if isinstance(piece, memoryview)]
        assert np.shares_memory(np.frombuffer(view), array), "the writer sends it from where it lies"
    frame = only(pieces)
    read, part = decode_value(frame)["deep"]
    assert read.tolist() == array.tolist()
    assert part.tolist() == [0, 1]
    assert np.shares_memory(read, np.frombuffer(frame.buffers[0])), "the reader sees what has come"
    assert not read.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 7


def test_long_bytes_are_the_bytes_that_came() -> None:
    given = b"x" * LARGE
    frame = only(encode_call(Call("write", (given,), {"more": bytearray(given)})))
    call = decode_call("write", [frame])
    assert call.args[0] == given
    assert call.args[0] is frame.buffers[0]
    changeable = call.kwargs["more"]
    assert type(changeable) is bytearray
    changeable[0] = 0
    assert len(frame.pickled) < 1000


def test_buffers_beyond_the_limit_are_a_part_of_the_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_BUFFERS", 2)
    arrays = [np.full(4, number) for number in range(5)]
    frame = only(encode_value(arrays))
    assert len(frame.buffers) == 2
    assert [array.tolist() for array in decode_value(frame)] == [array.tolist() for array in arrays]


def test_objects_that_pickle_cannot_import_go_by_value() -> None:
    factor = 3
    assert there_and_back(lambda number: number * factor)(2) == 6


def test_a_class_of_main_is_not_looked_for_in_the_readers_main(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    exec("class Point:\n    def __init__(self, x):\n        self.x = x", script.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "__main__", script)
    assert b"__main__" in pickle.dumps(script.Point(1)), "plain pickle would name it"
    frame = only(encode_value(script.Point(4)))
    del script.__dict__["Point"]
    assert decode_value(frame).x == 4


def test_a_value_that_cannot_be_encoded_is_an_error_of_the_sender() -> None:
    with pytest.raises(TypeError, match=r"^the arguments of write cannot be sent: TypeError: .+ '_thread.lock'"):
        encode_call(Call("write", (threading.Lock(),), {}))
    with pytest.raises(TypeError, match=r"^the result of the method cannot be sent"):
        encode_value(threading.Lock())
    with pytest.raises(TypeError, match=r"^an item of the method cannot be sent"):
        encode_item(threading.Lock())


def test_too_much_for_one_frame_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 1_000)
    with pytest.raises(ContentTooLarge, match=r"^the arguments of write: \d+ bytes, the limit is 1000$"):
        encode_call(Call("write", ("x" * 1_000,), {}))


class Fragile:
    """Cannot be made anew."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("there is no such module here")


def test_a_value_that_cannot_be_decoded_is_an_error_of_the_reader() -> None:
    with pytest.raises(TypeError, match=r"^the arguments of write cannot be read here: ImportError: there is no such"):
        decode_call("write", [only(encode_call(Call("write", (Fragile(),), {})))])
    with pytest.raises(
        RemoteError, match=r"^the result of the method cannot be read here: ImportError: there is no such"
    ):
        there_and_back(Fragile())


# Errors


class Picky(Exception):
    """Is made of something else than its `args`."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Gone(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def raised(make: Callable[[], BaseException]) -> BaseException:
    try:
        raise make()
    except BaseException as error:
        return error


def brought(error: BaseException) -> Exception:
    return decode_error(only(encode_error(error)))


def test_an_error_arrives_as_itself_with_its_traceback_as_a_note() -> None:
    error = brought(raised(lambda: KeyError("nothing")))
    assert type(error) is KeyError
    assert error.args == ("nothing",)
    (note,) = error.__notes__
    assert note.startswith("At the replica: Traceback (most recent call last):\n")
    assert "raise make()" in note
    assert note.endswith("KeyError: 'nothing'")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Picky(7, reason="why not"),
        lambda: HTTPException(status_code=404, detail="no such item"),
        lambda: OSError(2, "no such file", "a.txt"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        lambda: QueueFull("100 requests wait"),
        lambda: ExceptionGroup("two", [ValueError(1), KeyError(2)]),
    ],
)
def test_errors_keep_their_text_and_attributes(make: Callable[[], Exception]) -> None:
    error = make()
    came = brought(raised(lambda: error))
    del came.__notes__
    assert type(came) is type(error)
    assert str(came) == str(error)
    assert {**vars(came)} == {**vars(error)}


def test_the_note_has_the_traceback_of_user_code_only() -> None:
    def fail() -> None:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("then") from error

    try:
        fail()
    except KeyError as error:
        (note,) = brought(error).__notes__
    assert "ValueError: first" in note
    assert "The above exception was the direct cause" in note


def test_notes_are_added_once_over_several_replicas() -> None:
    error = raised(lambda: ValueError("deep"))
    for _ in range(3):
        error = raised(lambda error=error: brought(error))  # type: ignore[misc]
    assert len(error.__notes__) == 3
    assert all(note.count("At the replica") == 1 for note in error.__notes__)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Locked, r"tests\.wire\.test_calls\.Locked: holds a lock"),
        (lambda: Gone("went"), r"tests\.wire\.test_calls\.Gone: went"),
        (lambda: SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_error_that_cannot_be_brought_is_named(make: Callable[[], BaseException], said: str) -> None:
    error = brought(raised(make))
    assert type(error) is RemoteError
    assert error.status == 500
    with pytest.raises(RemoteError, match=f"^{said}"):
        raise error
    assert "raise make()" in error.__notes__[0]


def test_an_error_without_a_text_arrives() -> None:
    assert type(brought(raised(Mute))) is Mute


def test_an_error_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 50_000)
    error = brought(raised(lambda: ValueError("x" * 60_000)))
    assert type(error) is RemoteError
    assert len(str(error)) <= calls.LONGEST_TEXT


# The reader


@given(st.integers(0, 2**32))
def test_frames_are_the_same_however_the_stream_is_cut(seed: int) -> None:
    world = random.Random(seed)
    values = [world.choice(SAMPLES) for _ in range(world.randrange(1, 6))]
    stream = whole([piece for value in values for piece in encode_item(value)] + encode_end())
    frames, found, at = FrameReader(), [], 0
    while at < len(stream):
        size = world.choice((0, 1, 2, 15, 16, 17, 40, 5_000, 70_000))
        chunk = stream[at : at + size]
        found += frames.feed(memoryview(chunk) if world.random() < 0.5 else chunk)
        at += size
    assert frames.between
    assert [frame.kind for frame in found] == ["item"] * len(values) + ["end"]
    assert found == FrameReader().feed(stream)
    for value, frame in zip(values, found, strict=False):
        came = decode_value(frame)
        assert came.tolist() == value.tolist() if isinstance(value, np.ndarray) else came == value


SAMPLES: list[Any] = [None, "a" * 100, np.arange(3), np.arange(20_000), b"x" * (LARGE + 1), {"a": [1, 2.5]}]


def test_nothing_is_given_before_its_last_byte() -> None:
    stream = whole(encode_value(np.arange(4)))
    for cut in range(len(stream)):
        frames = FrameReader()
        assert frames.feed(stream[:cut]) == []
        assert frames.between == (cut == 0)
        (frame,) = frames.feed(stream[cut:])
        assert decode_value(frame).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (HEAD.pack(9, 0, 0), "unknown frame kind 9; the highest known kind is 5"),
        (HEAD.pack(1, 0, MOST_BYTES + 1), f"a frame has {MOST_BYTES + 1} bytes, the limit is {MOST_BYTES}"),
        (HEAD.pack(1, MOST_BUFFERS + 1, 0), f"a frame has {MOST_BUFFERS + 1} buffers, the limit is {MOST_BUFFERS}"),
        (
            HEAD.pack(1, 2, 1) + struct.pack("<2Q", MOST_BYTES, 2**63),
            f"a frame has {1 + MOST_BYTES + 2**63} bytes, the limit is {MOST_BYTES}",
        ),
    ],
)
def test_an_unknown_frame_is_refused_before_its_data(stream: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        FrameReader().feed(stream)
