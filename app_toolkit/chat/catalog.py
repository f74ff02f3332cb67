"""The models that a chat router serves, by name."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Protocol, cast

from fastapi import Depends

from app_toolkit import Bound, ChatError, ConfigError
from app_toolkit.chat.chain import Source, counter_of, deployments_in, function_of
from app_toolkit.chat.continued import ContinuedChain
from app_toolkit.chat.events import EventChecker, checked, until_stop
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.protocol import ChatEvent, ChatFunction, ChatRequest, OptionalEvent
from app_toolkit.chat.usage import Meter
from app_toolkit.chat.user_files import UserFiles, files_parameter

CountTokens = Callable[[ChatRequest], Awaitable[int]]


class CheckedModel(Protocol):
    """A model whose events are as `EventChecker` describes them, and whose text ends at `stop`."""

    def __call__(
        self, request: ChatRequest, *, known_calls: Iterable[str] = (), used_ids: Iterable[str] = ()
    ) -> AsyncIterator[ChatEvent]:
        """Call the model.

        Parameters:
            request: The request.
            known_calls: The ids of earlier calls without a result, which the model may yield. Default: none.
            used_ids: The ids of earlier calls that are not in the messages of the request. Default: none.
        """


class Catalog:
    """Models by name, as a dependency of a route finds them."""

    def __init__(
        self,
        functions: Mapping[str, ChatFunction],
        counters: Mapping[str, CountTokens],
        files: UserFiles | None = None,
        continued: Collection[str] = (),
    ) -> None:
        """Name the models.

        Parameters:
            functions: The models.
            counters: The functions that count the tokens of a prompt, of those models that have one.
            files: The files that requests name. Default: none.
            continued: The names of the models that can continue a response. Default: none.
        """
        self._continued = continued
        self._functions = functions
        self._counters = counters
        self._files = files or UserFiles()

    @property
    def names(self) -> list[str]:
        """The names of the models, the first one is the default."""
        return list(self._functions)

    def can_continue(self, name: str | None) -> bool:
        """Return whether a model can continue a response, because it is what `continued` returns.

        Raises:
            ChatError: 404, there is no such model.
        """
        return self._name(name) in self._continued

    def find(self, name: str | None, expressed: Collection[type[OptionalEvent]] = ()) -> CheckedModel:
        """Return a model; None or an empty name: the default model.

        Parameters:
            name: The name of the model.
            expressed: The types of `OptionalEvent` that the protocol of the router expresses. The model's events of
                the other ones are left out. Default: none.

        Raises:
            ChatError: 404, there is no such model.
        """
        name = self._name(name)
        function = self._functions[name]

        def call(
            request: ChatRequest, *, known_calls: Iterable[str] = (), used_ids: Iterable[str] = ()
        ) -> AsyncIterator[ChatEvent]:
            used = {*used_ids, *(call.id for message in request.messages for call in message.tool_calls)}
            if request.approved_calls:  # a client may send one twice, which must run once
                approved = {call.id: call for call in request.approved_calls}
                request = replace(request, approved_calls=tuple(approved.values()))
            call_ids = {*known_calls, *(call.id for call in request.approved_calls)}
            checker = EventChecker(name, used, call_ids, expressed)
            events = checked(self._files.called(function, request), checker, meter=Meter(name))
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
        counter = self._counters[name]

        async def count(request: ChatRequest) -> int:
            return await counter(await self._files.resolved(request))

        return count

    async def resolved(self, request: ChatRequest) -> ChatRequest:
        """Return a request whose attachments have the ids of the files that they name. Raises `ChatError` 404."""
        return await self._files.resolved(request)

    def with_files(self, files: UserFiles) -> "Catalog":
        """Return the same models, which get the files that requests name."""
        return Catalog(self._functions, self._counters, files, self._continued)

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


def catalog_parameter(
    models: Source | Mapping[str, Source], files: FileStore | None = None, user: Callable[..., Any] | None = None
) -> Any:
    """Return the annotation of a route's parameter that is the catalog of these models.

    Bound deployments become dependencies of the route, so that the planner finds them. A single model has the name
    `default`.

    Parameters:
        models: The models.
        files: The files that requests may name. Default: none.
        user: A dependency that returns the id of the user whose files they are. Default: the name of the
            API key that `api_keys` has checked; without keys, all clients are one user.

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
        counters = {name: counter_of(source) for name, source in sources.items()}
        return Catalog(
            {name: function_of(source, name) for name, source in sources.items()},
            {name: counter for name, counter in counters.items() if counter is not None},
            continued=frozenset(name for name, source in sources.items() if isinstance(source, ContinuedChain)),
        )

    parameter = sources_parameter(named, catalog)

    async def with_files(catalog: parameter, user_files: files_parameter(files, user)) -> Catalog:  # type: ignore[valid-type]
        return cast(Catalog, catalog).with_files(user_files)

    return Annotated[Any, Depends(with_files)]


def sources_parameter(sources: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return the annotation of a route's parameter that is made from sources.

    Bound deployments, also those of chains, become dependencies of the route, so that the planner finds them. `make`
    gets the handles of the former.
    """
    parameters = {bound: f"source_{number}" for number, bound in enumerate(deployments_in(sources.values()))}

    async def made(**handles: Any) -> Any:
        return make(
            {
                name: handles[parameters[source]] if isinstance(source, Bound) else source
                for name, source in sources.items()
            }
        )

    cast(Any, made).__signature__ = inspect.Signature(
        [
            inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(bound)])
            for bound, parameter in parameters.items()
        ]
    )
    return Annotated[Any, Depends(made)]
