"""The page of outcomes names every error that a client may see, with its status, and nothing else."""

import re
from collections.abc import Iterator

from app_toolkit import errors as tree
from app_toolkit.errors import RequestError
from app_toolkit.proxy.exchange import CLIENT_GONE, CUT, OK

from .pages import page

PAGE = page("docs/outcomes.md")
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


def errors(root: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    yield root
    for error in root.__subclasses__():
        yield from errors(error)


def test_every_outcome_is_on_the_page_with_its_status() -> None:
    rows = {word: status for word, status, _, _ in ROW.findall(PAGE.below("Outcomes"))}
    others = {word: rows.pop(word) for word in (OK, CUT, CLIENT_GONE)}
    assert others == {OK: "your app's", CUT: "your app's", CLIENT_GONE: "499, in the log only"}
    assert rows == {error.reason: str(error.status) for error in errors()}


def test_one_error_is_one_outcome() -> None:
    reasons = [error.reason for error in errors()]
    assert len(set(reasons)) == len(reasons)


def test_every_error_is_in_the_drawing_of_the_tree() -> None:
    drawing = tree.__doc__ or ""
    for error in errors():
        if error is not RequestError:
            assert re.search(rf"^ +{error.__name__} +{error.status}\b", drawing, re.MULTILINE), error
