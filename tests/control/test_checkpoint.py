"""A checkpoint is read only if a controller has written it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.control import checkpoint
from app_toolkit.control.checkpoint import SCHEMA_VERSION, decode_checkpoint, encode_checkpoint
from app_toolkit.errors import CorruptValue

KEY = "applications/shop"
keys = st.sampled_from([KEY, "applications/shoe", "http", "epoch"])
checkpoints = st.binary(max_size=200)


@given(keys, checkpoints)
def test_checkpoint_is_read_as_written(key, written):
    assert decode_checkpoint(key, encode_checkpoint(key, written)) == written


@given(keys, keys, checkpoints)
def test_under_another_key_it_is_not_believed(key, other, written):
    if key != other:
        with pytest.raises(CorruptValue, match="its checksum is not that of its content"):
            decode_checkpoint(other, encode_checkpoint(key, written))


@given(checkpoints, st.data())
def test_no_byte_of_it_can_be_another_one(written, data):
    value = bytearray(encode_checkpoint(KEY, written))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptValue):
        decode_checkpoint(KEY, bytes(value))


@given(checkpoints, st.data())
def test_nothing_of_it_can_be_missing_or_too_much(written, data):
    value = encode_checkpoint(KEY, written)
    begin = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(begin, len(value)))
    cut, more = value[:begin] + value[end:], data.draw(st.binary(min_size=1, max_size=9))
    for other in (cut, value + more, more + value):
        if other != value:
            with pytest.raises(CorruptValue):
                decode_checkpoint(KEY, other)


@given(st.binary(max_size=300))
def test_unsigned_checkpoint_is_refused(value):
    with pytest.raises(CorruptValue):
        decode_checkpoint(KEY, value)


def test_a_later_schema_is_named(monkeypatch):
    monkeypatch.setattr(checkpoint, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    later = encode_checkpoint(KEY, b"{}")
    monkeypatch.undo()
    with pytest.raises(CorruptValue, match="its schema version is 2, and this version reads 1 at most"):
        decode_checkpoint(KEY, later)
