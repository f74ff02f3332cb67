import pytest

from benchmarks.controller import DEPLOYMENTS, measure, report

pytestmark = pytest.mark.anyio


async def test_what_a_controller_asks_and_writes_follows_what_changes_and_not_how_much_there_is() -> None:
    few, many = await measure(2, 3), await measure(4, 3)
    assert [cost.title for cost in few] == [cost.title for cost in many]
    up, probed, died, anew, nothing, status = few
    assert up.actions >= 2 * DEPLOYMENTS * 3
    assert probed.actions >= 2 * DEPLOYMENTS * 3
    assert (died.written, nothing.actions, nothing.asked, nothing.written) == (0, 0, 0, 0)
    assert (probed.asked, probed.written, status.asked) == (0, 0, 0)
    assert anew.actions == DEPLOYMENTS
    assert [(cost.asked, cost.written) for cost in few[1:]] == [(cost.asked, cost.written) for cost in many[1:]]
    assert "bytes written" in report(few)
