"""`control.traffic`: each change of the traffic of an application."""

from math import inf, isclose, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec, ResourceOptions, SplitSpec
from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.shares import member_shares, revision_shares
from app_toolkit.control.application import Application, LiveRevision, applied, recorded, rollback_target
from app_toolkit.control.application_specs import Revision, replica_set_specs
from app_toolkit.control.canary_analysis import plan_release
from app_toolkit.control.traffic import (
    aborted,
    promoted,
    published,
    removed_one,
    summary,
    with_candidate,
    with_candidates,
    with_paused,
    with_release,
    with_split,
    with_weights,
    without,
)
from app_toolkit.errors import ConfigError
from tests.keys import key

WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e300), min_size=1)
KEYS = [f"user-{number}" for number in range(5_000)]


@given(weights=st.dictionaries(st.integers(1, 4), st.floats(0, 1e9), min_size=1))
def test_shares_are_the_normalized_weights(weights: dict[int, float]) -> None:
    if not any(weights.values()):
        with pytest.raises(ConfigError, match="the weights of application 'shop' are all 0; one of 1, 2, 3, 4"):
            revision_shares(weights, [1, 2, 3, 4], "shop")
        return
    found = revision_shares(weights, [1, 2, 3, 4], "shop")
    assert isclose(sum(found.values()), 1.0)
    total = sum(weights.values())
    assert found == pytest.approx({revision: weights.get(revision, 0.0) / total for revision in found})


def test_weights_may_be_huge() -> None:
    assert revision_shares({1: 1e308, 2: 1e308}, [1, 2], "shop") == {1: 0.5, 2: 0.5}


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({3: 1.0}, "application 'shop' has no live revision 3; it has 1, 2"),
        ({1: -1.0}, "the weight of live revision 1 is -1; it should be a number from 0"),
        ({1: nan}, "the weight of live revision 1 is nan"),
        ({1: inf}, "the weight of live revision 1 is inf"),
        ({}, "are all 0"),
        ({1: 0.0, 2: 0.0}, "are all 0"),
    ],
)
def test_invalid_weights_are_refused(weights: dict[int, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        revision_shares(weights, [1, 2], "shop")


@given(
    weights=st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1e9) | st.just(nan) | st.just(inf)),
    shares=st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1), min_size=1),
)
def test_weights_of_a_split_are_normalized_or_refused(weights: dict[str, float], shares: dict[str, float]) -> None:
    spec = application().model_copy(update={"splits": (SplitSpec(name="writer", shares=shares), OTHER_SPLIT)})
    if not weights.keys() <= shares.keys() or not any(weights.values()) or not all(map(valid, weights.values())):
        with pytest.raises(ConfigError, match=r"split 'writer'|the weight of member"):
            with_split(spec, "writer", weights)
        return
    after = with_split(spec, "writer", weights)
    writer, other = after.splits
    assert list(writer.shares) == list(shares), "the members stay, in their order"
    assert isclose(sum(writer.shares.values()), 1.0)
    assert all((writer.shares[each] > 0) == (weights.get(each, 0.0) > 0) for each in shares)
    assert other is OTHER_SPLIT
    assert after.model_copy(update={"splits": spec.splits}) == spec


OTHER_SPLIT = SplitSpec(name="reader", shares={"d": 1.0})

PERCENTAGES = st.dictionaries(st.sampled_from("abc"), st.floats(-1, 2) | st.just(nan))


