"""References to variables of the environment, and text that only looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config import references

TEXTS = st.lists(st.sampled_from(["$", "{", "}", "${A}", "$$", "a", "${", " "]) | st.text(), max_size=8).map("".join)


def test_references_to_variables_are_resolved() -> None:
    text = "Bearer ${TOKEN}, ${A}${A}"
    assert list(references.names(text)) == ["TOKEN", "A", "A"]
    assert references.resolve(text, {"TOKEN": "t", "A": "${B}"}) == "Bearer t, ${B}${B}"


@pytest.mark.parametrize("text", ["", "$HOME", "$", "$$", "a$b{c}", "{A}", "$${A}", "$${"])
def test_text_similar_to_a_reference_is_not_resolved(text: str) -> None:
    assert list(references.names(text)) == []
    assert references.resolve(text, {}) == text.replace("$${", "${")


@pytest.mark.parametrize("text", ["${", "${}", "${A", "${A B}", "${1}", "${A:-b}", "a${A", "${A} ${"])
def test_a_reference_needs_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="is written"):
        list(references.names(text))


@given(TEXTS)
def test_escaped_reference_is_not_resolved(text: str) -> None:
    assert list(references.names(references.escape(text))) == []
    assert references.resolve(references.escape(text), {}) == text


@pytest.mark.slow
@given(st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_texts_are_changed_at_every_level_and_keys_never(value: object) -> None:
    marked = references.each_text(value, lambda text: f"!{text}")
    assert [place for place, _ in references.texts(marked)] == [place for place, _ in references.texts(value)]
    assert all(text.startswith("!") for _, text in references.texts(marked))
    assert references.each_text(marked, lambda text: text[1:]) == value
