import asyncio

from benchmarks.passed import traced


def test_a_get_calls_no_filter_whose_option_is_not_set() -> None:
    passed = {path for path, _ in asyncio.run(traced()).calls}
    assert "exchange/exchange.py" in passed
    assert not [path for path in passed if path.startswith("exchange/filters/")]
