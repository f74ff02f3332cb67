"""The results of the simulation on which the order of the wait queue is based."""

import pytest

from benchmarks.queueing import CAPACITY, LOADS, ORDERS, Judged, judged, poisson, simulate

OURS = "newest first while clients give up"


def found(load: str, order: str) -> Judged:
    return judged(simulate(ORDERS[order](), LOADS[load]()))


@pytest.mark.parametrize("rate", [300, 200])
def test_goodput_stays_high_if_clients_give_up(rate: int) -> None:
    load = f"{rate}/s, clients wait 1 s"
    assert found(load, "oldest first").goodput < 0.2
    assert found(load, OURS).goodput > 0.9


def test_goodput_stays_high_under_slight_overload() -> None:
    load = "90/s, clients wait 1 s"
    assert found(load, "oldest first").goodput < 0.8
    assert found(load, OURS).goodput > 0.9


def test_patient_clients_in_a_burst_are_all_served_in_order() -> None:
    load = "72/s and 800 at once, clients wait 60 s"
    ours = found(load, OURS)
    assert set(ours.outcomes) == {"served"}
    assert ours == found(load, "oldest first")
    for other in ("newest first", "adaptive LIFO", "adaptive LIFO and CoDel"):
        assert found(load, other).outcomes["rejected"] > 500


@pytest.mark.parametrize("order", ORDERS)
def test_below_capacity_every_order_serves_nearly_all_requests(order: str) -> None:
    light = judged(simulate(ORDERS[order](), poisson(0.5 * CAPACITY, 30, 1)))
    assert light.outcomes["served"] > 0.99 * light.outcomes.total()
