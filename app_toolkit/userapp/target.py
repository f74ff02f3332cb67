"""The values that a target may name: apps, factories of apps, and functions that answer requests."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from fastapi import APIRouter, FastAPI

from app_toolkit.config.models import ClassConfig
from app_toolkit.contract.methods import kebab
from app_toolkit.errors import ConfigError, PlanningError, TargetError
from app_toolkit.interfaces import Deployable, WeightedCallee
from app_toolkit.observability.slow_start import reported_if_slow
from app_toolkit.types import ASGIApp
from app_toolkit.userapp.graph import find
from app_toolkit.userapp.loading import MOST_NAMES, fails

ACCEPTED = "a FastAPI app, another ASGI app, a function that makes one, or a bound deployment"

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

MOST_WRAPPERS = 16
"""How many apps around an app are unwrapped to find the deployments of a FastAPI app inside."""


class Function(Deployable):
    """A deployment that answers HTTP with a function."""

    def __init__(self, respond: Callable[[Any], Any]) -> None:
        """Raises `ConfigError` if the name of the function cannot be that of a deployment."""
        self.cls = class_of(respond)
        self.config = ClassConfig(name=kebab(respond.__name__))

    @property
    def name(self) -> str:
        return str(self.config.name)

    @property
    def needs(self) -> Sequence[Deployable]:
        return ()

    def make(self) -> object:
        return self.cls()


def class_of(respond: Callable[[Any], Any]) -> type:
    """Return a class whose objects answer requests with this function."""
    names = {"__call__": staticmethod(respond), "__module__": respond.__module__, "__qualname__": respond.__qualname__}
    return type(respond.__name__, (), names)


def is_factory(value: object) -> bool:
    """Return whether the value is a function that can be called without arguments. Classes are not functions."""
    return is_function(value) and _required(value) == 0


def candidates(module: ModuleType) -> str:
    """Return the names of a module that can be targets, as a part of an error message."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", module.__name__) == module.__name__
        if is_factory(value) or is_served(value)
    ]
    if not names:
        return "no object of it can be served"
    return (
        f"name one of its objects, as in {module.__name__}:{names[0]}; it has {', '.join(sorted(names)[:MOST_NAMES])}"
    )


def is_served(value: object) -> bool:
    """Return whether the value can be a target. A factory is not called."""
    try:
        if not is_factory(value):
            served(value, "")
    except ConfigError:
        return False
    return True


def served(value: Any, where: str) -> ASGIApp | Deployable:
    """Return the app or the deployment that a target stands for. `where` is its name in errors.

    A function that can be called without arguments is a factory, and is called. A function with one required parameter
    answers requests, and becomes a deployment. Any other callable that takes a scope, `receive` and `send` is an app.

    Raises `TargetError` for anything else, and for a factory that raises.
    """
    if is_factory(value):
        value, where = _made(value, where), f"{where}()"
        if is_factory(value):
            raise TargetError(
                f"{where} returns {value!r}, and a factory must return an app: call that function in the factory"
            )
    if isinstance(value, FastAPI | Deployable):
        return value
    if why := _unfit(value):
        raise TargetError(f"{where} is {why}")
    if is_function(value) and _required(value) == 1:
        if isinstance(value, partial):
            raise TargetError(f"{where} is a functools.partial, which has no name: call it in a `def`, and name that")
        return Function(value)
    if callable(value) and _takes(value, 3):
        _refuse_deployments_inside(value, where)
        return value  # type: ignore[no-any-return]
    kind = _kind(value)
    if callable(value) and _takes(value, 2):
        kind += ", which takes two arguments as a WSGI app does (a2wsgi.WSGIMiddleware(app) is an ASGI app around one)"
    raise TargetError(f"{where} is {kind}, and a target is {ACCEPTED}")


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _unfit(value: object) -> str:
    """Return why a value that could be called as an app cannot be a target; empty: there is no reason."""
    if isinstance(value, WeightedCallee):
        return "a split, which answers no requests: name an app with a route that depends on it, or one of its members"
    if isinstance(value, APIRouter):
        return "an APIRouter: include it in a FastAPI app, and name that"
    if hasattr(value, "bind") and (isinstance(value, type) or not callable(value)):
        name = getattr(value, "__name__", "Writer")
        return f"a deployment without arguments: bind it, as in bound = {name}.bind(...), and name what that gives"
    if isinstance(value, type) and not hasattr(value, "__await__"):
        return f"the class {value.__name__}: name an object of it, or a function that makes one"
    return ""


def _made(factory: Callable[[], Any], where: str) -> Any:
    if inspect.iscoroutinefunction(factory):
        raise TargetError(f"{where} is an async function without parameters, and a factory has to be a `def` function")
    try:
        with reported_if_slow(f"the factory {where}"):
            return factory()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise fails(f"the factory {where} fails", error) from error


def is_function(value: object) -> bool:
    """Return whether the value is a function, or a `functools.partial` of one."""
    return inspect.isroutine(value) or (isinstance(value, partial) and inspect.isroutine(value.func))


def _required(function: Any) -> int | None:
    """Return the number of required arguments; None: not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(parameter.default is parameter.empty and parameter.kind not in _ANY_NUMBER for parameter in parameters)


def _takes(value: Callable[..., Any], count: int) -> bool:
    """Return whether the value can be called with `count` arguments. False if it accepts any number of arguments."""
    try:
        signature = inspect.signature(value)
        signature.bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a callable implemented in C may have no signature
        return True
    return any(parameter.kind not in _ANY_NUMBER for parameter in signature.parameters.values())


def _refuse_deployments_inside(app: object, where: str) -> None:
    """Raise `PlanningError` if the app contains a FastAPI app with deployments.

    An app that is not FastAPI is one ingress, so a FastAPI app inside can have no deployments of its own.
    """
    for _ in range(MOST_WRAPPERS):
        around = getattr(app, "__dict__", {})
        inner = next((value for value in around.values() if isinstance(value, FastAPI)), None)
        if inner is not None:
            names = [callee.name for callee in find(inner)] + [*getattr(inner, "ingresses", ())][1:]
            if names:
                raise PlanningError(
                    f"{where} is {_kind(app)} around a FastAPI app with deployments ({', '.join(names)}), "
                    "and an app that is not FastAPI is one ingress: mount it in the FastAPI app, and name that one"
                )
            return
        app = around.get("app")
        if app is None:
            return