@given(mirrors=PERCENTAGES, before=st.dictionaries(st.sampled_from("ab"), st.floats(0.1, 1)))
def test_mirrors_of_a_split_are_set_beside_its_weights_or_refused(
    mirrors: dict[str, float], before: dict[str, float]
) -> None:
    writer = SplitSpec(name="writer", shares={"a": 0.9, "b": 0.1}, mirrors=before)
    spec = application().model_copy(update={"splits": (writer, OTHER_SPLIT)})
    if "c" in mirrors or not all(0 <= share <= 1 for share in mirrors.values()):
        why = r"split 'writer' has no member c; it has a, b|the mirror of member [ab] of split 'writer' is"
        with pytest.raises(ConfigError, match=why):
            with_split(spec, "writer", {"a": 1}, mirrors)
        return
    after = with_split(spec, "writer", {"a": 1}, mirrors).split("writer")
    assert after.shares == {"a": 1.0, "b": 0.0}
    assert after.mirrors == {name: share for name, share in {**before, **mirrors}.items() if share}
    if mirrors:
        assert with_split(spec, "writer", {}, mirrors).split("writer").shares == writer.shares
    with pytest.raises(ConfigError, match="are all 0"):
        with_split(spec, "writer", {})


def valid(weight: float) -> bool:
    return weight >= 0 and weight != inf


def test_unknown_split_is_an_error_that_names_those_that_exist() -> None:
    spec = application().model_copy(update={"splits": (OTHER_SPLIT,)})
    with pytest.raises(ConfigError, match="application 'shop' has no split 'writer'; it has reader"):
        with_split(spec, "writer", {"a": 1})
    with pytest.raises(ConfigError, match="split 'reader' has no member e; it has d"):
        with_split(spec, "reader", {"e": 1})


def test_simple_weights_stay_simple_shares() -> None:
    assert member_shares({"a": 0.9, "b": 0.1}, ("a", "b"), "writer") == {"a": 0.9, "b": 0.1}
    assert member_shares({"a": 90, "b": 10}, ("a", "b"), "writer") == {"a": 0.9, "b": 0.1}


# The live revisions of one application


def application(name: str = "shop", cpus: float = 0.1) -> ApplicationSpec:
    options = ResourceOptions(num_cpus=cpus)
    web = IngressSpec(config=DeploymentConfig(name="web", resources=options))
    return ApplicationSpec(name=name, target="shop:app", app_dir="/srv", default="web", deployments=(web,))


def available(live: LiveRevision) -> LiveRevision:
    return live.but(stable=live.current, published=live.current, outgoing=None)


def stable(name: str = "shop") -> Application:
    found = applied(None, application(name))
    return found.replaced(available(found.main))


def beside(shop: Application, share: float = 0.1, tag: str | None = None, mirror: float = 0.0) -> Application:
    """The application with another candidate, which is available."""
    after = with_candidate(shop, application(cpus=shop.next_number / 10), share, tag, mirror)
    return after.replaced(available(after.candidates[-1]))


def sets(shop: Application) -> set[AnySetKey]:
    """The replica sets that run."""
    return {key for live in shop.with_replicas for key in replica_set_specs(live.key, live.active, spread=False)}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0, 1), st.sampled_from([None, "a", "b"]), st.sampled_from([0.0, 0.5])),
        st.tuples(
            st.just("weigh"),
            st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.0]), min_size=5, max_size=5),
            st.dictionaries(st.integers(2, 6), st.sampled_from([0.0, 0.5, 1.0])),
        ),
        st.tuples(st.just("apply")),
        st.tuples(st.just("ready"), st.integers(0, 3)),
        st.tuples(st.just("promote"), st.integers(1, 9)),
        st.tuples(st.just("delete"), st.integers(1, 9)),
        st.tuples(st.just("release")),
        st.tuples(st.just("abort")),
        st.tuples(st.just("gone")),
    ),
    max_size=12,
)


def do(shop: Application, step: tuple[Any, ...]) -> Application:
    match step:
        case ("add", share, tag, mirror):
            return with_candidate(shop, application(cpus=shop.next_number / 10), share, tag, mirror)
        case ("weigh", weights, mirrors):
            return with_weights(shop, dict(zip([live.number for live in shop.live], weights, strict=False)), mirrors)
        case ("apply",):
            return applied(shop, application(cpus=shop.next_number / 10))
        case ("ready", position):
            return shop.replaced(available(shop.live[position % len(shop.live)]))
        case ("promote", number):
            return promoted(shop, number)
        case ("delete", number):
            return removed_one(shop, number)
        case ("release",):
            return with_release(shop, None, plan_release([1, 50]))
        case ("gone",):
            return without(shop, shop.removed[0].key) if shop.removed else shop
        case _:
            return aborted(shop)


