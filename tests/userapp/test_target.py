"""The values that a target may name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.errors import PlanningError, TargetError
from app_toolkit.userapp.target import Function, is_served, served


class Writer(Deployment):
    def __call__(self, request: Any) -> str:
        return "written"


class Site:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Around:
    """A middleware as Sentry's or CORS's: an app with an app inside."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Awaited:
    def __init__(self, scope: Any, receive: Any, send: Any) -> None: ...
    def __await__(self) -> Any: ...


class Commands:
    """Takes any arguments, as a Typer does, which is no app."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


async def raw(scope: Any, receive: Any, send: Any) -> None: ...
def answer(request: Any, limit: int = 3) -> None: ...
async def answer_later(request: Any) -> None: ...


APP, WRITER, SITE = FastAPI(), Writer.bind(), Site()


@pytest.mark.parametrize(
    "value", [APP, Toolkit(), WRITER, SITE, SITE.__call__, raw, Starlette(), Around(APP), Around(Around(SITE)), Awaited]
)
def test_an_app_and_a_bound_deployment_are_served_as_they_are(value: Any) -> None:
    assert served(value, "shop:app") is value
    assert is_served(value)


@pytest.mark.parametrize("value", [APP, WRITER, SITE, raw])
@pytest.mark.parametrize(
    "factory",
    [lambda value: lambda: value, lambda value: lambda debug=False, **more: value, partial(partial, lambda v: v)],
)
def test_a_function_without_required_parameters_is_a_factory(factory: Callable[[Any], Any], value: Any) -> None:
    assert served(factory(value), "shop:create") is value


@pytest.mark.parametrize("function", [answer, answer_later])
def test_a_function_of_one_argument_answers_requests(function: Any) -> None:
    found = served(function, "shop:answer")
    assert isinstance(found, Function)
    assert found.name == function.__name__
    assert found.needs == ()


async def create_later() -> FastAPI:
    return APP


def create_nothing() -> None: ...
def create_function() -> Any:
    return create_nothing


def wsgi(environ: Any, start_response: Any) -> Any: ...


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (3, "shop:x is an int, and a target is a FastAPI app, another ASGI app"),
        (None, "shop:x is a NoneType, and a target is"),
        (Writer, r"shop:x is a deployment without arguments: bind it, as in bound = Writer.bind\(...\)"),
        (Writer.options(num_replicas=2), "shop:x is a deployment without arguments: bind it"),
        (WRITER.handle, "shop:x is a Handle, and a target is"),
        (Site, "shop:x is the class Site: name an object of it"),
        (APIRouter(), "shop:x is an APIRouter: include it in a FastAPI app"),
        (wsgi, r"shop:x is a function, which takes two arguments as a WSGI app does \(a2wsgi"),
        (
            partial(answer, limit=3),
            "shop:x is a functools.partial, which has no name: call it in a `def`, and name that",
        ),
        (Commands(), "shop:x is a Commands, and a target is"),
        (create_later, "shop:x is an async function without parameters, and a factory has to be a `def` function"),
        (create_nothing, r"shop:x\(\) is a NoneType, and a target is"),
        (create_function, r"shop:x\(\) returns <function create_nothing .* call that function in the factory"),
    ],
)
def test_anything_else_is_refused_in_one_sentence_with_a_hint(value: Any, sentence: str) -> None:
    with pytest.raises(TargetError, match=sentence) as refused:
        served(value, "shop:x")
    assert "\n" not in str(refused.value)


def test_a_fastapi_app_with_deployments_is_not_hidden_in_another_app() -> None:
    app = Toolkit(deployments=[WRITER])
    app.include_router(APIRouter(), deployment=DeploymentConfig(name="chat"))
    sentence = r"around a FastAPI app with deployments \(writer, chat\), .* mount it in the FastAPI app"
    for outer in (Around(app), Around(Around(app))):
        with pytest.raises(PlanningError, match=sentence):
            served(outer, "shop:outer")
