"""The pages about the code name files that exist, and a module links each design note."""

import re

import pytest

from .pages import PAGES, ROOT, Page, page

PAGE = page("docs/architecture.md")
INDEX = page("docs/design/index.md")
NOTES = [note for note in PAGES if note.name.startswith("docs/design/") and note != INDEX]


@pytest.mark.parametrize("page", [PAGE, *NOTES], ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Page) -> None:
    named = re.findall(r"`?((?:\w+/)+(?:\w+\.py)?)(?:`|<br>)", page.text) + re.findall(r"`(\w+\.py)`", page.text)
    assert not [path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "app_toolkit"))]


def test_every_decision_that_a_table_names_is_a_module() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\w+`(?:, `\w+`)*) \|$", PAGE.text, re.MULTILINE)
    assert rows
    for cells in zip(*rows, strict=True):
        names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
        assert names <= {path.stem for path in (ROOT / "app_toolkit/control").glob("*.py")}


def test_index_and_modules_link_each_design_note() -> None:
    notes = {note.name for note in NOTES}
    assert notes == {f"docs/design/{name}" for name in re.findall(r"^- \[.+\]\((\S+)\)", INDEX.text, re.MULTILINE)}
    modules = (path.read_text("utf-8") for path in (ROOT / "app_toolkit").rglob("*.py"))
    assert notes == {name for text in modules for name in re.findall(r"^Design: (\S+)$", text, re.MULTILINE)}
