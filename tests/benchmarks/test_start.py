from benchmarks.start import SPEEDS, START_FIGURES, document, ratio_table, table

FIGURES = {
    "uvicorn": {"first_1": [0.5, 0.6, 0.7], "get": [1_000.0, 2_000.0, None], "mixed": [10.0, 20.0, 30.0]},
    "granian": {"first_1": [0.4, None, None], "get": [2_000.0, 1_000.0, 1_000.0], "mixed": [None, None, None]},
}
MEASURED = {
    contender: {**dict.fromkeys([*START_FIGURES, *SPEEDS], [None] * 3), **figures}
    for contender, figures in FIGURES.items()
}


def test_table_has_the_median_of_the_rounds_with_a_figure() -> None:
    assert table(MEASURED, {"first_1": "start", "get": "GET", "mixed": "mixed"}).splitlines()[2:] == [
        "| start | 0.6 | 0.4 |",
        "| GET | 1,500 | 1,000 |",
        "| mixed | 20 | – |",
    ]


def test_ratios_are_those_of_the_rounds_in_which_both_have_a_figure() -> None:
    lines = ratio_table(MEASURED).splitlines()

    assert lines[2] == "| GET, 32 clients | 1.25 (0.50 to 2.00) |"
    assert lines[-1] == "| mixed load, 16 clients (lower is better) | – |"


def test_page_names_the_measurements_without_a_result() -> None:
    page = document(
        {
            "run": {"rounds": 3, "seconds": 1, "seed": 1},
            "machine": {"cores": 2, "cpu": "cpu", "system": "Linux"},
            "failed": ["round 1, granian, 4 workers: it did not start\nTraceback"],
            "figures": MEASURED,
        }
    )

    assert page.endswith("Without a result:\n\n- round 1, granian, 4 workers: it did not start\n")
