from argparse import Namespace

import pytest

from benchmarks.controller import DEPLOYMENTS, document, measure, middle, report

pytestmark = pytest.mark.anyio


async def test_store_accesses_depend_on_the_changes_and_not_on_the_number_of_applications() -> None:
    few, many = await measure(2, 3), await measure(4, 3)
    assert [cost.title for cost in few] == [cost.title for cost in many]
    up, probed, died, anew, nothing, status = few
    assert up.actions >= 2 * DEPLOYMENTS * 3
    assert probed.actions >= 2 * DEPLOYMENTS * 3
    assert (died.actions, died.written) == (2, 0)  # the start of another replica, and its first probe
    assert (nothing.actions, nothing.asked, nothing.written) == (0, 0, 0)
    assert (probed.asked, probed.written, status.asked) == (0, 0, 0)
    assert anew.actions == 2 * DEPLOYMENTS
    assert [cost.asked for cost in few[1:]] == [cost.asked for cost in many[1:]]
    # The digits of a time differ.
    assert [cost.written for cost in few[1:]] == pytest.approx([cost.written for cost in many[1:]], rel=0.001)
    page = document(middle([few, few]), Namespace(applications=2, replicas=3, rounds=2))
    assert report(few) in page
    assert "60 replicas of 20 deployments in 2 applications" in page
