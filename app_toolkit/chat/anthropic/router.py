"""`anthropic_router`: chat models behind the Messages API of Anthropic."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import Headers

from app_toolkit import ChatError, on_disconnect
from app_toolkit.chat.anthropic.errors import (
    REQUEST_ID,
    AnthropicRoute,
    SharedPathRoute,
    error_document,
    error_response,
    response_id,
)
from app_toolkit.chat.anthropic.events import EXPRESSED, MessageEvents, Thinking, WholeMessage, WireEvent
from app_toolkit.chat.anthropic.files import add_files
from app_toolkit.chat.anthropic.wire import (
    MAX_MODELS,
    AnthropicErrorDocument,
    AnthropicModel,
    AnthropicModels,
    AnthropicThinking,
    CountTokensRequest,
    MessageDocument,
    MessageRequest,
    TokenCount,
    chat_request,
    page_of,
)
from app_toolkit.chat.catalog import Catalog, CheckedModel, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.events import with_known_runners
from app_toolkit.chat.failures import add_fallback
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.live_response import (
    CLIENT_GONE,
    HEADERS,
    SSE,
    LiveResponse,
    document_response,
    json_line,
    streamed,
    translated,
)
from app_toolkit.chat.protocol import ChatRequest
from app_toolkit.chat.requests import MAX_BODY_SIZE, RequestChecks, checked
from app_toolkit.streaming import until_disconnect, without_permit

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": AnthropicErrorDocument, "description": "The request cannot be served."},
    "5XX": {"model": AnthropicErrorDocument, "description": "The server cannot serve the request now."},
}

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The message; with `stream`, its events as server-sent events.",
        "content": {SSE: {"schema": {"type": "string"}}},
    }
}

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

MCP_BETA = "mcp-client-"
"""The beginning of the values of `anthropic-beta` with which a client understands calls that a server runs itself."""


def anthropic_router(
    models: Source | Mapping[str, Source],
    *,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> APIRouter:
    """Return a router with the Messages API of Anthropic, for its SDKs, Claude Code and LiteLLM.

    ```python
    app.include_router(anthropic_router({"my-model": Model.bind()}), prefix="/v1")
    ```

    Its routes are `POST /messages`, `POST /messages/count_tokens`, `GET /models` and `GET /models/{model}`; with
    `files`, also those of the Files API. An app can have this router and `openai_router` with the same prefix: requests
    with the header `anthropic-version` get the models and files in Anthropic's format.

    Errors of these routes have Anthropic's format, and a status 503 is 529. If the router has a prefix, so have those
    of paths below it that no route of the app serves. An exception before the first event of a model is a response with
    its status; a later one ends the stream with an event that has the error. A stream without an event for 15 s begins
    with the event `ping`; from then on, errors are events. When the client disconnects, the generator of the model is
    closed.

    The router checks no API key: pass `dependencies=[...]` to `include_router`. `api_keys` takes the key from
    `x-api-key`, too.

    Parameters:
        models: Chat models by name: what `bind` returns, objects with a method `chat`, or async generator functions. A
            single model has the name `default`.
        files: Where files are stored. Messages may name those of the user, as a source of the type `file`. Default:
            nowhere.
        user: A dependency that returns the id of the user whose files a client may name. Default: the name of the API
            key that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may send requests with cookies, as of `ai_sdk_router`. Default: none.
        max_body_size: Bytes of a request's body. Default: 16 MiB.

    Raises:
        ConfigError: There is no model, one is of none of the kinds, or a number is out of bounds.
    """
    checks = RequestChecks.of("anthropic_router", origins, max_body_size)
    router = APIRouter(route_class=checked(AnthropicRoute, checks), responses=ERRORS)
    catalog_of = catalog_parameter(models, files, user)
    _add_messages(router, catalog_of)
    _add_models(router, catalog_of, checks)
    if files is not None:
        add_files(router, files, user, checks)
    add_fallback(router, error_response)
    return router


def _add_messages(router: APIRouter, catalog_of: Any) -> None:
    @router.post("/messages", response_model=MessageDocument, responses=STREAMED)
    @on_disconnect("cancel")
    async def create_message(body: MessageRequest, request: Request, catalog: catalog_of) -> Any:
        response = MessageResponse(
            cast(Catalog, catalog).find(body.model, EXPRESSED),
            chat_request(body),
            _thinking(body.thinking),
            shows_executed=_understands_mcp(request.headers),
        )
        if body.stream:
            return response.stream()
        document = await until_disconnect(request.receive, response.document())
        if document is None:
            return Response(status_code=CLIENT_GONE)
        return document_response(document, headers={REQUEST_ID: response.request_id})

    @router.post("/messages/count_tokens")
    @on_disconnect("cancel")
    async def count_message_tokens(body: CountTokensRequest, response: Response, catalog: catalog_of) -> TokenCount:
        count = cast(Catalog, catalog).counter(body.model)
        response.headers[REQUEST_ID] = response_id()
        return TokenCount(input_tokens=await count(chat_request(body)))


def _add_models(router: APIRouter, catalog_of: Any, checks: RequestChecks) -> None:
    created = datetime.fromtimestamp(int(time.time()), UTC).isoformat().replace("+00:00", "Z")

    def served(name: str) -> AnthropicModel:
        return AnthropicModel(id=name, display_name=name, created_at=created)

    @without_permit
    async def list_message_models(
        catalog: catalog_of,
        limit: Annotated[int, Query(ge=1, le=MAX_MODELS)] = 20,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> AnthropicModels:
        names, has_more = page_of(cast(Catalog, catalog).names, limit, after_id, before_id)
        first, last = (names[0], names[-1]) if names else (None, None)
        return AnthropicModels(data=[served(name) for name in names], has_more=has_more, first_id=first, last_id=last)

    @without_permit
    async def get_message_model(model: str, catalog: catalog_of) -> AnthropicModel:
        if model not in cast(Catalog, catalog).names:
            raise ChatError(f"the model {model!r} does not exist", status=404, code="model_not_found")
        return served(model)

    route_class = checked(SharedPathRoute, checks)
    router.add_api_route("/models", list_message_models, methods=["GET"], route_class_override=route_class)
    # Names of models may have slashes.
    router.add_api_route("/models/{model:path}", get_message_model, methods=["GET"], route_class_override=route_class)


class MessageResponse:
    """The response to one request, streamed or as one document."""

    def __init__(self, model: CheckedModel, request: ChatRequest, thinking: Thinking, *, shows_executed: bool) -> None:
        """Call no model yet.

        Parameters:
            model: The model.
            request: What it gets.
            thinking: What the client gets of the reasoning.
            shows_executed: Whether the client gets the calls that the model runs itself.
        """
        self.request_id = response_id()
        self._model = model
        self._request = request
        self._events = MessageEvents(f"msg_{uuid.uuid4().hex}", request.model, thinking, shows_executed=shows_executed)

    async def document(self) -> dict[str, Any]:
        """Return the message as one document. Raises what the model raises."""
        whole = WholeMessage()
        async with aclosing(self._translated()) as documents:
            async for events in documents:
                for event in events:
                    whole.add(event)
        return whole.document()

    def stream(self) -> LiveResponse:
        """Return the message as a stream of its events."""
        return streamed(
            self._translated,
            _frame,
            lambda failure: _frame(error_document(failure, self.request_id)),
            lambda failure: error_response(failure, self.request_id),
            heartbeat=PING,
            headers=[*HEADERS, (REQUEST_ID.encode(), self.request_id.encode())],
        )

    def _translated(self) -> AsyncGenerator[list[WireEvent], None]:
        """Return the events of the stream, those of one event of the model at a time."""
        return translated(with_known_runners(self._model(self._request)), self._events.translate)


def _frame(event: WireEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json_line(event))


def _thinking(asked: AnthropicThinking | None) -> Thinking:
    if asked is None:
        return "shown"
    if asked.type == "disabled":
        return "left out"
    return "omitted" if asked.display == "omitted" else "shown"


def _understands_mcp(headers: Headers) -> bool:
    values = ",".join(headers.getlist("anthropic-beta")).split(",")
    return any(value.strip().startswith(MCP_BETA) for value in values)
