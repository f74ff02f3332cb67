"""A freeze refuses what changes an application, and nothing else, until it ends."""

from dataclasses import replace

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec, SplitSpec
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.change import ChangeEvent
from app_toolkit.control.command import Operation
from app_toolkit.control.facts import Frozen
from app_toolkit.control.freeze import Freeze, Unfreeze
from app_toolkit.control.operations import AddCandidate, Delete, Deploy, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.queries import Compare
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.control.weights import SetSplit, SetTraffic
from app_toolkit.errors import ApplicationFrozen, ConfigError
from app_toolkit.operate.instance import api_commands
from tests.control.harness import application as shop
from tests.control.harness import harness
from tests.control.specs import application
from tests.control.test_canary_releases import released
from tests.control.test_live_revisions import shares as published_shares
from tests.control.test_live_revisions import status_of
from tests.control.test_operations import PLAN, SHOP, instance, newer, perform, shares
from tests.control.test_progress import settled

pytestmark = pytest.mark.anyio

SALE = Freeze("shop", reason="the sale ends on Monday")
WRITERS = tuple(ClassSpec(config=ClassConfig(name=f"writer-{name}")) for name in "ab")
SPLIT = SplitSpec(name="writer", shares={"writer-a": 0.5, "writer-b": 0.5})


def split(cpus):
    spec = newer(cpus)
    return spec.model_copy(update={"deployments": (*spec.deployments, *WRITERS), "splits": (SPLIT,)})


LIVE = instance(Deploy(split(0.1)), Deploy(split(0.2)), AddCandidate(newer(0.3), share=0.1), now=1_000.0)
"""With the live revision 3."""
RELEASING = perform(LIVE, BeginRelease("shop", 3, **PLAN))

REFUSED = (
    Deploy(newer(0.4)),
    AddCandidate(newer(0.4)),
    SetTraffic("shop", {2: 50, 3: 50}),
    BeginRelease("shop", 3, **PLAN),
    SetSplit("shop/writer", {"writer-a": 100}),
    Promote("shop"),
    Delete("shop"),
    Delete("shop", revision=3),
    Delete("shop/writer-a"),
)
PERFORMED = (
    Abort("shop"),
    Rollback("shop"),
    Restart("shop/web"),
    Scale("shop/web", 3),
    Scale("shop/web", 3, revision=3),
    Freeze("shop", reason="the sale goes on"),
    Unfreeze("shop"),
    Deploy(application("blog", prefix="/blog")),
)


def test_each_operation_is_classified():
    classified = {type(operation) for operation in (*REFUSED, PauseRelease("shop"), *PERFORMED)}
    assert {command for command in api_commands() if issubclass(command, Operation)} == classified


@pytest.mark.parametrize("operation", REFUSED, ids=repr)
def test_an_operation_that_changes_what_users_get_is_refused_until_the_freeze_ends(operation):
    frozen = perform(LIVE, SALE)
    with pytest.raises(ApplicationFrozen, match=r"^application 'shop' is frozen: the sale ends on Monday$"):
        operation.decide(frozen)
    state = perform(frozen, Unfreeze("shop"))
    assert state.applications == LIVE.applications
    assert operation.decide(state) == operation.decide(LIVE)


def test_a_comparison_with_what_a_freeze_refuses_is_refused():
    with pytest.raises(ApplicationFrozen, match=r"^application 'shop' is frozen: the sale ends on Monday$"):
        Compare((newer(0.4),)).compared(perform(LIVE, SALE))


@pytest.mark.parametrize("operation", PERFORMED, ids=repr)
def test_an_operation_that_keeps_the_application_serving_is_performed(operation):
    change = operation.decide(perform(LIVE, SALE))
    thawed = tuple(application.but(facts=replace(application.facts, frozen=None)) for application in change.put)
    if isinstance(operation, Freeze | Unfreeze):
        assert thawed == (LIVE.applications["shop"],)
    else:
        assert replace(change, put=thawed) == operation.decide(LIVE)
        assert all(application.facts.frozen for application in change.put if application.name == "shop")