@given(steps=STEPS)
def test_every_operation_keeps_what_gets_requests(steps: list[tuple[Any, ...]]) -> None:
    shop = stable()
    numbers = [1]
    for step in steps:
        before = shop
        try:
            shop = recorded(before, do(before, step), 0.0)
        except ConfigError:
            continue
        found = published([shop])
        assert isclose(sum(revision.share for revision in found), 1.0, abs_tol=1e-9)
        assert all(revision.share >= 0 for revision in found)
        assert [revision.is_main for revision in found] == [True, *[False] * (len(found) - 1)], "one main revision"
        assert found[0].live == shop.main.key
        assert {revision.live for revision in found} <= {live.key for live in shop.live}
        asked = {revision.live for revision in published([before])}
        assert asked <= {live.key for live in shop.with_replicas}, "no revision is lost that gets requests"
        gone = set() if step != ("gone",) else sets(before) - sets(shop)
        assert sets(before) - gone <= sets(shop), "replica sets stay until their revision is gone"
        if step[0] != "add":
            assert sets(shop) <= sets(before), "only a new candidate has new replica sets"
        if shop.main.key != before.main.key:
            assert step[0] in ("promote", "weigh", "add")
            assert shop.main.key in {live.key for live in before.candidates}
            assert shop.main.is_ready
            assert before.main.created in [live.created for live in shop.removed], "it drains"
            assert rollback_target(shop) is not None
        created = [live.created for live in shop.with_replicas]
        assert len(set(created)) == len(created)
        numbers += [live.desired.number for live in shop.live if live.desired.number not in numbers]
        assert Application.model_validate_json(shop.model_dump_json()) == shop
    assert numbers == sorted(numbers), "a number is used once"


def mirrors_of(shop: Application) -> dict[int, float]:
    return {candidate.number: candidate.mirror for candidate in shop.candidates}


def test_a_promoted_revision_keeps_its_number_and_its_replica_sets() -> None:
    shop = beside(beside(stable(), 0.1), 0.2)
    after = promoted(shop, 2)
    assert (after.main.number, after.share, after.candidates) == (2, 1.0, ())
    assert after.main.but(share=0.1 * 0.8) == shop.candidates[0]
    assert [live.number for live in after.removed] == [3, 1]
    assert promoted(after, 2) is after, "a request that is repeated"
    assert applied(after, application(cpus=9.0)).main.key == after.main.key, "an update in place keeps them, too"
    assert rollback_target(recorded(shop, after, 0.0)) == Revision(1, application())


def test_a_revision_that_was_not_available_is_not_promoted() -> None:
    waiting = with_candidate(stable(), application(cpus=2.0), 0.1)
    with pytest.raises(ConfigError, match="revision 2 of application 'shop' is not available yet"):
        promoted(waiting, None)
    weighed = with_weights(waiting, {2: 1})
    assert (weighed.main.number, weighed.share) == (1, 0.0), "the main revision gets its requests meanwhile"
    assert published([weighed])[0].share == 1.0


def test_all_weight_on_another_revision_is_a_promotion() -> None:
    shop = beside(stable(), 0.1, "preview")
    after = with_weights(shop, {1: 0, 2: 100})
    assert (after.main.key, after.main.tag, [live.number for live in after.removed]) == (
        shop.candidates[0].key,
        None,
        [1],
    )
    assert with_weights(after, {1: 0, 2: 100}) == after, "a request that is repeated"
    assert with_weights(beside(shop, 0.5), {2: 1, 3: 1}).main.number == 1, "two others divide them"


