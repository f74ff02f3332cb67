"""What callers see of a batch function, and what is refused when it is defined."""

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, HTTPException, Query

from app_toolkit import ConfigError, Deployment
from app_toolkit.calls.signatures import shape_of

Texts = list[str]


class Writer(Deployment):
    async def write(self) -> None: ...


writer = Writer.bind()


def seen(function: Callable[..., Any], *, stream: bool = False) -> str:
    return str(shape_of(function, stream=stream).seen)


class Model:
    def embed(self, texts: list[str], k: list[int] = 3) -> list[float]: ...

    def later(self, texts: "Texts", others: "list[NotYet]") -> "list[NotYet]": ...  # noqa: F821

    def steps(self, texts: list[str]) -> "AsyncIterator[list[NotYet]]": ...  # noqa: F821

    @staticmethod
    def alone(texts: list[str]) -> list[float]: ...


def test_every_parameter_and_the_result_lose_one_list() -> None:
    def plain(texts: list[str], pages: list[list[int]], anything: list) -> list[dict[str, list[int]]]: ...

    assert seen(plain) == "(texts: str, pages: list[int], anything: Any) -> dict[str, list[int]]"


def test_fastapi_metadata_of_parameters_stays() -> None:
    def endpoint(ks: Annotated[list[int], Query(ge=1)], tags: list[Annotated[str, Query()]], n: list[int] = 7): ...

    parameters = shape_of(endpoint, stream=False).seen.parameters
    assert parameters["ks"].annotation == Annotated[int, *_metadata(endpoint, "ks")]
    assert parameters["tags"].annotation.__origin__ is str
    assert (parameters["n"].annotation, parameters["n"].default) == (int, 7)


def _metadata(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].annotation.__metadata__


def test_a_method_keeps_its_instance_and_a_static_method_has_none() -> None:
    assert seen(Model.embed) == "(self, texts: str, k: int = 3) -> float"
    assert seen(Model.alone) == "(texts: str) -> float"


def test_an_unresolved_annotation_stays_a_string() -> None:
    assert seen(Model.later) == "(self, texts: str, others: 'NotYet') -> 'NotYet'"
    assert seen(Model.steps, stream=True) == "(self, texts: str) -> 'AsyncIterator[NotYet]'"


def test_a_stream_loses_the_list_of_each_step() -> None:
    def steps(texts: list[str]) -> AsyncIterator[list[str | int | None]]: ...

    assert seen(steps, stream=True) == "(texts: str) -> collections.abc.AsyncIterator[str | int]"


def test_an_exception_is_no_part_of_the_result_that_fastapi_checks() -> None:
    def score(items: list[int]) -> list[float | HTTPException]: ...
    def find(items: list[int]) -> list[float | None]: ...

    assert seen(score) == "(items: int) -> float"
    assert seen(find) == "(items: int) -> float | None"


def test_a_bound_deployment_is_shared_by_all_items() -> None:
    def write(texts: list[str], model: Annotated[object, Depends(writer)], *, n: list[int]) -> list[str]: ...

    shape = shape_of(write, stream=False)
    assert shape.shared == (False, True, False)
    model = object()
    items = [shape.values(("a", model), {"n": 1}), shape.values((), {"n": 2, "texts": "b", "model": model})]
    assert shape.arguments(items) == ([["a", "b"], model], {"n": [1, 2]})
    assert shape.sized(items[1]) == ["b", 2]


def test_arguments_fit_or_are_refused_as_in_any_call() -> None:
    def plain(texts: list[str], /, k: list[int] = 3, *, deep: list[bool] = False) -> list[str]: ...

    shape = shape_of(plain, stream=False)
    assert shape.values(("a",), {}) == ("a", 3, False)
    assert shape.values(("a", 1), {"deep": True}) == ("a", 1, True)
    for args, kwargs in [((), {}), (("a", 1, True), {}), (("a",), {"deeper": True}), ((), {"texts": "a"})]:
        with pytest.raises(TypeError):
            shape.values(args, kwargs)


def no_list(texts: list[str], k: int) -> list[str]: ...
def no_annotation(texts) -> list[str]: ...
def no_item(model: Annotated[object, Depends(writer)]) -> list[str]: ...
def nothing() -> list[str]: ...
def other_result(texts: list[str]) -> str: ...
def no_result(texts: list[str]) -> None: ...
def two_lists(texts: "list[Not] | list[Yet]") -> list[str]: ...  # noqa: F821
def no_python(texts: "list[") -> list[str]: ...  # noqa: F722
def starred(*texts: list[str]) -> list[str]: ...
def default_of_all(texts: list[str] = []) -> list[str]: ...  # noqa: B006
def dependency(texts: list[str], user: Annotated[str, Depends(no_result)]) -> list[str]: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_list, "the parameter 'k' of no_list is int: it must be a list, with one entry for each item"),
        (no_annotation, "the parameter 'texts' of no_annotation is not annotated"),
        (no_item, "no_item has no parameter that is a list"),
        (nothing, "nothing has no parameter that is a list"),
        (other_result, "the result of other_result is str: it must be a list"),
        (no_result, "the result of no_result is None: it must be a list"),
        (two_lists, r"'texts' of two_lists is list\[Not\] | list\[Yet\]"),
        (no_python, "'texts' of no_python is list"),
        (starred, r"starred takes \*texts: name its parameters"),
        (default_of_all, "the default of 'texts' of default_of_all must be that of one item"),
        (dependency, "the parameter 'user' of dependency is"),
    ],
)
def test_a_function_without_lists_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shape_of(function, stream=False)


def test_a_stream_of_no_lists_is_refused() -> None:
    def steps(texts: list[str]) -> AsyncIterator[str]: ...
    def listed(texts: list[str]) -> list[list[str]]: ...

    for function in (steps, listed):
        with pytest.raises(ConfigError, match="it must be an async iterator of lists"):
            shape_of(function, stream=True)
