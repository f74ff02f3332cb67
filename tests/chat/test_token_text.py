"""Texts that arrive as tokens, of which each is one byte."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat.token_text import MAX_WAITING, UNFINISHED, TokenText


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def words(tokens: Sequence[int]) -> str:
    """A decoder that puts a space before each word but the first one, and shows no special tokens."""
    return " ".join("abcdefghij"[token] for token in tokens if token < 10)


# Without U+FFFD itself, which looks like a character that is not complete.
characters = st.text(st.characters(exclude_characters=UNFINISHED, exclude_categories=["Cs"]), max_size=20)


@given(characters)
def test_a_text_is_sent_in_complete_characters(text: str) -> None:
    stream = TokenText(decode)
    parts = [stream.add(byte) for byte in text.encode()]
    assert "".join(parts) + stream.end() == text
    assert not any(UNFINISHED in part for part in parts)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_hold_nothing_back(tokens: bytes) -> None:
    stream = TokenText(decode)
    silent = 0
    for byte in tokens:
        silent = 0 if stream.add(byte) else silent + 1
        assert silent < MAX_WAITING


@given(st.lists(st.integers(0, 12), max_size=20))
def test_spaces_between_tokens_are_kept_and_special_tokens_are_left_out(tokens: list[int]) -> None:
    stream = TokenText(words)
    assert "".join([stream.add(token) for token in tokens]) + stream.end() == words(tokens)


def test_the_beginning_of_a_character_is_left_out_at_the_end() -> None:
    stream = TokenText(decode)
    assert [stream.add(byte) for byte in "aä".encode()[:2]] == ["a", ""]
    assert stream.end() == ""
