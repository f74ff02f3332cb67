"""Several models in one replica."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app_toolkit import ConfigError, Deployment, Toolkit, multiplexed, request_id
from app_toolkit.calls.hosted_object import HostedObject
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router
from tests.chat.served import asking
from tests.patience import until

pytestmark = pytest.mark.anyio


class Zoo:
    """Models that are their own names, and load and unload when the test allows it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.broken: set[str] = set()

    @multiplexed(max_models=2)
    async def model(self, name: str) -> AsyncIterator[str]:
        self.events.append(f"load {name}")
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.broken:
            raise OSError(f"no file {name}")
        async with asyncio.timeout(None):  # a context that must be left in the task that entered it
            yield name.upper()
        self.events.append(f"unload {name}")
        if f"-{name}" in self.gates:
            await self.gates[f"-{name}"].wait()
        if f"-{name}" in self.broken:
            raise OSError("it does not end")

    async def use(self, name: str) -> str:
        async with self.model(name) as model:
            return model

    async def hold(self, name: str) -> AsyncIterator[str]:
        async with self.model(name) as model:
            yield model
            await asyncio.Event().wait()


@asynccontextmanager
async def running(zoo: Zoo) -> AsyncIterator[HostedObject]:
    instance = HostedObject(lambda: zoo, name="zoo")
    await instance.start()
    try:
        yield instance
    finally:
        await instance.aclose()


@asynccontextmanager
async def held(zoo: Zoo, name: str) -> AsyncIterator[None]:
    """Use a model within the block."""
    async with zoo.model(name) as model:
        assert model == name.upper()
        yield


async def test_the_least_recently_used_model_makes_room_and_all_are_unloaded_at_the_end() -> None:
    zoo = Zoo()
    async with running(zoo) as instance:
        for name in ("a", "b", "a", "c"):
            assert await instance.call("use", (name,), {}) == name.upper()
        assert zoo.events == ["load a", "load b", "unload b", "load c"]
        assert zoo.model.names == ["a", "c"]
    assert sorted(zoo.events[4:]) == ["unload a", "unload c"]
    with pytest.raises(RuntimeError, match="have been unloaded"):
        await zoo.use("a")


async def test_a_model_is_loaded_once_for_all_requests_that_wait() -> None:
    zoo = Zoo()
    zoo.gates["a"] = asyncio.Event()
    async with running(zoo):
        users = [asyncio.create_task(zoo.use("a")) for _ in range(5)]
        await until(lambda: zoo.events == ["load a"])
        users[0].cancel()  # the load belongs to no single request
        zoo.gates["a"].set()
        assert await asyncio.gather(*users[1:]) == ["A"] * 4
        assert zoo.events == ["load a"]


async def test_a_model_in_use_is_not_unloaded() -> None:
    zoo = Zoo()
    async with running(zoo):
        async with held(zoo, "a"):
            async with held(zoo, "b"):
                waiting = asyncio.create_task(zoo.use("c"))
                await asyncio.sleep(0)
                assert await zoo.use("a") == "A"  # requests for models that are loaded do not wait
                assert zoo.events == ["load a", "load b"]
            assert await waiting == "C"
        assert zoo.events == ["load a", "load b", "unload b", "load c"]


async def test_a_load_waits_for_the_end_of_the_model_that_makes_room() -> None:
    zoo = Zoo()
    zoo.gates["-a"] = asyncio.Event()
    async with running(zoo):
        await zoo.use("a")
        await zoo.use("b")
        waiting = asyncio.create_task(zoo.use("c"))
        again = asyncio.create_task(zoo.use("a"))
        await until(lambda: "unload a" in zoo.events)
        assert "load c" not in zoo.events
        zoo.gates["-a"].set()
        assert await asyncio.gather(waiting, again) == ["C", "A"]
        assert zoo.events[:4] == ["load a", "load b", "unload a", "load c"]


async def test_an_error_of_a_load_reaches_all_that_wait_and_the_next_request_tries_again() -> None:
    zoo = Zoo()
    zoo.broken.add("a")
    async with running(zoo):
        found = await asyncio.gather(zoo.use("a"), zoo.use("a"), zoo.use("b"), return_exceptions=True)
        assert [f"{each}" for each in found] == ["no file a", "no file a", "B"]
        zoo.broken.clear()
        assert await zoo.use("a") == "A"
        assert zoo.events.count("load a") == 2


