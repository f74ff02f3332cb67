"""`${NAME}`: what refers to the environment, and what only looks like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config import references

TEXTS = st.lists(st.sampled_from(["$", "{", "}", "${A}", "$$", "a", "${", " "]) | st.text(), max_size=8).map("".join)


def test_a_text_is_resolved_wherever_it_refers_to_a_variable() -> None:
    text = "Bearer ${TOKEN}, ${A}${A}"
    assert list(references.names(text)) == ["TOKEN", "A", "A"]
    assert references.resolve(text, {"TOKEN": "t", "A": "${B}"}) == "Bearer t, ${B}${B}"


@pytest.mark.parametrize("text", ["", "$HOME", "$", "$$", "a$b{c}", "{A}", "$${A}", "$${"])
def test_what_only_looks_like_it_refers_to_nothing(text: str) -> None:
    assert list(references.names(text)) == []
    assert references.resolve(text, {}) == text.replace("$${", "${")


@pytest.mark.parametrize("text", ["${", "${}", "${A", "${A B}", "${1}", "${A:-b}", "a${A", "${A} ${"])
def test_a_reference_needs_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="is written"):
        list(references.names(text))


@given(TEXTS)
def test_what_is_escaped_refers_to_nothing_and_resolves_to_itself(text: str) -> None:
    assert list(references.names(references.escape(text))) == []
    assert references.resolve(references.escape(text), {}) == text


@pytest.mark.slow
@given(st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_texts_are_changed_wherever_they_are_and_keys_never(value: object) -> None:
    marked = references.each_text(value, lambda text: f"!{text}")
    assert [place for place, _ in references.texts(marked)] == [place for place, _ in references.texts(value)]
    assert all(text.startswith("!") for _, text in references.texts(marked))
    assert references.each_text(marked, lambda text: text[1:]) == value
