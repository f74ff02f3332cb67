"""What is stored in the state store cannot be read or changed without the access token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import CorruptValue
from app_toolkit.host.encryption import HEAD, Encryption

TOKENS = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TOKENS, KEYS, st.binary())
def test_an_encrypted_value_is_read_with_the_same_token(token: str, key: str, value: bytes) -> None:
    assert Encryption(token).decrypt(key, Encryption(token).encrypt(key, value)) == value


@given(st.binary(min_size=8).filter(lambda value: value not in HEAD))
def test_an_encrypted_value_does_not_contain_the_value(value: bytes) -> None:
    one, other = (Encryption("a token").encrypt("key", value) for _ in range(2))
    assert value not in one
    assert one != other


@given(st.binary(), st.data())
def test_a_value_that_was_changed_is_refused(value: bytes, data: st.DataObject) -> None:
    stored = bytearray(Encryption("a token").encrypt("key", value))
    stored[data.draw(st.integers(len(HEAD), len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptValue, match="it was encrypted with another access token, or changed"):
        Encryption("a token").decrypt("key", bytes(stored))


@given(st.binary(), st.data())
def test_a_value_that_was_cut_is_refused(value: bytes, data: st.DataObject) -> None:
    stored = Encryption("a token").encrypt("key", value)
    with pytest.raises(CorruptValue):
        Encryption("a token").decrypt("key", stored[: data.draw(st.integers(len(HEAD), len(stored) - 1))])


@given(TOKENS, TOKENS, KEYS, KEYS)
def test_a_value_of_another_token_or_key_is_refused(token: str, other: str, key: str, of: str) -> None:
    if (token, key) != (other, of):
        with pytest.raises(CorruptValue, match="start the cluster with the access token that it had"):
            Encryption(other).decrypt(of, Encryption(token).encrypt(key, b"value"))


def test_without_a_token_values_are_stored_as_they_are() -> None:
    assert Encryption(None).encrypt("key", b"value") == b"value"
    assert Encryption(None).decrypt("key", b"value") == b"value"


def test_a_value_from_before_the_token_can_be_read() -> None:
    assert Encryption("a token").decrypt("key", b"value") == b"value"


def test_an_encrypted_value_cannot_be_read_without_a_token() -> None:
    with pytest.raises(CorruptValue, match="it is encrypted, and this process has no access token"):
        Encryption(None).decrypt("key", Encryption("a token").encrypt("key", b"value"))
