"""Splits of an application, through the whole controller, on a manual clock."""

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec, SplitSpec
from app_toolkit.control.operations import AddCandidate, Delete
from app_toolkit.control.promotion import Promote
from app_toolkit.control.queries import GetCallee
from app_toolkit.control.weights import SetSplit
from app_toolkit.errors import ConfigError
from tests.control.harness import application, harness

pytestmark = pytest.mark.anyio

MEMBERS = {"small": 0.9, "large": 0.1}


def split_application(name="shop", splits=("writer",), **options):
    """An application with a split of two classes."""
    spec = application(name, **options)
    classes = (ClassSpec(config=ClassConfig(name=each, resources={"num_cpus": 0.1})) for each in MEMBERS)
    return spec.model_copy(
        update={
            "deployments": (*spec.deployments, *classes),
            "splits": tuple(SplitSpec(name=each, shares=MEMBERS, methods={"write": "coroutine"}) for each in splits),
        }
    )


def published(h):
    """The shares that callers know, by split."""
    return {
        key.removeprefix("splits/"): {member["name"]: member["weight"] for member in value}
        for key, value in h.proxy.view.items()
        if key[:7] == "splits/"
    }


def mirrors(h):
    """The mirrors of the writer that callers know."""
    return {each["name"]: each["mirror"] for each in h.proxy.view["splits/shop/writer"] if each["mirror"]}


def shown(h, name="shop"):
    found = next(each for each in h.controller.status().applications if each.name == name)
    return {each.name: each.shares for each in found.splits}


async def test_weights_change_within_two_seconds_and_survive_the_controller():
    async with harness(deployed=split_application()) as h:
        await h.clock.advance(0.2)
        assert published(h) == {"shop/writer": MEMBERS}
        replicas = h.replicas()
        assert await SetSplit("shop/writer", {"large": 50, "small": 50}).perform(h.controller) == 2
        await h.until(lambda: published(h) == {"shop/writer": {"small": 0.5, "large": 0.5}}, within_s=2)
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy()
        await h.clock.advance(1.0)
        assert published(h) == {"shop/writer": {"small": 0.5, "large": 0.5}}
        assert shown(h) == {"writer": {"small": 0.5, "large": 0.5}}
        assert h.replicas() == replicas, "no replica restarts"
        for name, weights, why in (
            ("shop/writer", {"tiny": 1}, "split 'writer' has no member tiny; it has small, large"),
            ("shop/writer", {"small": 0}, "the weights of split 'writer' are all 0"),
            ("shop/reader", {"small": 1}, "application 'shop' has no split 'reader'; it has writer"),
            ("shoe/writer", {"small": 1}, "no application 'shoe'"),
        ):
            with pytest.raises(ConfigError, match=why):
                await SetSplit(name, weights).perform(h.controller)
        assert shown(h) == {"writer": {"small": 0.5, "large": 0.5}}
        assert (await GetCallee("shop", "writer").perform(h.controller)).methods == {"write": "coroutine"}
        await SetSplit("shop/writer", {}, {"large": 50}).perform(h.controller)
        await h.until(lambda: mirrors(h) == {"large": 0.5}, within_s=2)
        assert published(h) == {"shop/writer": {"small": 0.5, "large": 0.5}}
        (writer,) = h.controller.status().applications[0].splits
        assert writer.mirrors == {"large": 0.5}
        await h.rollback("shop")
        await h.until(lambda: mirrors(h) == {}, within_s=2)
        await h.deploy(split_application())
        await h.until(lambda: published(h) == {"shop/writer": MEMBERS}, within_s=2)
        await h.rollback("shop")
        await h.until(lambda: published(h) == {"shop/writer": {"small": 0.5, "large": 0.5}}, within_s=2)


async def test_split_that_the_code_drops_is_published_until_the_old_replicas_have_left():
    async with harness(deployed=split_application(splits=("writer", "reader"))) as h:
        await h.deploy(split_application(cpus=0.5))
        await h.clock.advance(0.2)
        assert published(h).keys() == {"shop/writer", "shop/reader"}
        await h.until(lambda: published(h).keys() == {"shop/writer"})
        assert h.word() == "healthy"
        await h.change(Delete("shop"))
        await h.until(lambda: published(h) == {})


async def test_split_of_a_live_revision_has_weights_of_its_own():
    async with harness(deployed=split_application()) as h:
        assert await h.change(AddCandidate(split_application(cpus=0.5), {}, 0.1, None)) == 2
        await h.until(lambda: h.word("shop@2") == "healthy")
        await SetSplit("shop/writer", {"large": 1}, revision=2).perform(h.controller)
        only_large = {"small": 0.0, "large": 1.0}
        await h.until(lambda: published(h) == {"shop/writer": MEMBERS, "shop@2/writer": only_large}, within_s=2)
        await h.until(lambda: h.word("shop@2") == "healthy")
        await h.change(Promote("shop"))
        await h.until(lambda: published(h).keys() == {"shop@2/writer"}, within_s=60)
