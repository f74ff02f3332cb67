"""The figures of a request slot that several proxies share."""

import pytest

from benchmarks.chaos.callers import in_use, mean_waits_s
from benchmarks.chaos.client import OK, Done
from benchmarks.chaos.ledger import Entry


def test_a_slot_is_in_use_while_a_handler_runs() -> None:
    one_after_the_other = [Entry(started=10.0, ended=10.4), Entry(started=10.5, ended=11.0)]
    assert in_use(one_after_the_other) == pytest.approx(0.9)


def test_the_mean_wait_is_computed_for_each_proxy() -> None:
    asked = {"a": ("left", 1.0), "b": ("left", 2.0), "c": ("right", 1.0)}
    found = [Done(id, OK, sent, sent, 9.0, proxy=proxy) for id, (proxy, sent) in asked.items()]
    started = {"a": Entry(started=1.1), "b": Entry(started=2.3), "c": Entry(started=1.5)}
    assert mean_waits_s(found, started) == pytest.approx([0.2, 0.5])
