"""`ag_ui_router`: chat models behind the AG-UI protocol. It needs the extra `ag-ui`."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, cast

from fastapi import APIRouter, Response
from pydantic import BaseModel

from app_toolkit import on_disconnect
from app_toolkit.chat.ag_ui.events import EXPRESSED, RunEvents, WireEvent
from app_toolkit.chat.ag_ui.wire import Run, RunAgentInput, read_run
from app_toolkit.chat.catalog import Catalog, CheckedModel, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.failures import Failure, FormattedRoute
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.live_response import (
    SSE,
    LiveResponse,
    data,
    document_response,
    streamed,
    translated,
)
from app_toolkit.chat.requests import MAX_BODY_SIZE, RequestChecks, checked


class AgUiError(BaseModel):
    """The body of a response that is an error."""

    detail: str
    code: str | None = None


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The events of the run as server-sent events.",
        "content": {SSE: {"schema": {"type": "string"}}},
    },
    "4XX": {"model": AgUiError, "description": "The request cannot be served."},
    "5XX": {"model": AgUiError, "description": "The server cannot serve the request now."},
}


class AgUiRoute(FormattedRoute):
    """A route whose errors are JSON documents, which clients of AG-UI show."""

    @staticmethod
    def respond(failure: Failure) -> Response:
        document = {"detail": failure.message} | ({} if failure.code is None else {"code": failure.code})
        return document_response(document, failure.status, failure.all_headers)


def ag_ui_router(
    models: Source | Mapping[str, Source],
    *,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> APIRouter:
    """Return a router with the AG-UI protocol, for CopilotKit and `@ag-ui/client`. It needs the extra `ag-ui`.

    ```python
    app.include_router(ag_ui_router({"my-model": Model.bind()}), prefix="/ag-ui")
    ```

    Its routes are `POST /{model}`, which is the URL of one agent, and `POST` at the prefix for the first model. The
    router needs a prefix.

    An exception before the first event of a model is a response with its status; a later one is the event `RUN_ERROR`.
    When the client disconnects, the generator of the model is closed.

    The router checks no API key: pass `dependencies=[...]` to `include_router`.

    Parameters:
        models: Chat models by name: what `bind` returns, objects with a method `chat`, or async generator functions. A
            single model has the name `default`.
        files: The files that messages may name, as a source of the type `file` or by their addresses, which
            `files_router` serves. Default: none.
        user: A dependency that returns the id of the user whose files a client may name. Default: the name of the API
            key that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may send requests with cookies, as of `ai_sdk_router`. Default: none.
        max_body_size: Bytes of a request's body. Default: 16 MiB.

    Raises:
        ConfigError: There is no model, one is of none of the kinds, or a number is out of bounds.
    """
    checks = RequestChecks.of("ag_ui_router", origins, max_body_size)
    router = APIRouter(route_class=checked(AgUiRoute, checks))
    _add_runs(router, catalog_parameter(models, files, user))
    return router


def _add_runs(router: APIRouter, catalog_of: Any) -> None:
    @router.post("", response_class=Response, responses=RESPONSES)
    @on_disconnect("cancel")
    async def run_default_agent(body: RunAgentInput, catalog: catalog_of) -> Any:
        return _response(body, cast(Catalog, catalog), "")

    # Names of models may have slashes.
    @router.post("/{model:path}", response_class=Response, responses=RESPONSES)
    @on_disconnect("cancel")
    async def run_agent(model: str, body: RunAgentInput, catalog: catalog_of) -> Any:
        return _response(body, cast(Catalog, catalog), model)


def _response(body: RunAgentInput, catalog: Catalog, model: str) -> Response:
    name = model or catalog.names[0]
    return RunResponse(catalog.find(name, EXPRESSED), read_run(body, name)).stream()


class RunResponse:
    """The response to one request."""

    def __init__(self, model: CheckedModel, run: Run) -> None:
        """Call no model yet."""
        self._model = model
        self._request = run.request
        repeated = {call.id for call in run.request.approved_calls}
        self._events = RunEvents(run.started, run.request.model, repeated=repeated, denied=run.denied)

    def stream(self) -> LiveResponse:
        """Return the run as a stream of its events."""
        return streamed(
            self._translated,
            data,
            lambda failure: b"".join(map(data, self._events.fail(failure.message, failure.code))),
            AgUiRoute.respond,
        )

    def _translated(self) -> AsyncGenerator[list[WireEvent], None]:
        """Return the events of the run, those of one event of the model at a time."""
        return translated(self._model(self._request), self._events.translate)
