"""Classes that are served: ordinary classes, with options, that arguments are bound to."""

import dataclasses
import functools
import types
from abc import ABC, abstractmethod
from typing import Annotated, Any, Generic, TypeVar

import pytest
from fastapi import Depends, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from app_toolkit import ConfigError, Deployment, DeploymentConfig, Toolkit, batch, deployment
from app_toolkit.calls.handle import deployment_of
from app_toolkit.config.models import BatchLimits, ClassConfig, ClassResources
from app_toolkit.declare.deployment import Bound, pack
from app_toolkit.observability.secrets import redacted
from app_toolkit.userapp.batch import BOUNDS

T = TypeVar("T")


class Writer(Deployment, num_replicas=2, resources={"num_gpus": 0.5}):
    def __init__(self, model: str, *, words: int = 100) -> None:
        self.model = model
        self.words = words

    async def write(self, prompt: str) -> str:
        return f"{self.model}: {prompt}"

    def score(self, text: str) -> int:
        return len(text)

    def reconfigure(self, user_config: dict[str, Any]) -> None: ...


class TextEncoder(Deployment):
    def __init__(self, *writers: Any, **more: Any) -> None:
        self.writers = writers
        self.more = more


# Names and options


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("Writer", "writer"),
        ("TextEncoder", "text-encoder"),
        ("HTTPModel", "http-model"),
        ("GPT2Model", "gpt2-model"),
        ("BGESmallEnV15", "bge-small-en-v15"),
        ("_Hidden", "hidden"),
        ("lower_case", "lower_case"),
    ],
)
def test_a_deployment_is_called_as_its_class(name: str, called: str) -> None:
    assert deployment(type(name, (), {})).bind().name == called


def test_a_class_that_no_deployment_can_be_called_as_needs_a_name() -> None:
    cls = type("Größe", (), {})
    with pytest.raises(ConfigError, match=r"^class Größe: name = 'größe': string should match pattern"):
        deployment(cls)
    assert deployment(cls, name="size").bind().name == "size"


def test_options_of_a_class_default_to_those_of_classes() -> None:
    config = TextEncoder.bind().config
    assert config == ClassConfig(name="text-encoder")
    assert (config.num_replicas, config.max_ongoing_requests, config.sync_threads) == (1, 16, 1)
    assert config.resources.num_cpus == 1
    assert Writer.bind("x").config.resources == ClassResources(num_cpus=1, num_gpus=0.5)


def test_options_override_those_of_the_class_and_keep_the_rest() -> None:
    big = Writer.options(name="big", num_replicas=3).options(user_config={"tone": "dry"}).bind("x")
    assert (big.name, big.config.num_replicas, big.config.user_config) == ("big", 3, {"tone": "dry"})
    assert big.config.resources.num_gpus == 0.5
    assert Writer.bind("x").config.num_replicas == 2


def test_a_deployment_with_other_options_is_packed_alike_because_the_spec_has_them() -> None:
    small, large = (Writer.options(user_config={"size": size}, num_replicas=size).bind("x") for size in (1, 2))
    assert pack(small) == pack(large) != pack(Writer.bind("y"))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"num_replica": 2}, r"class Model: a class has no option 'num_replica'; did you mean 'num_replicas'\?"),
        ({"num_replicas": 0}, 'class Model: num_replicas = 0: input should be greater than or equal to 1, or "auto"'),
        ({"sync_threads": 65}, "class Model: sync_threads = 65: input should be less than or equal to 64"),
        ({"xyzzy": 3}, "class Model: a class has no option 'xyzzy'"),
        (
            {"num_replicas": 2, "autoscaling_config": {}},
            "class Model: a class: num_replicas = 2 contradicts autoscaling_config: set only one of them",
        ),
        (
            {"autoscaling_config": {"min_replicas": -1}},
            "class Model: AutoscalingConfig.min_replicas = -1: input should be greater than or equal to 0",
        ),
        (
            {"on_disconnect": "cancel"},
            "class Model: 'on_disconnect' is an option of ingresses and of classes with __call__, and this class .*",
        ),
        ({"max_open_websockets": 2}, "class Model: 'max_open_websockets' is an option of ingresses, and a class .*"),
        ({"user_config": {"set": {1}}}, "class Model: user_config.set.* = .*"),
    ],
)
def test_invalid_option_is_the_same_sentence_in_every_place(said: dict[str, Any], sentence: str) -> None:
    class Model:
        pass

    class Base(Deployment):
        pass

    for way in (
        lambda: deployment(Model, **said),
        lambda: deployment(Model).options(**said),
        lambda: types.new_class("Model", (Deployment,), said),
        lambda: type("Model", (Base,), {}).options(**said),  # type: ignore[attr-defined]
    ):
        with pytest.raises(ConfigError, match=f"^{sentence}$"):
            way()


