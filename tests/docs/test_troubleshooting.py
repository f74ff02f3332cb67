"""The page of troubleshooting lists every error of a request, with its status, its cause and what to do."""

import re
from collections.abc import Iterator

from app_toolkit.errors import RequestError
from app_toolkit.observability.records import CLIENT_GONE, CUT, OK

from .pages import page

PAGE = page("docs/troubleshooting.md")
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| (.+?) \| (.+?) \|$", re.MULTILINE)
OUTCOME = re.compile(r"^\| `(\w+)` \| (.*?) \| .+? \|$", re.MULTILINE)


def errors(root: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    yield root
    for error in root.__subclasses__():
        yield from errors(error)


def test_every_reason_is_on_the_page_with_its_status() -> None:
    rows = ROW.findall(PAGE.below("Errors of a request"))
    assert {reason: status for reason, status, _, _ in rows} == {each.reason: str(each.status) for each in errors()}
    assert len(rows) == len(list(errors())), "a reason has one row"


def test_every_other_outcome_is_on_the_page() -> None:
    section = PAGE.text.partition("### Outcomes without an error")[2].partition("\n## ")[0]
    assert dict(OUTCOME.findall(section)) == {OK: "your app's", CUT: "your app's", CLIENT_GONE: "499, in the log only"}


def test_one_error_is_one_outcome() -> None:
    reasons = [error.reason for error in errors()]
    assert len(set(reasons)) == len(reasons)