async def test_an_error_of_an_unload_is_logged_and_the_place_is_free(caplog: pytest.LogCaptureFixture) -> None:
    zoo = Zoo()
    zoo.broken.add("-a")
    async with running(zoo):
        for name in ("a", "b", "c"):
            await zoo.use(name)
        assert zoo.model.names == ["b", "c"]
    assert "the model a did not unload" in caplog.text


async def test_a_request_that_is_cancelled_while_it_waits_needs_no_model() -> None:
    zoo = Zoo()
    async with running(zoo):
        async with held(zoo, "a"), held(zoo, "b"):
            cancelled = asyncio.create_task(zoo.use("c"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
        assert await asyncio.gather(zoo.use("a"), zoo.use("b")) == ["A", "B"]
    assert "load c" not in zoo.events


async def test_a_request_that_is_cancelled_as_it_gets_its_model_does_not_keep_it() -> None:
    zoo = Zoo()
    async with running(zoo), held(zoo, "a"):
        cancelled = asyncio.create_task(zoo.use("c"))
        await until(lambda: "c" in zoo.model.names)
        cancelled.cancel()  # before it runs again
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await zoo.use("d") == "D"
        assert zoo.model.names == ["a", "d"]


async def test_a_stream_uses_its_model_until_it_is_closed() -> None:
    zoo = Zoo()
    async with running(zoo) as instance, held(zoo, "a"):
        items = instance.stream("hold", ("b",), {})
        assert await anext(items) == "B"
        waiting = asyncio.create_task(zoo.use("c"))
        await asyncio.sleep(0)
        assert "unload b" not in zoo.events
        await items.aclose()
        assert await waiting == "C"


async def test_a_replica_that_ends_waits_for_no_load() -> None:
    zoo = Zoo()
    zoo.gates["a"] = asyncio.Event()
    async with running(zoo):
        waiting = asyncio.create_task(zoo.use("a"))
        await until(lambda: zoo.events == ["load a"])
    with pytest.raises(RuntimeError, match="the replica ends"):
        await waiting


async def test_a_generator_that_yields_nothing_is_an_error() -> None:
    class Empty:
        @multiplexed(max_models=1)
        async def model(self, name: str) -> AsyncIterator[str]:
            if name == "full":
                yield name

    with pytest.raises(RuntimeError, match="didn't yield"):
        async with Empty().model("empty"):
            pass


async def test_each_object_has_models_of_its_own() -> None:
    one, two = Zoo(), Zoo()
    async with running(one), running(two):
        await one.use("a")
        assert (one.model.names, two.model.names) == (["a"], [])


class Speakers(Deployment):
    """A chat model that loads the model that the request names."""

    @multiplexed(max_models=1)
    async def voice(self, name: str) -> AsyncIterator[str]:
        yield f"{name} was loaded in the context of {request_id()}"

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async with self.voice(request.model) as voice:
            yield TextEvent(voice)


async def test_a_chat_router_serves_several_models_of_one_replica() -> None:
    app, speakers = Toolkit(), Speakers.bind()
    app.include_router(openai_router({"a": speakers, "b": speakers}), prefix="/v1")
    async with asking(app) as http:
        for name in ("a", "b", "a"):
            body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
            response = await http.post("/v1/chat/completions", json=body)
            text = response.json()["choices"][0]["message"]["content"]
            assert text == f"{name} was loaded in the context of None"


async def test_another_object_replaces_a_deployment_with_several_models_in_a_test() -> None:
    async def fake(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield TextEvent("a fake")

    app, speakers = Toolkit(), Speakers.bind()
    app.include_router(openai_router({"a": speakers}), prefix="/v1")
    app.dependency_overrides[speakers] = lambda: fake
    async with asking(app) as http:
        body = {"model": "a", "messages": [{"role": "user", "content": "hello"}]}
        response = await http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "a fake"


def test_a_replica_has_at_least_one_model() -> None:
    with pytest.raises(ConfigError, match="max_models = 0: must be at least 1"):
        multiplexed(max_models=0)


async def test_attribute_that_a_thread_adds_meanwhile_breaks_no_response() -> None:
    class Meanwhile:
        @property
        def __class__(self) -> type:  # asked for while the attributes are looked through
            setattr(zoo, f"added {len(vars(zoo))}", True)
            return Meanwhile

        @__class__.setter
        def __class__(self, value: type) -> None: ...

    zoo = Zoo()
    zoo.meanwhile = Meanwhile()  # type: ignore[attr-defined]
    async with running(zoo) as instance:
        await zoo.use("a")
        assert instance.holdings() is not None
        assert not instance.must_displace("b")