def test_a_class_that_answers_http_takes_the_options_of_http() -> None:
    class Front(Deployment, max_body_size=3, on_disconnect="cancel"):
        async def __call__(self, request: Request) -> str:
            return "hello"

    config = Front.options(max_body_size=9).bind().config
    assert (config.max_body_size, config.on_disconnect) == (9, "cancel")


def test_a_user_config_is_for_a_class_that_takes_it_up() -> None:
    class Plain:
        pass

    configured = deployment(Plain, user_config={"tone": "dry"})
    with pytest.raises(
        ConfigError, match=r"^class Plain: it has a user_config, and no method reconfigure\(user_config\)$"
    ):
        configured.bind()
    assert configured.options(user_config=None).bind().config.user_config is None

    class Base(Deployment, user_config={"tone": "dry"}):
        """Its subclasses may take it up."""

    class Front(Base):
        def reconfigure(self, user_config: dict[str, str]) -> None: ...

    assert Front.bind().config.user_config == {"tone": "dry"}


class Batches(Deployment):
    @batch(max_batch_size=8, max_concurrent_batches=2)
    async def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    async def write(self, prompt: str) -> str:
        return prompt


def test_the_limits_of_batch_methods_are_options_and_calls_are_enough_to_fill_them() -> None:
    assert Batches.bind().config.max_ongoing_requests == 16
    wide = Batches.options(batch={"embed": {"max_batch_size": 32}}).bind()
    assert wide.config.reloadable_options.batch == {"embed": {"max_batch_size": 32}}
    assert wide.config.max_ongoing_requests == 64
    narrow = Batches.options(batch={"embed": {"max_batch_size": 2}}, max_ongoing_requests=4).bind()
    assert narrow.config.max_ongoing_requests == 4


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"write": {}}, "class Batches: batch.write: it has no @batch method 'write', only embed"),
        (
            {"embed": {"max_batch_size": 0}},
            "class Batches: batch.embed.max_batch_size = 0: input should be greater than or equal to 1",
        ),
        ({"embed": {"size": 1}}, "class Batches: a class has no option 'batch.embed.size'"),
        (
            {"embed": {"max_batch_size": 9}},
            "class Batches: max_ongoing_requests = 16: its batches are full with 18 at a time",
        ),
    ],
)
def test_a_batch_limit_that_cannot_be_is_one_sentence(batch: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Batches.options(batch=batch, max_ongoing_requests=16)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("limit", BOUNDS)
def test_batch_limit_has_the_same_bounds_in_options_and_in_configuration(limit: str) -> None:
    kind, least, most = BOUNDS[limit]
    for number in (least, most):
        assert kind(getattr(BatchLimits(**{limit: number}), limit)) == number
    for number in (least - 1, most + 1):
        with pytest.raises(ValidationError):
            BatchLimits(**{limit: number})


def test_option_of_classes_is_refused_for_an_ingress() -> None:
    with pytest.raises(ConfigError, match=r"^DeploymentConfig has no option 'sync_threads'$"):
        DeploymentConfig(name="chat", sync_threads=2)  # type: ignore[call-arg]


# Ordinary classes


def test_the_class_stays_an_ordinary_one() -> None:
    writer = Writer("tiny", words=3)
    assert (writer.model, writer.words) == ("tiny", 3)
    assert writer.score("four") == 4


def test_options_are_inherited_and_overridden_but_not_the_name() -> None:
    class Base(Deployment, name="base", num_replicas=2, max_queued_requests=7):
        pass

    class Other(Deployment, max_queued_requests=8, retry="none"):
        pass

    class Derived(Base, num_replicas=3):
        pass

    class Both(Derived, Other):
        pass

    assert Base.bind().name == "base"
    assert Derived.bind().config == ClassConfig(name="derived", num_replicas=3, max_queued_requests=7)
    assert Both.bind().config == ClassConfig(name="both", num_replicas=3, max_queued_requests=7, retry="none")


@pytest.mark.parametrize("slots", [True, False])
def test_a_dataclass_is_bound_with_its_fields(slots: bool) -> None:
    @functools.partial(dataclasses.dataclass, slots=slots)
    class Model(Deployment, num_replicas=4):
        path: str
        layers: int = 2

    bound = Model.bind("weights", layers=3)  # type: ignore[call-arg]
    assert bound.config.num_replicas == 4
    assert bound.make() == Model("weights", 3)  # type: ignore[call-arg]


def test_an_abstract_class_is_bound_once_it_is_whole() -> None:
    class Model(Deployment, ABC, num_replicas=4):
        @abstractmethod
        async def predict(self) -> int: ...

    class Three(Model):
        async def predict(self) -> int:
            return 3

    with pytest.raises(ConfigError, match=r"^Model is abstract: it lacks predict$"):
        Model.bind()
    assert Three.bind().config.num_replicas == 4
    assert isinstance(Three.bind().make(), Three)


def test_a_pydantic_model_is_bound_with_its_fields() -> None:
    class Model(Deployment, BaseModel, num_replicas=4):
        path: str

    bound = Model.bind(path="weights")
    assert bound.config.num_replicas == 4
    assert bound.make() == Model(path="weights")
    assert Model.model_fields.keys() == {"path"}


def test_a_generic_class_is_bound() -> None:
    class Model(Deployment, Generic[T], num_replicas=4):
        def __init__(self, value: T) -> None:
            self.value = value

    assert Model[int].bind(3).make().value == 3


def test_a_class_that_cannot_be_subclassed_is_served_as_well() -> None:
    assert deployment(bool, num_replicas=2).bind(1).make() is True
    with pytest.raises(ConfigError, match=r"^a deployment is made of a class, not of <built-in function len>$"):
        deployment(len)


# Bound


def test_each_make_gives_an_object_of_its_own() -> None:
    writer = Writer.bind("tiny", words=5)
    first, second = writer.make(), writer.make()
    assert first is not second
    assert (first.model, first.words) == ("tiny", 5)
    assert writer.cls is Writer
    assert repr(writer) == "<Writer bound as writer>"


def test_arguments_that_the_constructor_does_not_take_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^Writer.bind\(\): missing a required argument: 'model'$"):
        Writer.bind()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^Writer.bind\(\): got an unexpected keyword argument 'mode'$"):
        Writer.bind("tiny", mode="x")  # type: ignore[call-arg]


def test_no_two_bounds_are_equal_and_each_has_one_handle() -> None:
    one, other = Writer.bind("x"), Writer.bind("x")
    assert len({one, other, one}) == 2
    assert one.handle is one.handle
    assert deployment_of(one.handle) is one


def test_secrets_among_the_arguments_are_redacted_from_the_construction_on() -> None:
    class Vault(Deployment):
        def __init__(self, api_key: str, url: str, words: dict[str, Any], **others: str) -> None: ...

    large: dict[str, Any] = {}
    large["itself"] = large
    vault = Vault.bind("a key of Ada", "redis://:a-word-of-ada@host", large, db_password="a password of Ada")
    said = "a key of Ada, a-word-of-ada and a password of Ada"
    assert redacted(said) == said
    vault.make()
    assert redacted(said) == "***, *** and ***"


def test_handles_are_found_in_nested_arguments() -> None:
    a, b, c, d = (Writer.options(name=name).bind(name) for name in "abcd")
    own: list[Any] = [b.handle, "text"]
    own.append(own)
    front = TextEncoder.bind(a.handle, own, (c.handle,), by_name={"d": {"deep": [d.handle]}}, again=a.handle)
    assert [each.name for each in front.needs] == ["a", "b", "c", "d", "a"]


def test_bind_takes_handles_and_refuses_bound_deployments() -> None:
    writer = Writer.bind("x")
    for arguments in ((writer,), ([{"deep": writer}],)):
        sentence = r"^TextEncoder.bind\(\) was given <Writer bound as writer>: pass its handle instead$"
        with pytest.raises(ConfigError, match=sentence):
            TextEncoder.bind(*arguments)


@pytest.mark.parametrize("name", ["write", "predict"])
def test_methods_are_not_called_on_a_bound_deployment(name: str) -> None:
    said = f"^a bound deployment has no attribute '{name}'; methods of Writer are called through its `handle`$"
    with pytest.raises(AttributeError, match=said):
        getattr(Writer.bind("x"), name)
    with pytest.raises(AttributeError, match=r"^a bound deployment has no attribute '__wrapped__'$"):
        Writer.bind("x").__wrapped__  # type: ignore[attr-defined]  # noqa: B018


# A dependency of routes


def app_of(writer: Bound[Writer]) -> Toolkit:
    app = Toolkit()

    @app.get("/write")
    async def write(prompt: str, model: Annotated[Writer, Depends(writer)]) -> str:
        return await model.write(prompt)

    return app


def test_a_bound_deployment_adds_nothing_to_the_schema() -> None:
    (parameter,) = app_of(Writer.bind("tiny")).openapi()["paths"]["/write"]["get"]["parameters"]
    assert parameter["name"] == "prompt"


def test_a_test_puts_an_ordinary_object_in_its_place() -> None:
    writer = Writer.bind("large")
    app = app_of(writer)
    app.dependency_overrides[writer] = lambda: Writer("fake")
    with TestClient(app) as client:
        assert client.get("/write", params={"prompt": "x"}).json() == "fake: x"


def test_a_route_may_depend_on_the_handle_itself() -> None:
    writer = Writer.bind("tiny")
    app = Toolkit()

    @app.get("/same")
    async def same(model: Annotated[Any, Depends(writer.handle)], other: Annotated[Any, Depends(writer)]) -> bool:
        return model is other is writer.handle

    with TestClient(app) as client:
        assert client.get("/same").json() is True


def test_a_call_that_is_never_awaited_is_named() -> None:
    handle = Writer.bind("tiny").handle
    with pytest.warns(RuntimeWarning, match=r"^coroutine 'Writer.write' was never awaited$"):
        handle.write("x")  # nobody holds it
