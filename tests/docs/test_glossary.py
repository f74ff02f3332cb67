"""The glossary is short, and has what the pages need."""

import re

from .pages import PAGES, page

PAGE = page("docs/glossary.md")
MOST_TERMS = 55


def terms() -> dict[str, str]:
    return dict(re.findall(r"^\| ([a-z -]+) \| ([A-Z].*) \|$", PAGE.text, re.MULTILINE))


def test_the_glossary_has_few_terms_in_order() -> None:
    names = list(terms())
    assert names == sorted(names)
    assert len(names) <= MOST_TERMS
    assert len(names) == PAGE.text.count("\n| ") - 1, "every row but the head is a term"


def test_each_term_has_one_sentence() -> None:
    for term, meaning in terms().items():
        assert re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", meaning), term


def test_each_term_is_used_on_another_page() -> None:
    others = " ".join(" ".join(each.text.lower().split()) for each in PAGES if each != PAGE)
    assert not [term for term in terms() if term not in others]
