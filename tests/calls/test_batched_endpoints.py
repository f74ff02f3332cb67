"""`@batch` below a route's decorator: FastAPI sees one item, the function gets lists."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    Form,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    UploadFile,
)
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

from app_toolkit import DeploymentConfig, Toolkit, batch
from app_toolkit.declare.planning import plan
from app_toolkit.errors import OverrideError, PlanningError
from app_toolkit.interfaces import Deployable
from app_toolkit.replica.admission.replica import Replica
from tests.patience import until

pytestmark = pytest.mark.anyio

OF_TWO: dict[str, Any] = {"max_batch_size": 2, "batch_wait_timeout_s": 60.0}
"""Two requests make a batch; one waits for longer than any test."""


class Item(BaseModel):
    name: str
    price: float


class Score(BaseModel):
    value: float


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://shop")


async def both(app: Any, *requests: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> list[httpx.Response]:
    async with client_of(app) as client:
        return await asyncio.gather(*(request(client) for request in requests))


async def test_fastapi_sees_one_item_and_the_function_both() -> None:
    app, calls = FastAPI(), []

    @app.post("/score")
    @batch(**OF_TWO)
    async def score(items: list[Item]) -> list[Score]:
        calls.append(items)
        return [Score(value=item.price / 2) for item in items]

    tea, pot = {"name": "tea", "price": 2}, {"name": "pot", "price": 8}
    answers = await both(app, lambda c: c.post("/score", json=tea), lambda c: c.post("/score", json=pot))
    assert [answer.json() for answer in answers] == [{"value": 1}, {"value": 4}]
    assert calls == [[Item(**tea), Item(**pot)]]
    (refused,) = await both(app, lambda c: c.post("/score", json={"name": "tea"}))
    assert refused.status_code == 422
    operation = app.openapi()["paths"]["/score"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Item"}
    shown = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert shown == {"$ref": "#/components/schemas/Score"}


async def test_every_kind_of_parameter() -> None:
    app, done = FastAPI(), []

    async def user(x_user: Annotated[str, Header()]) -> str:
        return x_user.upper()

    @app.put("/things/{number}")
    @batch(**OF_TWO)
    async def put(
        number: list[int],
        body: list[Item],
        tags: Annotated[list[list[str]], Query()],
        request: list[Request],
        response: list[Response],
        tasks: list[BackgroundTasks],
        who: Annotated[list[str], Depends(user)],
        limit: Annotated[list[int], Query(ge=1)] = 7,
    ) -> list[dict[str, Any]]:
        answers = []
        for index in range(len(number)):
            response[index].headers["x-number"] = str(number[index])
            tasks[index].add_task(done.append, number[index])
            answers.append(
                {
                    "number": number[index],
                    "name": body[index].name,
                    "tags": tags[index],
                    "path": request[index].url.path,
                    "who": who[index],
                    "limit": limit[index],
                }
            )
        return answers

    def ask(number: int, query: str, who: str) -> Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]:
        body = {"name": f"thing {number}", "price": 1}
        return lambda client: client.put(f"/things/{number}?{query}", json=body, headers={"x-user": who})

    answers = await both(app, ask(1, "tags=a&tags=b", "ann"), ask(2, "tags=c&limit=3", "bob"))
    assert [answer.json() for answer in answers] == [
        {"number": 1, "name": "thing 1", "tags": ["a", "b"], "path": "/things/1", "who": "ANN", "limit": 7},
        {"number": 2, "name": "thing 2", "tags": ["c"], "path": "/things/2", "who": "BOB", "limit": 3},
    ]
    assert [answer.headers["x-number"] for answer in answers] == ["1", "2"]
    assert sorted(done) == [1, 2]
    (refused,) = await both(app, ask(3, "tags=c&limit=0", "bob"))
    assert refused.status_code == 422


async def test_forms_and_uploads() -> None:
    app = FastAPI()

    @app.post("/read")
    @batch(**OF_TWO)
    async def read(title: Annotated[list[str], Form()], file: list[UploadFile]) -> list[str]:
        return [f"{one}: {(await each.read()).decode()}" for one, each in zip(title, file, strict=True)]

    answers = await both(
        app,
        lambda c: c.post("/read", data={"title": "a"}, files={"file": ("a.txt", b"first")}),
        lambda c: c.post("/read", data={"title": "b"}, files={"file": ("b.txt", b"second")}),
    )
    assert [answer.json() for answer in answers] == ["a: first", "b: second"]


async def test_an_exception_in_the_result_is_the_response_of_its_request() -> None:
    app = FastAPI()

    class Gone(Exception):
        def __init__(self, *, when: str) -> None:
            self.when = when

    @app.exception_handler(Gone)
    async def gone(request: Request, error: Gone) -> Response:
        return Response(f"gone since {error.when}", 410)

    @app.get("/find")
    @batch(max_batch_size=4, batch_wait_timeout_s=60.0)
    async def find(n: list[int]) -> list[int | Exception]:
        kinds = [0, HTTPException(404, "no such thing"), Gone(when="May"), 3]
        return [kinds[each] for each in n]

    answers = await both(app, *(lambda c, n=n: c.get(f"/find?n={n}") for n in range(4)))
    assert [(answer.status_code, answer.text) for answer in answers] == [
        (200, "0"),
        (404, '{"detail":"no such thing"}'),
        (410, "gone since May"),
        (200, "3"),
    ]


@pytest.mark.parametrize("response_class", [None, EventSourceResponse])
async def test_each_request_of_a_stream_gets_its_own_entries(response_class: Any) -> None:
    app = FastAPI()
    kind = {} if response_class is None else {"response_class": response_class}

    @app.get("/count", **kind)
    @batch(**OF_TWO)
    async def count(to: list[int]) -> AsyncIterable[list[Score | None]]:
        for number in range(max(to)):
            yield [Score(value=number) if number < limit else None for limit in to]

    answers = await both(app, lambda c: c.get("/count?to=1"), lambda c: c.get("/count?to=3"))
    lines = [[line.removeprefix("data: ") for line in answer.text.splitlines() if line] for answer in answers]
    assert [[json.loads(line)["value"] for line in each] for each in lines] == [[0], [0, 1, 2]]
    media_type = "application/jsonl" if response_class is None else "text/event-stream"
    assert all(answer.headers["content-type"].startswith(media_type) for answer in answers)
    assert "null" not in json.dumps(app.openapi()["paths"]), "what is skipped is no part of the schema"


async def test_dependencies_stay_open_until_their_request_is_answered() -> None:
    app, events = FastAPI(), []
    hold = asyncio.Event()

    async def session(n: int) -> AsyncIterator[str]:
        events.append(f"open {n}")
        try:
            yield f"session {n}"
        finally:
            events.append(f"close {n}")

    @app.get("/use")
    @batch(**OF_TWO)
    async def use(sessions: Annotated[list[str], Depends(session)]) -> list[str]:
        events.append(f"batch of {sessions}")
        await hold.wait()
        events.append("batch done")
        return sessions

    async with client_of(app) as client:
        gone, stays = (asyncio.ensure_future(client.get(f"/use?n={n}")) for n in (1, 2))
        await until(lambda: len(events) == 3)
        gone.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(events[:2]) == ["open 1", "open 2"]
        assert len(events) == 3, "the batch still works with the session of the one who left"
        hold.set()
        assert (await stays).json() == "session 2"
        await asyncio.wait([gone])
    assert events[3] == "batch done"
    assert sorted(events[4:]) == ["close 1", "close 2"]


@dataclass(eq=False)
class Bound(Deployable):
    """As a bound deployment: FastAPI calls it, and it gives a handle."""

    cls: type
    name = "writer"
    needs = ()

    def make(self) -> object:
        return self.cls()

    async def __call__(self) -> object:
        return self.made

    def __post_init__(self) -> None:
        self.made = self.make()


class Writer:
    @batch(**OF_TWO)
    async def write(self, texts: list[str]) -> list[str]:
        return [f"{text}!" for text in texts]


async def test_a_bound_deployment_is_shared_and_batches_by_itself() -> None:
    app, writer = FastAPI(), Bound(Writer)

    @app.get("/write")
    @batch(**OF_TWO)
    async def write(text: list[str], model: Annotated[Writer, Depends(writer)]) -> list[str]:
        return await asyncio.gather(*map(model.write, text))

    answers = await both(app, lambda c: c.get("/write?text=a"), lambda c: c.get("/write?text=b"))
    assert [answer.json() for answer in answers] == ["a!", "b!"]


async def test_a_request_that_waits_for_a_batch_is_ongoing_at_its_replica() -> None:
    app, hold, running = FastAPI(), asyncio.Event(), []

    @app.get("/hold")
    @batch(**OF_TWO)
    async def slow(n: list[int]) -> list[int]:
        running.append(n)
        await hold.wait()
        return n

    replica = Replica(app, name="hold", max_ongoing_requests=3)
    transport = httpx.ASGITransport(replica.serve)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        asked = [asyncio.ensure_future(client.get(f"/hold?n={n}")) for n in range(3)]
        await until(lambda: bool(running) and replica.statistics().ongoing == 3)
        assert running == [[0, 1]]
        nobody: Any = None
        assert await replica.serve({"type": "http"}, nobody, nobody) == "busy", "two run and one waits for its batch"
        asked[2].cancel()
        hold.set()
        await asyncio.wait(asked)
    assert [each.result().json() for each in asked[:2]] == [0, 1]
    assert running == [[0, 1]]
    assert (replica.statistics().ongoing, replica.statistics().running) == (0, 0)


# Limits that an ingress sets


def tuned(**batch: dict[str, float]) -> tuple[Toolkit, list[int]]:
    """An app whose two ingresses have the endpoint `size` in common, and the sizes of its batches."""
    sizes: list[int] = []
    router = APIRouter()

    @router.get("/size")
    @batch_of_two
    async def size(names: list[str]) -> list[int]:
        sizes.append(len(names))
        return [len(names)] * len(names)

    app = Toolkit()
    app.include_router(router, prefix="/tuned", deployment=DeploymentConfig(name="tuned", batch=batch))  # type: ignore[arg-type]
    app.include_router(router, prefix="/plain", deployment=DeploymentConfig(name="plain"))
    return app, sizes


batch_of_two = batch(**OF_TWO)


async def sizes_of(app: Toolkit, path: str, requests: int) -> list[int]:
    async with client_of(app) as client:
        answers = await asyncio.gather(*(client.get(path, params={"names": "any"}) for _ in range(requests)))
    return [answer.json() for answer in answers]


async def test_the_batch_limits_of_an_ingress_replace_those_of_its_endpoint_and_of_no_other_ingress() -> None:
    app, _ = tuned(size={"max_batch_size": 3})
    assert await sizes_of(app, "/tuned/size", 3) == [3, 3, 3]
    assert await sizes_of(app, "/plain/size", 4) == [2, 2, 2, 2]


async def test_the_limits_of_one_app_are_not_those_of_another_in_the_same_process() -> None:
    for most in (4, 3):
        app, _ = tuned(size={"max_batch_size": most})
        assert await sizes_of(app, "/tuned/size", most) == [most] * most


def planned(app: Toolkit, **overrides: Any) -> DeploymentConfig:
    spec = plan(app, target="shop:app", app_dir="/srv", overrides=overrides)
    return spec.deployment("tuned").config


def test_a_file_sets_the_batch_limits_of_an_endpoint_over_those_of_the_code() -> None:
    app, _ = tuned(size={"max_batch_size": 3})
    config = planned(app, tuned={"batch": {"size": {"batch_wait_timeout_s": 1}}})
    assert config.reloadable_options.batch == {"size": {"max_batch_size": 3, "batch_wait_timeout_s": 1}}


def test_a_limit_for_an_endpoint_that_does_not_exist_is_refused() -> None:
    app, _ = tuned(score={"max_batch_size": 3})
    with pytest.raises(
        PlanningError, match=r"the ingress 'tuned': batch\.score: it has no @batch endpoint 'score', only size"
    ):
        planned(app)
    app, _ = tuned()
    with pytest.raises(OverrideError) as refused:
        planned(app, tuned={"batch": {"score": {}}})
    [(place, why)] = refused.value.mistakes
    assert (place, why) == (("tuned", "batch", "score"), "batch.score: it has no @batch endpoint 'score', only size")


def test_a_limit_that_needs_more_requests_than_the_ingress_runs_is_refused() -> None:
    app, _ = tuned(size={"max_batch_size": 101})
    with pytest.raises(PlanningError, match="its batches are full with 101 requests at a time"):
        planned(app)
