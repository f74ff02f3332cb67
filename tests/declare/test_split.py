"""Declarations of splits: members, weights, the common class, and their plan."""

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Annotated, Any

import cloudpickle
import pytest
from fastapi import Depends

from app_toolkit import ConfigError, Deployment, Toolkit, batch, call_many, options, split
from app_toolkit.calls import handle
from app_toolkit.config.models import SplitSpec
from app_toolkit.declare.deployment import Bound, pack
from app_toolkit.declare.planning import apply_options, plan
from app_toolkit.declare.split import NamedSplit
from app_toolkit.engines.one_process.calls import IN_PROCESS
from app_toolkit.errors import PlanningError, TargetError
from app_toolkit.userapp.graph import find, splits
from app_toolkit.userapp.target import served
from tests.exchange.deployments import served_here

pytestmark = pytest.mark.anyio


class Writer(Deployment):
    async def write(self, prompt: str) -> str:
        raise NotImplementedError

    def words(self, prompt: str) -> AsyncIterator[str]:
        raise NotImplementedError


class Small(Writer):
    async def write(self, prompt: str) -> str:
        return f"small {prompt}"

    async def words(self, prompt: str) -> AsyncIterator[str]:
        for word in prompt.split():
            yield word

    @batch(max_batch_size=4)
    async def lengths(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    async def only_small(self) -> None: ...


class Large(Writer):
    async def write(self, prompt: str) -> str:
        return f"large {prompt}"

    async def words(self, prompt: str) -> AsyncIterator[str]:
        for word in prompt.split():
            yield word.upper()


class Other(Deployment):
    async def paint(self) -> None: ...


class OtherKind(Writer):
    async def words(self, prompt: str) -> str:  # type: ignore[override]
        return prompt


small, large = Small.bind(), Large.bind()


@pytest.fixture
def writer() -> Any:
    return split({small: 90, large: 10}, name="writer")


def test_split_has_the_methods_of_the_nearest_common_class(writer: Any) -> None:
    assert repr(writer) == "<split of Writer named writer>"
    assert writer.handle.write.kind == "coroutine"
    assert writer.handle.words.kind == "stream", "as its members, and not as the declaration of the base class"
    with pytest.raises(AttributeError, match="Writer has no method 'only_small'"):
        writer.handle.only_small()
    same = split({small: 1, Small.options(name="small-2").bind(): 1}, name="writer")
    assert same.handle.lengths.kind == "coroutine"


@pytest.mark.parametrize(
    ("weights", "name", "why"),
    [
        ({}, "writer", "split 'writer' takes the weights of its members, {deployment: weight}, not {}"),
        ({small: 0.0, large: 0.0}, "writer", "the weights of split 'writer' are all 0; one of small, large must have"),
        ({small: -1.0}, "writer", "the weight of member small is -1; it should be a number from 0"),
        ({small: float("nan")}, "writer", "the weight of member small is nan"),
        ({small: "1"}, "writer", "the weight of member small is '1'; it should be a number from 0"),
        ({small.handle: 1}, "writer", "split 'writer' divides calls between what `bind` gives, not <Handle of small"),
        ({small: 1, Small.bind(): 1}, "writer", r"two members of split 'writer' are named 'small': give one another"),
        ({small: 1, Other.bind(): 1}, "writer", "no common class with methods: small is of Small, other is of Other"),
        (
            {small: 1, OtherKind.bind(): 1},
            "writer",
            "differ in Writer.words: small has a stream method, other-kind",
        ),
        ({small: 1}, "The Writer", "name = 'The Writer'"),
    ],
)
def test_invalid_split_is_an_error_of_one_sentence(weights: dict[Any, Any], name: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split(weights, name=name)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mirror", "why"),
    [
        ({large: 1.5}, "the mirror of member large of split 'writer' is 150 %; it should be between 0 and 100 %"),
        ({large: float("nan")}, "the mirror of member large of split 'writer' is nan %"),
        ({Small.bind(): 0.5}, "two members of split 'writer' are named 'small'"),
        ({Other.bind(): 0.5}, "no common class with methods: small is of Small, other is of Other"),
        ([large], "split 'writer' takes the weights of its members"),
    ],
)
def test_invalid_mirror_is_an_error_of_one_sentence(mirror: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split({small: 1}, mirror=mirror, name="writer")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mirror_is_a_member_without_a_weight_and_is_in_the_plan() -> None:
    writer = split({small: 3}, mirror={large: 0.5}, name="writer")
    app = Toolkit()

    @app.get("/")
    async def reply(writer: Annotated[Writer, Depends(writer)]) -> None: ...

    spec = plan(app, target="shop:app", app_dir="/srv")
    (planned,) = spec.splits
    assert (planned.shares, planned.mirrors) == ({"small": 1.0, "large": 0.0}, {"large": 0.5})
    assert [each.config.name for each in spec.deployments] == ["app", "small", "large"]
    apply_options(app, spec.model_copy(update={"splits": (planned.model_copy(update={"mirrors": {"small": 1.0}}),)}))
    assert writer.mirrors == {"small": 1.0}
    writer.set_weights({small: 1}, mirror={small: 0, large: 0.2})
    assert (writer.shares, writer.mirrors) == ({"small": 1.0, "large": 0.0}, {"large": 0.2})
    with pytest.raises(ConfigError, match="are all 0"):
        writer.set_weights({}, mirror={large: 1})
    assert writer.mirrors == {"large": 0.2}, "a refused change changes nothing"


def test_plan_has_the_split_and_its_members_once(writer: Any) -> None:
    class Front(Deployment):
        def __init__(self, writer: Writer) -> None: ...

        async def reply(self) -> None: ...

    front = Front.bind(writer.handle)
    app = Toolkit()

    @app.get("/")
    async def reply(
        one: Annotated[Writer, Depends(writer)],
        same: Annotated[Writer, Depends(writer.handle)],
        front: Annotated[Front, Depends(front)],
    ) -> None: ...

    spec = plan(app, target="shop:app", app_dir="/srv")
    methods = {"write": "coroutine", "words": "stream"}
    assert spec.splits == (SplitSpec(name="writer", shares={"small": 0.9, "large": 0.1}, methods=methods),)
    assert {each.config.name: each.calls for each in spec.deployments} == {
        "app": ("small", "large", "front"),
        "small": (),
        "large": (),
        "front": ("small", "large"),
    }
    other = spec.model_copy(
        update={"splits": (spec.splits[0].model_copy(update={"shares": {"small": 0.0, "large": 1.0}}),)}
    )
    apply_options(app, other)
    assert writer.shares == {"small": 0.0, "large": 1.0}
    assert spec.template_hash("app") == other.template_hash("app"), "weights restart nothing"


def test_name_of_a_split_is_that_of_no_deployment(writer: Any) -> None:
    taken = Small.options(name="writer").bind()
    with pytest.raises(PlanningError, match=r"a deployment of Small and a split of Writer are both named 'writer'"):
        find_all(taken, writer)
    with pytest.raises(PlanningError, match=r"a split of Writer .*: give one another name, as in split\(..., name="):
        find_all(writer, split({small: 1}, name="writer"))


def find_all(*deployments: Any) -> None:
    find(Toolkit(deployments=deployments))


def test_split_is_packed_with_the_deployment_that_calls_it(writer: Any) -> None:
    class Front(Deployment):
        def __init__(self, writer: Writer) -> None: ...

        async def reply(self) -> None: ...

    front: Bound[Front] = pickle.loads(pack(Front.bind(writer.handle)))
    (packed,) = splits(front)
    assert (packed.name, list(packed.shares)) == ("writer", ["small", "large"])
    other = split(dict.fromkeys(writer.members.values(), 1), name="writer")
    assert pack(Front.bind(other.handle)) == pack(Front.bind(writer.handle)), "the weights are in the spec"
    assert [each.name for each in find(front)] == ["small", "large", "front"]
    with pytest.raises(TypeError, match="cannot be pickled"):
        cloudpickle.dumps(writer)
    with pytest.raises(ConfigError, match="pass its handle instead"):
        Front.bind(writer)


async def test_weights_change_in_this_process(writer: Any) -> None:
    await IN_PROCESS.start(())
    draw, IN_PROCESS.draw = IN_PROCESS.draw, Random(5).random
    try:
        found = Counter([await writer.handle.write("x") for _ in range(200)])
        assert found["small x"] > found["large x"] > 0
        running = [asyncio.create_task(writer.handle.write("y")) for _ in range(50)]
        await asyncio.sleep(0)
        writer.set_weights({large: 3})
        assert writer.shares == {"small": 0.0, "large": 1.0}
        assert {await writer.handle.write("x") for _ in range(50)} == {"large x"}
        assert [word async for word in writer.handle.words("a b")] == ["A", "B"]
        assert {text.split()[1] for text in await asyncio.gather(*running)} == {"y"}
        with pytest.raises(ConfigError, match="split 'writer' has no member other; it has small, large"):
            writer.set_weights({Other.bind(): 1})
        assert writer.shares == {"small": 0.0, "large": 1.0}, "a refused change changes nothing"
    finally:
        IN_PROCESS.draw = draw
        await IN_PROCESS.stop()


async def test_calls_of_many_items_go_to_one_member() -> None:
    other = Small.options(name="small-2").bind()
    both = split({small: 1, other: 1}, name="both")
    await IN_PROCESS.start(())
    try:
        assert await call_many(options(both.handle, shard_key="user-7").lengths, ["a", "bb", "ccc"]) == [1, 2, 3]
    finally:
        await IN_PROCESS.stop()


async def test_weights_of_other_processes_are_not_set_by_the_split(writer: Any) -> None:
    with served_here():
        assert not handle.in_one_process()
        with pytest.raises(ConfigError, match=r"run in other processes: change its weights by set_split\("):
            writer.set_weights({large: 1})


def test_split_is_no_target(writer: Any) -> None:
    with pytest.raises(TargetError, match="shop:writer is a split, which answers no requests: name an app"):
        served(writer, "shop:writer")


def test_split_of_a_running_application_needs_no_class() -> None:
    spec = SplitSpec(name="writer", shares={"small": 0.9, "large": 0.1}, methods={"write": "coroutine"})
    named = NamedSplit("shop", spec)
    assert [(each.application, each.name) for each in named.needs] == [("shop", "small"), ("shop", "large")]
    assert named.application == "shop"

    class Front(Deployment):
        def __init__(self, writer: Any) -> None: ...

        async def reply(self) -> None: ...

    front: Bound[Front] = pickle.loads(pack(Front.bind(handle.Handle(named))))
    assert find(front) == (front,), "it is deployed with its own application"
