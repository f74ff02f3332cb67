"""What kinds of methods a class has."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from app_toolkit.core.methods import kind_of
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
def test_the_kind_of_a_method_is_that_of_what_its_callers_see(method: Callable[..., Any], kind: Kind) -> None:
    assert kind_of(method) == kind
