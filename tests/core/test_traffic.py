"""`core.traffic`: shares of live revisions, and the choice for each request."""

from math import inf, isclose, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec, ResourceOptions, SplitSpec
from app_toolkit.core.canary import plan_release
from app_toolkit.core.rollout import Rollout, applied
from app_toolkit.core.traffic import (
    aborted,
    after,
    member_shares,
    promoted,
    published,
    shares,
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
from tests.keys import app, key

WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e300), min_size=1)
KEYS = [f"user-{number}" for number in range(5_000)]


@given(weights=st.dictionaries(st.integers(1, 4), st.floats(0, 1e9), min_size=1))
def test_shares_are_the_normalized_weights(weights: dict[int, float]) -> None:
    if not any(weights.values()):
        with pytest.raises(ConfigError, match="the weights of application 'shop' are all 0; one of 1, 2, 3, 4"):
            shares(weights, [1, 2, 3, 4], "shop")
        return
    found = shares(weights, [1, 2, 3, 4], "shop")
    assert isclose(sum(found.values()), 1.0)
    total = sum(weights.values())
    assert found == pytest.approx({revision: weights.get(revision, 0.0) / total for revision in found})


def test_weights_may_be_huge() -> None:
    assert shares({1: 1e308, 2: 1e308}, [1, 2], "shop") == {1: 0.5, 2: 0.5}


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
        shares(weights, [1, 2], "shop")


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


def stable(name: str = "shop") -> Rollout:
    spec = application(name)
    return applied(None, spec).but(stable=spec, stable_revision=1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0, 1), st.sampled_from([None, "a", "b"]), st.sampled_from([0.0, 0.5])),
        st.tuples(
            st.just("weigh"),
            st.lists(st.floats(0, 100), min_size=5, max_size=5),
            st.dictionaries(st.integers(2, 6), st.sampled_from([0.0, 0.5, 1.0])),
        ),
        st.tuples(st.just("promote")),
        st.tuples(st.just("abort")),
        st.tuples(st.just("gone"), st.integers(2, 8)),
    ),
    max_size=8,
)


def do(rollout: Rollout, step: tuple[Any, ...]) -> Rollout:
    match step:
        case ("add", share, tag, mirror):
            return with_candidate(rollout, share, tag, mirror)
        case ("weigh", weights, mirrors):
            main = rollout.current_revision or 0
            numbers = [main, *(each.revision for each in rollout.live)]
            return with_weights(rollout, dict(zip(numbers, weights, strict=False)), mirrors)
        case ("promote",):
            return promoted(rollout, None)
        case ("gone", number):
            removed = [each.revision for each in rollout.candidates if each.removed]
            return without(rollout, number) if number in removed else rollout
        case _:
            return aborted(rollout)


@given(steps=STEPS, ready=st.sets(st.integers(2, 10)))
def test_shares_are_always_those_of_all_requests(steps: list[tuple[Any, ...]], ready: set[int]) -> None:
    rollout = stable()
    numbers = [1]
    for step in steps:
        try:
            rollout = do(rollout, step)
        except ConfigError:
            continue
        numbers += [each.revision for each in rollout.candidates if each.revision not in numbers]
        rollouts = {app("shop"): rollout} | {
            app(f"shop@{each.revision}"): stable(f"shop@{each.revision}")
            for each in rollout.candidates
            if each.revision in ready
        }
        found = published(rollouts)
        assert isclose(sum(each.share for each in found), 1.0, abs_tol=1e-9)
        assert all(each.share >= 0 for each in found)
        live = {f"shop@{each.revision}" for each in rollout.live}
        assert {each.spec.name for each in found} <= {"shop"} | live
        mirrors = {f"shop@{each.revision}" for each in rollout.candidates if each.mirror}
        assert mirrors <= live, "a revision that mirrors is not removed"
        assert {each.spec.name for each in found if each.mirror} == mirrors & {each.name for each in rollouts}
        assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
    assert numbers == sorted(numbers), "a number is used once"


def mirrors_of(rollout: Rollout) -> dict[int, float]:
    return {each.revision: each.mirror for each in rollout.live}


def test_a_mirror_is_set_beside_the_weights() -> None:
    rollout = with_candidate(with_candidate(stable(), 0.2, None, 0.5), 0.0, None, 0.1)
    assert mirrors_of(rollout) == {2: 0.5, 3: 0.1}
    assert summary(rollout) == (
        "80 % revision 1, 20 % revision 2, 0 % revision 3, 50 % mirrored to revision 2, 10 % mirrored to revision 3"
    )
    weighed = with_weights(rollout, {1: 1})
    assert (mirrors_of(weighed), weighed.share) == ({2: 0.5, 3: 0.1}, 1.0)
    changed = with_weights(rollout, {}, {3: 1.0})
    assert (mirrors_of(changed), changed.share) == ({2: 0.5, 3: 1.0}, rollout.share)
    assert mirrors_of(with_weights(rollout, {1: 1}, {2: 0})) == {3: 0.1}, "nothing keeps revision 2 live"
    assert mirrors_of(with_weights(rollout, {}, {2: 0, 3: 0})) == {2: 0}
    assert mirrors_of(aborted(rollout)) == {}


def test_a_candidate_that_waits_for_its_release_stays_while_others_change() -> None:
    waiting = with_candidate(stable(), 0.0, None)
    weighed = with_candidate(waiting, 0.5, None)
    assert [each.revision for each in weighed.live] == [2, 3]
    mirroring = with_candidate(waiting, 0.0, None, 0.5)
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
        with_weights(with_candidate(stable(), 0.1, None), {}, mirrors)


def test_a_promotion_ends_when_the_main_revision_is_available_with_the_spec() -> None:
    rollout = promoted(with_candidate(stable(), 0.1, None), 2)
    updating = applied(rollout, application(cpus=0.5))
    assert (updating.revision, after(updating)) == (3, updating)
    settled = updating.but(stable=updating.desired, stable_revision=3, published=updating.desired, outgoing=None)
    ended = after(settled)
    assert (ended.promoted, ended.live, ended.share) == (None, (), 1.0)
    failed = after(settled.but(stable=application(), failure="no room"))
    assert (failed.promoted, failed.share) == (None, 0.0)


def test_a_main_revision_is_scaled_for_the_load_that_it_will_take_over() -> None:
    promotion = promoted(with_candidate(stable(), 0.1, None), 2)
    release = with_release(with_candidate(stable(), 0.0, None), None, plan_release([1, 50]))
    loads = {
        key("shop/web"): (1, 0, 0, 0),
        key("shop@2/web"): (1, 2, 3, 4),
        key("shop@2/model"): (5, 0, 0, 0),
        key("blog/web"): (9, 9, 9, 9),
    }
    for rollout in (promotion, release, with_paused(release, paused=True)):
        rollouts = {app("shop"): rollout, app("shop@2"): stable("shop@2"), app("blog"): stable("blog")}
        assert with_candidates(loads, rollouts) == {
            **loads,
            key("shop/web"): (2, 2, 3, 4),
            key("shop/model"): (5, 0, 0, 0),
        }
        assert with_candidates(loads, {app("shop"): aborted(rollout)}) == loads


def test_weights_of_a_wrong_type_are_refused() -> None:
    weights: Any = {"12": 50}
    with pytest.raises(ConfigError, match="has no live revision '12'; it has 12, 13"):
        shares(weights, [12, 13], "shop")
    weights = {12: "50"}
    with pytest.raises(ConfigError, match="the weight of live revision 12 is '50'; it should be a number from 0"):
        shares(weights, [12, 13], "shop")
