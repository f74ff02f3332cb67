"""The page about the code is short and names files that exist; decisions have one form."""

import re

import pytest

from .pages import PAGES, ROOT, Page, page

PAGE = page("docs/architecture.md")
DECISIONS = [each for each in PAGES if re.match(r"docs/decisions/\d", each.name)]


@pytest.mark.parametrize("page", [PAGE, *DECISIONS], ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Page) -> None:
    named = re.findall(r"`?((?:\w+/)+(?:\w+\.py)?)(?:`|<br>)", page.text) + re.findall(r"`(\w+\.py)`", page.text)
    assert not [path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "app_toolkit"))]


def test_every_decision_that_a_table_names_is_a_module() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\w+`(?:, `\w+`)*) \|$", PAGE.text, re.MULTILINE)
    assert rows
    for package, cells in zip(("core", "controller"), zip(*rows, strict=True), strict=True):
        names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
        assert names <= {path.stem for path in (ROOT / "app_toolkit" / package).glob("*.py")}


def test_decisions_are_numbered_and_listed() -> None:
    numbers = [int(each.name.rpartition("/")[2][:4]) for each in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))
    listed = re.findall(r"^- \[(\d{4})\]\((\S+)\): (.+)$", page("docs/decisions/index.md").text, re.MULTILINE)
    titles = [each.text.partition("\n")[0].removeprefix(f"# {number}. ") for number, each in enumerate(DECISIONS, 1)]
    files = [each.name.rpartition("/")[2] for each in DECISIONS]
    assert listed == [(file[:4], file, title) for file, title in zip(files, titles, strict=True)]
