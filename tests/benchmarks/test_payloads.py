"""The table of `benchmarks.payloads`."""

from benchmarks.payloads import SIZES, WAYS, table


def test_the_table_has_the_median_of_all_rounds_for_each_size_and_direction() -> None:
    found = {
        (size, way, out_of_band): [0.001 * size, 0.002 * size + out_of_band / 1_000, 9.0]
        for size in SIZES
        for way in WAYS
        for out_of_band in (False, True)
    }
    head, _, *rows = table(found).splitlines()
    assert head == "| MB | there: socket | store | back: socket | store |"
    assert len(rows) == len(SIZES)
    assert rows[-1] == "| 64 | 128.00 ms | 129.00 ms | 128.00 ms | 129.00 ms |"
