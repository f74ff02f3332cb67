"""The models that a chat router serves, by name."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Protocol, cast

from fastapi import Depends

from app_toolkit.chat.events import EventChecker, checked, until_stop
from app_toolkit.chat.protocol import ChatEvent, ChatFunction, ChatModel, ChatRequest
from app_toolkit.deployment import Bound
from app_toolkit.errors import ChatError, ConfigError
from app_toolkit.replica.objects.multiplexing import is_multiplexed
from app_toolkit.router.handle import Handle, deployment_of, options

CountTokens = Callable[[ChatRequest], Awaitable[int]]

Source = ChatModel | ChatFunction | Bound[Any]
"""A model: a bound deployment, an object with a method `chat`, or an async generator function."""


class CheckedModel(Protocol):
    """A model whose events are as `EventChecker` describes them, and whose text ends at `stop`."""

    def __call__(self, request: ChatRequest, *, known_calls: Iterable[str] = ()) -> AsyncIterator[ChatEvent]:
        """Call the model. `known_calls`: the ids of earlier calls without a result, which it may yield."""


class Catalog:
    """Models by name, as a dependency of a route finds them."""

    def __init__(self, functions: Mapping[str, ChatFunction], counters: Mapping[str, CountTokens]) -> None:
        """`counters`: the functions that count the tokens of a prompt, of those models that have one."""
        self._functions = functions
        self._counters = counters

    @property
    def names(self) -> list[str]:
        """The names of the models, the first one is the default."""
        return list(self._functions)

    def find(self, name: str | None) -> CheckedModel:
        """Return a model; None or an empty name: the default model.

        Raises:
            ChatError: 404, there is no such model.
        """
        name = self._name(name)
        function = self._functions[name]

        def call(request: ChatRequest, *, known_calls: Iterable[str] = ()) -> AsyncIterator[ChatEvent]:
            used = [call.id for message in request.messages for call in message.tool_calls]
            events = checked(function(request), EventChecker(name, used, known_calls))
            return until_stop(events, request.stop) if request.stop else events

        return call

    def counter(self, name: str | None) -> CountTokens:
        """Return the function that counts the tokens of a prompt for a model.

        Raises:
            ChatError: 404, there is no such model; 400, it has no method `count_tokens`.
        """
        name = self._name(name)
        if name not in self._counters:
            raise ChatError(f"the model {name!r} does not count tokens", code="count_tokens_not_supported")
        return self._counters[name]

    def _name(self, name: str | None) -> str:
        if not name:
            return next(iter(self._functions))
        if name not in self._functions:
            raise ChatError(
                f"the model {name!r} does not exist; there are {', '.join(self.names)}",
                status=404,
                code="model_not_found",
            )
        return name


def catalog_parameter(models: Source | Mapping[str, Source]) -> Any:
    """Return the annotation of a route's parameter that is the catalog of these models.

    Bound deployments become dependencies of the route, so that the planner finds them. A single model has the name
    `default`.

    Raises:
        ConfigError: There is no model, or one that is neither of the three kinds.
    """
    named = dict(models) if isinstance(models, Mapping) else {"default": models}
    if not named:
        raise ConfigError("a chat router needs at least one model")
    for name, source in named.items():
        if not isinstance(source, Bound) and not callable(getattr(source, "chat", source)):
            raise ConfigError(
                f"the model {name!r} is {source!r}: pass what bind() returns, an object with a method chat, or an "
                "async generator function"
            )

    def catalog(sources: Mapping[str, Any]) -> Catalog:
        # A handle has no attribute that its class does not have.
        counters = {name: getattr(source, "count_tokens", None) for name, source in sources.items()}
        return Catalog(
            {name: _function(source, name) for name, source in sources.items()},
            {name: counter for name, counter in counters.items() if counter is not None},
        )

    return sources_parameter(named, catalog)


def sources_parameter(sources: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return the annotation of a route's parameter that is made from sources.

    Bound deployments become dependencies of the route, so that the planner finds them. `make` gets their handles.
    """
    names = {f"source_{number}": name for number, name in enumerate(sources)}

    async def made(**handles: Any) -> Any:
        return make({**sources, **{names[parameter]: handle for parameter, handle in handles.items()}})

    cast(Any, made).__signature__ = inspect.Signature(
        [
            inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(source)])
            for parameter, name in names.items()
            if isinstance(source := sources[name], Bound)
        ]
    )
    return Annotated[Any, Depends(made)]


def _function(source: Any, name: str) -> ChatFunction:
    if isinstance(source, Handle) and is_multiplexed(deployment_of(source).cls):
        source = options(source, affinity=name)  # to the replica that has loaded this model
    # A handle has no attribute that its class does not have, so this works for handles, too.
    return cast(ChatFunction, source if inspect.isroutine(source) else source.chat)
