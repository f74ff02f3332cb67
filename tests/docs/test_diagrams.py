"""The drawings of the diagrams in the pages."""

import re

from benchmarks.diagrams import DOCS, FOLDER, diagrams, is_drawn


def test_every_diagram_is_drawn_and_needs_no_network() -> None:
    drawings = {}
    for file in DOCS.rglob("*.md"):
        drawings |= dict(diagrams(file.relative_to(DOCS).as_posix(), file.read_text("utf-8")))
    assert drawings
    assert [path for path, source in drawings.items() if not is_drawn(path, source)] == []
    assert {f"{FOLDER}/{file.name}" for file in (DOCS / FOLDER).iterdir()} == drawings.keys()
    for path in drawings:
        hosts = set(re.findall(r"https?://([^/\"']+)", (DOCS / path).read_text("utf-8")))
        assert hosts <= {"www.w3.org"}, "names of namespaces, which nothing loads"