def test_a_freeze_pauses_the_release_which_goes_on_when_it_is_resumed_afterwards():
    change = SALE.decide(RELEASING)
    assert change.events == (
        ChangeEvent("shop", "Frozen", "the sale ends on Monday"),
        ChangeEvent("shop", "CanaryPaused", "a freeze began"),
    )
    frozen = RELEASING.after(change)
    assert not PauseRelease("shop").decide(frozen).put, "it is paused already"
    with pytest.raises(ApplicationFrozen):
        PauseRelease("shop", paused=False).decide(frozen)
    state = perform(frozen, Unfreeze("shop"))
    assert state.applications["shop"].release.paused
    assert perform(state, PauseRelease("shop", paused=False)).applications == RELEASING.applications


def test_a_revision_that_gets_all_requests_during_a_freeze_is_promoted_after_it():
    state = SHOP.after(AddCandidate(newer(0.5), share=1.0).apply(SHOP))
    frozen = state.after(SALE.decide(state))
    change = settled(frozen)
    refused = ChangeEvent("shop", "PromotionRefused", "application 'shop' is frozen: the sale ends on Monday")
    assert [*change.events] == [ChangeEvent("shop", "Available", "revision 2"), refused]
    waiting = frozen.after(change)
    assert shares(waiting) == {2: 1.0}
    change = Unfreeze("shop").decide(waiting)
    assert change.events[-1] == ChangeEvent("shop", "Promoted", "revision 2")
    assert waiting.after(change).applications["shop"].main.number == 2


def test_a_freeze_keeps_its_beginning_when_its_reason_changes():
    state = replace(perform(LIVE, SALE), now=2_000.0)
    assert not SALE.decide(state).put, "the client repeats a request"
    state = perform(state, Freeze("shop", reason="the sale goes on"))
    assert state.applications["shop"].facts.frozen == Frozen("the sale goes on", 1_000.0)
    state = perform(state, Unfreeze("shop"))
    assert not Unfreeze("shop").decide(state).put, "the client repeats a request"


def test_a_deployment_that_was_performed_before_the_freeze_is_answered_again():
    deploy = Deploy(newer(0.4), expected=2)
    state = perform(perform(LIVE, deploy), SALE)
    assert deploy.decide(state).result == 4


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 201])
def test_a_reason_is_one_line(reason):
    with pytest.raises(ConfigError, match="it should be one line of 1 to 200 characters"):
        Freeze("shop", reason=reason)


async def test_a_freeze_outlives_the_controller_and_the_release_gets_no_further():
    async with harness(deployed=shop()) as h:
        proxy = await released(h)
        await h.change(SALE)
        before = status_of(h).facts.frozen
        assert before.reason == "the sale ends on Monday"
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy()
        proxy.report()
        await h.clock.advance(1.0)
        proxy.serve()
        await h.clock.advance(100.0)
        assert status_of(h).facts.frozen == before
        assert published_shares(h) == {"shop": 0.99, "shop@2": 0.01}
        assert status_of(h).canary.why == "it is paused: application 'shop' is frozen: the sale ends on Monday"


async def test_a_release_that_a_freeze_stops_in_its_last_step_is_promoted_when_it_is_resumed_afterwards():
    async with harness(deployed=shop()) as h:
        proxy = await released(h, {"steps": [50, 100], "every": 60})
        for _ in range(2):
            proxy.serve()
            await h.clock.advance(55.0)
        await h.until(lambda: published_shares(h).get("shop@2") == 1.0, within_s=10)
        await h.change(SALE)
        proxy.serve()
        await h.clock.advance(100.0)
        assert published_shares(h) == {"shop": 0.0, "shop@2": 1.0}
        assert status_of(h).canary.why == "it is paused: application 'shop' is frozen: the sale ends on Monday"
        with pytest.raises(ApplicationFrozen):
            await h.change(PauseRelease("shop", paused=False))
        await h.change(Unfreeze("shop"))
        await h.until(lambda: status_of(h).canary.why == "it is paused", within_s=2)
        await h.change(PauseRelease("shop", paused=False))
        proxy.serve()
        await h.clock.advance(61.0)
        await h.until(lambda: published_shares(h) == {"shop@2": 1.0}, within_s=10)
