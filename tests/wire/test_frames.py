"""Frame boundaries, against the library that writes the frames, in streams that are cut anywhere."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode

from app_toolkit.wire.frames import LONGEST_REASON, WebSocketFrames, close_frame

CONTROL = (Opcode.CLOSE, Opcode.PING, Opcode.PONG)
LENGTHS = st.one_of(st.integers(0, 130), st.sampled_from((65_535, 65_536, 70_000)))


@st.composite
def frames(draw: st.DrawFn) -> tuple[Opcode, bytes]:
    opcode = draw(st.sampled_from(list(Opcode)))
    length = draw(st.integers(0, 125) if opcode in CONTROL else LENGTHS)
    frame = Frame(opcode, bytes(length), fin=opcode in CONTROL or draw(st.booleans()))
    return opcode, frame.serialize(mask=draw(st.booleans()))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(frames(), max_size=8), st.data())
def test_a_close_frame_may_follow_exactly_between_frames_and_after_no_other(
    written: list[tuple[Opcode, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(each for _, each in written)
    ends = [0, *accumulate(len(each) for _, each in written)]
    opcodes = [opcode for opcode, _ in written]
    closing = opcodes.index(Opcode.CLOSE) if Opcode.CLOSE in opcodes else len(written)
    allowed = set(ends[: closing + 1])
    # Heads are where it is difficult: cut there more often than by chance.
    near = [place for end in ends for place in range(end, min(end + 15, len(stream)))]
    places = st.integers(0, len(stream)) if not near else st.one_of(st.integers(0, len(stream)), st.sampled_from(near))
    followed, at = WebSocketFrames(), 0
    for chunk in cut(stream, data.draw(st.lists(places, max_size=30))):
        followed.follow(chunk)
        at += len(chunk)
        assert followed.may_close is (at in allowed)


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536])
def test_a_stream_that_comes_byte_by_byte_is_followed(length: int) -> None:
    stream = Frame(Opcode.BINARY, bytes(length)).serialize(mask=False) * 2
    followed = WebSocketFrames()
    allowed = []
    for at in range(len(stream)):
        followed.follow(stream[at : at + 1])
        if followed.may_close:
            allowed.append(at + 1)
    assert allowed == [len(stream) // 2, len(stream)]


@pytest.mark.parametrize("reason", ["", "the replica was lost", "x" * LONGEST_REASON])
def test_a_close_frame_equals_that_of_a_server(reason: str) -> None:
    assert close_frame(1012, reason) == Frame(Opcode.CLOSE, Close(1012, reason).serialize()).serialize(mask=False)
    followed = WebSocketFrames()
    followed.follow(close_frame(1012, reason))
    assert not followed.may_close
