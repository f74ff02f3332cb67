import json

from benchmarks.prometheus import DOCS, HEADING, RESULTS, section


def test_the_page_has_the_recorded_results() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    assert f"## {HEADING}\n\n{section(results)}" in DOCS.read_text("utf-8") + "\n"


def test_differences_between_clients_and_metrics_are_shown() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    results["seen"] = {"200 ok": 7}
    results["counted"] = {"200 ok": 5, "503 queue_full": 1}
    text = section(results)
    assert "| 200 ok | 7 | 5 |" in text
    assert "| 503 queue_full | 0 | 1 |" in text
