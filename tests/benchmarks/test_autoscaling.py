"""The page and the plot of the autoscaling benchmark."""

import json

from benchmarks.autoscaling import (
    DOCS,
    PLOT,
    RESULTS,
    document,
    drawing,
)
from benchmarks.report import with_document


def test_the_page_and_its_plot_are_generated_from_the_results() -> None:
    known = json.loads(RESULTS.read_text())
    assert DOCS.read_text() == with_document(DOCS.read_text(), document(known))
    assert PLOT.read_text() == drawing(known)
