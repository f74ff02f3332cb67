from argparse import Namespace

from benchmarks.metrics import measure, middle, report, section
from benchmarks.report import replace_section


def test_scrape_has_the_metrics_of_all_simulated_processes() -> None:
    few, many = measure(10, 1), measure(20, 2)
    assert few.lines > 10 * 100
    assert many.lines > 1.9 * few.lines
    found = middle([few, many, many])
    assert found.lines == many.lines
    text = section(found, Namespace(deployments=20, replicas=2, rounds=3))
    assert report(found) in text
    assert "20 deployments with 2 replicas each" in text


def test_section_of_a_page_is_replaced_or_added() -> None:
    page = "# Page\n\nAbout.\n"
    one = replace_section(page, "One", "first\n")
    assert one == "# Page\n\nAbout.\n\n## One\n\nfirst\n"
    both = replace_section(one, "Two", "second")
    assert both == f"{one}\n## Two\n\nsecond\n"
    assert replace_section(both, "One", "changed") == both.replace("first", "changed")
    assert replace_section(both, "Two", "second") == both