def test_the_last_candidate_gets_no_more_than_all_requests() -> None:
    shop = with_weights(beside(with_candidate(stable(), application(cpus=2.0), 0.1), 0.9), {2: 1, 3: 9})
    (left,) = removed_one(shop, 3).candidates
    assert left.share == 1.0


def test_a_mirror_is_set_beside_the_weights() -> None:
    shop = beside(beside(stable(), 0.2, None, 0.5), 0.0, None, 0.1)
    assert mirrors_of(shop) == {2: 0.5, 3: 0.1}
    assert summary(shop) == (
        "80 % revision 1, 20 % revision 2, 0 % revision 3, 50 % mirrored to revision 2, 10 % mirrored to revision 3"
    )
    weighed = with_weights(shop, {1: 1})
    assert (mirrors_of(weighed), weighed.share) == ({2: 0.5, 3: 0.1}, 1.0)
    changed = with_weights(shop, {}, {3: 1.0})
    assert (mirrors_of(changed), changed.share) == ({2: 0.5, 3: 1.0}, shop.share)
    assert mirrors_of(with_weights(shop, {1: 1}, {2: 0})) == {3: 0.1}, "nothing keeps revision 2 live"
    assert mirrors_of(with_weights(shop, {}, {2: 0, 3: 0})) == {2: 0}
    assert mirrors_of(aborted(shop)) == {}


def test_a_candidate_that_waits_for_its_release_stays_while_others_change() -> None:
    waiting = beside(stable(), 0.0)
    weighed = beside(waiting, 0.5)
    assert [candidate.number for candidate in weighed.candidates] == [2, 3]
    mirroring = beside(waiting, 0.0, None, 0.5)
    assert mirrors_of(with_weights(mirroring, {}, {3: 1.0})) == {2: 0.0, 3: 1.0}
    assert mirrors_of(with_weights(mirroring, {1: 1})) == {3: 0.5}, "it is missing among the weights"


@pytest.mark.parametrize(
    ("mirrors", "why"),
    [
        ({1: 0.5}, "application 'shop' has the live revisions 2; 1 is none of them"),
        ({4: 0.5}, "4 is none of them"),
        ({2: 1.5}, "the mirror of revision 2 is 150 %; it should be between 0 and 100 %"),
        ({2: -0.1}, "is -10 %"),
        ({2: nan}, "is nan %"),
    ],
)
def test_an_invalid_mirror_is_refused(mirrors: dict[int, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        with_weights(beside(stable()), {}, mirrors)


def test_a_main_revision_is_scaled_for_the_load_that_a_release_returns() -> None:
    release = with_release(beside(stable(), 0.0), None, plan_release([1, 50]))
    loads = {
        key("shop/web"): (1, 0, 0, 0),
        key("shop@2/web"): (1, 2, 3, 4),
        key("shop@2/model"): (5, 0, 0, 0),
        key("blog/web"): (9, 9, 9, 9),
    }
    for shop in (release, with_paused(release, paused=True)):
        assert with_candidates(loads, [shop, stable("blog")]) == {
            **loads,
            key("shop/web"): (2, 2, 3, 4),
            key("shop/model"): (5, 0, 0, 0),
        }
        assert with_candidates(loads, [aborted(shop)]) == loads


def test_a_promotion_ends_the_canary_release() -> None:
    release = with_release(beside(stable(), 0.0), None, plan_release([1, 50]))
    after = promoted(release, 2)
    assert after.release is None
    assert after.canary is not None
    assert after.canary.outcome == "promoted"


def test_weights_of_a_wrong_type_are_refused() -> None:
    weights: Any = {"12": 50}
    with pytest.raises(ConfigError, match="has no live revision '12'; it has 12, 13"):
        revision_shares(weights, [12, 13], "shop")
    weights = {12: "50"}
    with pytest.raises(ConfigError, match="the weight of live revision 12 is '50'; it should be a number from 0"):
        revision_shares(weights, [12, 13], "shop")
