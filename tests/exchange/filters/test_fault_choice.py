"""Which fault a request gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import Faults
from app_toolkit.errors import BadRequest, ConfigError
from app_toolkit.exchange.filters.fault_choice import Fault, fault_of

PERCENT = st.floats(0.001, 100)
DRAWN = st.floats(0, 1, exclude_max=True)


@st.composite
def faults(draw: st.DrawFn, headers: bool) -> Faults:
    delay = draw(st.fixed_dictionaries({"delay_s": st.floats(0.001, 60), "delay_percent": PERCENT}) | st.just({}))
    abort = draw(st.fixed_dictionaries({"abort_status": st.integers(400, 599), "abort_percent": PERCENT}) | st.just({}))
    return Faults(**delay, **abort, headers=headers)


@given(faults(headers=False), DRAWN, DRAWN)
def test_a_request_gets_each_fault_by_chance_of_its_own(faults: Faults, first: float, second: float) -> None:
    drawn = iter((first, second))
    fault = fault_of(faults, b"100", b"599", lambda: next(drawn))
    delayed, aborted = 100 * first < faults.delay_percent, 100 * second < faults.abort_percent
    assert fault == Fault(faults.delay_s or 0.0 if delayed else 0.0, faults.abort_status if aborted else None)


@given(faults(headers=True), DRAWN, st.integers(0, 86_400_000), st.integers(400, 599))
def test_a_header_replaces_the_chance(faults: Faults, drawn: float, delay_ms: int, status: int) -> None:
    delay, abort = b" %d" % delay_ms, b"%d\t" % status
    assert fault_of(faults, delay, abort, lambda: drawn) == Fault(delay_ms / 1_000, status)
    chance = fault_of(faults, None, None, lambda: drawn)
    assert fault_of(faults, delay, None, lambda: drawn) == Fault(delay_ms / 1_000, chance.status)
    assert fault_of(faults, None, abort, lambda: drawn) == Fault(chance.delay_s, status)


@given(DRAWN)
def test_all_or_none_get_a_fault_of_100_or_0_percent(drawn: float) -> None:
    certain = Faults(delay_s=1, delay_percent=100, abort_status=500, abort_percent=100)
    assert fault_of(certain, None, None, lambda: drawn) == Fault(1.0, 500)
    assert fault_of(Faults(), None, None, lambda: drawn) == Fault(0.0, None)


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"86400001", b"999999999999", b"1s", b"\xb2"])
def test_a_header_with_an_invalid_delay_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest, match=r"X-Fault-Delay-Ms is '.*', it must be"):
        fault_of(Faults(headers=True), value, None, lambda: 0.0)


@pytest.mark.parametrize("value", [b"", b"200", b"399", b"600", b"5000", b"5xx"])
def test_a_header_with_an_invalid_status_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest, match=r"X-Fault-Abort-Status is '.*', it must be"):
        fault_of(Faults(headers=True), None, value, lambda: 0.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"delay_s": 1}, "delay_s has no effect without delay_percent"),
        ({"delay_percent": 1}, "delay_percent has no effect without delay_s"),
        ({"abort_status": 503}, "abort_status has no effect without abort_percent"),
        ({"abort_percent": 1}, "abort_percent has no effect without abort_status"),
        ({"abort_status": 200, "abort_percent": 1}, "abort_status"),
        ({"delay_s": 1, "delay_percent": 101}, "delay_percent"),
    ],
)
def test_options_without_an_effect_are_refused(options: dict[str, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Faults(**options)


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        ({}, ""),
        ({"delay_s": 0.5, "delay_percent": 10}, "a delay of 0.5 s for 10 % of the requests"),
        (
            {"abort_status": 503, "abort_percent": 0.1, "headers": True},
            "status 503 for 0.1 % of the requests, what headers ask for",
        ),
    ],
)
def test_faults_are_summed_up(options: dict[str, float], summary: str) -> None:
    assert Faults(**options).summary == summary
