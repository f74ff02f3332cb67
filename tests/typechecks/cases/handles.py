"""What type checkers are to say of handles. Where they are to complain, a comment ignores it, and has to."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, assert_type

from app_toolkit import Deployment, options, remote
from app_toolkit.calls.handle import CallFuture, Stream


def one_at_a_time(
    method: Callable[["Writer", list[str]], Awaitable[list[int]]],
) -> Callable[["Writer", str], Coroutine[Any, Any, int]]:
    """As what turns lists into items: what its callers see is what counts."""
    raise NotImplementedError


class Writer(Deployment):
    async def write(self, prompt: str, *, times: int = 1) -> str:
        return prompt * times

    async def tokens(self, prompt: str) -> AsyncIterator[bytes]:
        yield b""

    async def generated(self) -> AsyncGenerator[bytes, None]:
        yield b""

    async def declared(self) -> AsyncIterable[bytes]:
        yield b""

    def score(self, text: str) -> float:
        return len(text)

    def letters(self, text: str) -> Iterator[str]:
        yield from text

    def words(self, text: str) -> list[str]:
        return text.split()

    @one_at_a_time
    async def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


model = Writer.bind().handle


async def ordinary() -> None:
    assert_type(await model.write("x", times=2), str)
    async for token in model.tokens("x"):
        assert_type(token, bytes)
    assert_type(await model.embed("x"), int)
    await model.write(3)  # type: ignore[arg-type]
    await model.embed(["x"])  # type: ignore[arg-type]
    await model.wrote("x")  # type: ignore[attr-defined]


async def by_remote() -> None:
    assert_type(remote(model.write, "x", times=2), CallFuture[str])
    assert_type(remote(model.score, "x"), CallFuture[float])
    assert_type(remote(model.words, "x"), CallFuture[list[str]])
    assert_type(remote(model.embed, "x"), CallFuture[int])
    assert_type(remote(model.tokens, "x"), Stream[bytes])
    assert_type(remote(model.generated), Stream[bytes])
    assert_type(remote(model.declared), Stream[bytes])
    assert_type(remote(model.letters, "x"), Stream[str])

    assert_type(await remote(model.score, "x"), float)
    assert_type(remote(model.write, "x").result(timeout_s=3), str)
    async for token in remote(model.tokens, "x"):
        assert_type(token, bytes)
    for letter in remote(model.letters, "x"):
        assert_type(letter, str)

    remote(model.write, 3)  # type: ignore[call-overload]
    remote(model.write, "x", time=2)  # type: ignore[call-arg, arg-type]
    await remote(model.tokens, "x")  # type: ignore[misc]
    remote("write")  # type: ignore[call-overload]


async def one_into_another() -> None:
    response = remote(model.write, "x")
    assert_type(response.later(), str)
    assert_type(await model.write(response.later()), str)
    assert_type(remote(model.embed, response.later()), CallFuture[int])
    remote(model.write, remote(model.score, "x").later())  # type: ignore[call-overload]


async def with_options() -> None:
    assert_type(options(model, timeout_s=2, retry="all"), Writer)
    assert_type(await remote(options(model, timeout_s=2).score, "x"), float)
    options(model, shard_key="user-7", affinity="k")
    options(model, timeout="2")  # type: ignore[call-arg]
    options(model, timeout_s="2")  # type: ignore[arg-type]
    options(model, retry="never")  # type: ignore[arg-type]
