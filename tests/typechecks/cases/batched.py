"""What type checkers are to say of `@batch`. Where they are to complain, a comment ignores it, and has to."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any, ParamSpec, TypeVar, assert_type

from fastapi import Depends, FastAPI, Query

from app_toolkit import batch, call_many

P = ParamSpec("P")
R = TypeVar("R")

app = FastAPI()


async def called(call: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
    return await call(*args, **kwargs)


class Model:
    @batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def embed(self, texts: list[str]) -> list[float]:
        return [0.0 for _ in texts]

    @batch(size_fn=len)
    def predict(self, rows: list[bytes], scales: list[int]) -> list[str]:
        return ["" for _ in rows]

    @batch()
    async def write(self, prompts: list[str]) -> AsyncIterator[list[str | None]]:
        yield ["token" for _ in prompts]

    @batch()
    async def find(self, names: list[str]) -> list[int | Exception]:
        return [KeyError(name) for name in names]


@batch()
async def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


@batch()
async def joined(one: list[str], other: list[int]) -> list[str]:
    return [f"{first}{second}" for first, second in zip(one, other, strict=True)]


@batch()
async def steps(numbers: list[int]) -> AsyncIterator[list[str]]:
    yield [str(number) for number in numbers]


def model() -> Model:
    return Model()


@app.post("/score")
@batch(max_batch_size=64)
async def score(
    items: list[str], ks: Annotated[list[int], Query(ge=1)], shared: Annotated[Model, Depends(model)], n: list[int]
) -> list[float]:
    return [0.0 for _ in items]


async def calls(model: Model) -> None:
    assert_type(await model.embed("x"), float)
    assert_type(await model.predict(b"x", 3), str)
    assert_type(await model.find("x"), int)
    assert_type(await double(1), int)
    assert_type(await joined("a", 1), str)
    async for token in model.write("x"):
        assert_type(token, str)
    async for step in steps(1):
        assert_type(step, str)
    assert_type(await Model.embed(model, "x"), float)
    assert_type(await score("x", 1, model, 2), float)
    assert_type(await called(model.embed, "x"), float)
    assert_type(await called(model.predict, b"x", 3), str)
    assert_type(model.embed.batch.max_batch_size, int)
    Model.embed.batch.max_batch_size = 16
    double.batch.batch_wait_timeout_s = 0.1

    assert_type(await call_many(model.embed, ["x"]), list[float])
    assert_type(await call_many(double, [1]), list[int])

    await call_many(model.embed, [3])  # type: ignore[arg-type] # of the item's type
    await model.embed(["x"])  # type: ignore[arg-type] # one item, not a list
    await model.embed(3)  # type: ignore[arg-type] # of the item's type
    await model.predict(b"x")  # type: ignore[call-arg] # every parameter
    await called(model.embed, 3)  # type: ignore[arg-type] # of the item's type
    await double("1")  # type: ignore[arg-type] # of the item's type
    model.write(3)  # type: ignore[arg-type] # streams, too
    model.embed.batch.max_batch_size = "16"  # type: ignore[assignment] # a number
    batch(max_size=3)  # type: ignore[call-arg] # no such limit


@batch()  # type: ignore[arg-type] # the result is no list
async def no_list(texts: list[str]) -> float:
    return 0.0
