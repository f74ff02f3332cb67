"""Texts that end at a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat.stop_strings import StopStrings

texts = st.text("ab", max_size=12)
strings = st.lists(st.text("ab", max_size=4), max_size=3)


def expected(parts: list[str], stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete first, and whether there is one."""
    seen = ""
    for part in parts:
        seen += part
        if found := [seen.find(each) for each in stops if each and each in seen]:
            return seen[: min(found)], True
    return seen, False


@given(st.lists(texts, max_size=6), strings)
def test_the_text_ends_before_the_string_that_is_complete_first(parts: list[str], stops: list[str]) -> None:
    stop = StopStrings(stops)
    text = "".join([stop.add(part) for part in parts])
    assert (text + stop.end(), stop.stopped) == expected(parts, stops)


@given(texts, strings)
def test_only_the_possible_beginning_of_a_string_is_held_back(text: str, stops: list[str]) -> None:
    stop = StopStrings(stops)
    sent = stop.add(text)
    if not stop.stopped:
        held = stop.end()
        assert sent + held == text
        assert not held or any(each.startswith(held) and each != held for each in stops)


def test_a_string_that_is_split_is_found() -> None:
    stop = StopStrings(["<end>", "###"])
    assert [stop.add(part) for part in ("one <", "b> <en", "d> two", "three")] == ["one ", "<b> ", "", ""]
    assert stop.match == "<end>"
    assert stop.end() == ""
