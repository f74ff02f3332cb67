from benchmarks.traffic import AFFINITY, BOTH, PLAIN, REVISIONS, table


def test_table_has_the_ratio_of_each_round_to_the_application_without_both() -> None:
    figures = {
        PLAIN: {"rps": [1_000.0, 2_000.0, 4_000.0], "proxy_us": [100.0] * 3},
        AFFINITY: {"rps": [900.0, 1_900.0, 3_900.0], "proxy_us": [110.0] * 3},
        REVISIONS: {"rps": [800.0, 1_600.0, 3_200.0], "proxy_us": [120.0] * 3},
        BOTH: {"rps": [500.0, 1_000.0, 2_000.0], "proxy_us": [130.0] * 3},
    }

    assert table(figures).splitlines()[2:] == [
        "| without both | 2,000 |  | 100 |",
        "| affinity by header | 1,900 | 0.950 (0.925 to 0.962) | 110 |",
        "| two live revisions | 1,600 | 0.800 (0.800 to 0.800) | 120 |",
        "| two live revisions, and affinity by header | 1,000 | 0.500 (0.500 to 0.500) | 130 |",
    ]
