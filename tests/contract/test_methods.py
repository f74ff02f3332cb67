"""The kinds of methods of a class."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from app_toolkit.calls.batching import batch
from app_toolkit.contract.methods import idempotent, is_idempotent, kind_of
from app_toolkit.types import Kind


class Model:
    async def ask(self) -> int:
        return 1

    async def tell(self) -> AsyncIterator[int]:
        yield 1

    def count(self) -> int:
        return 1

    def each(self) -> Iterator[int]:
        yield 1

    def __call__(self) -> int:
        return 1


@wraps(Model.count)
async def wrapped(*args: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (Model().ask, "coroutine"),
        (Model.ask, "coroutine"),
        (partial(Model.ask, Model()), "coroutine"),
        (Model().tell, "stream"),
        (Model().count, "sync"),
        (Model().each, "sync stream"),
        (Model(), "sync"),
        (wrapped, "coroutine"),
    ],
)
def test_kind_of_a_method_is_that_of_its_call(method: Callable[..., Any], kind: Kind) -> None:
    assert kind_of(method) == kind


def test_a_method_is_idempotent_if_it_is_marked_also_within_a_batch_and_in_a_subclass() -> None:
    class Index:
        @idempotent
        @batch()
        async def outside(self, texts: list[str]) -> list[str]:
            return texts

        @batch()
        @idempotent
        async def inside(self, texts: list[str]) -> list[str]:
            return texts

        @idempotent
        def count(self) -> int:
            return 0

        def add(self) -> None: ...

    class Larger(Index):
        def count(self) -> int:
            return 1

    assert all(map(is_idempotent, (Index.outside, Index.inside, Index.count, Larger.inside, Index().count)))
    assert not any(map(is_idempotent, (Index.add, Larger.count, None)))
