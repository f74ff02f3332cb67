"""Names that were replaced by standard terms do not come back."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RETIRED = {
    "Answer",
    "AnswerUnreadable",
    "BadAnswer",
    "Called",
    "Callers",
    "Deposits",
    "Edge",
    "Elsewhere",
    "Errand",
    "GroupStatus",
    "Instance",
    "LocalReply",
    "Patience",
    "Plane",
    "Reading",
    "Reception",
    "RemoteCaller",
    "Reply",
    "Sealed",
    "bad_answer",
    "deposit",
    "deposits",
    "errand",
    "gate",
    "good",
    "patience",
    "posted",
    "readings",
    "sealed",
    "told",
    "wanted",
}


def names(path: Path) -> set[str]:
    """Return the names in the code of a file, or in the code spans of a page."""
    if path.suffix == ".md":
        return {name for span in re.findall(r"`([^`\n]+)`", path.read_text()) for name in re.findall(r"\w+", span)}
    with path.open("rb") as file:
        return {token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME}


@pytest.mark.parametrize("pattern", ["app_toolkit/**/*.py", "docs/**/*.md"])
def test_no_file_uses_a_retired_name(pattern: str) -> None:
    paths = sorted(ROOT.glob(pattern))
    found = {str(path.relative_to(ROOT)): used for path in paths if (used := names(path) & RETIRED)}
    assert paths
    assert not found
