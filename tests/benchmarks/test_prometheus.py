import json

from benchmarks.prometheus import DOCS, HEADING, RESULTS, section


def test_the_page_has_the_recorded_results() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    assert f"## {HEADING}\n\n{section(results)}" in DOCS.read_text("utf-8") + "\n"
