"""`ollama_router`: chat models behind the API of Ollama."""

import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from starlette.types import Receive

from app_toolkit import ChatError, on_disconnect
from app_toolkit.chat.catalog import Catalog, CheckedModel, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.embeddings import Embedders, EmbedSource, embedders_parameter
from app_toolkit.chat.events import with_known_runners
from app_toolkit.chat.failures import Failure, FormattedRoute, add_fallback
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.live_response import (
    CLIENT_GONE,
    LiveResponse,
    document_response,
    json_line,
    streamed,
    translated,
)
from app_toolkit.chat.ollama.chunks import Chunks, Delta, chat_delta, text_delta, whole
from app_toolkit.chat.ollama.wire import (
    LATEST,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    OllamaChunk,
    OllamaError,
    OllamaRequest,
    ShowRequest,
    chat_request,
    text_request,
)
from app_toolkit.chat.protocol import ChatRequest
from app_toolkit.chat.requests import MAX_BODY_SIZE, RequestChecks, checked
from app_toolkit.streaming import until_disconnect, without_permit

VERSION = "0.12.0"
"""The version of Ollama whose API this is. Clients leave out what an older one lacks."""

NDJSON = "application/x-ndjson"

HEADERS = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": OllamaError, "description": "The request cannot be served."},
    "5XX": {"model": OllamaError, "description": "The server cannot serve the request now."},
}

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One JSON document in each line; with `stream` false, one document.",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    }
}

DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
"""What Ollama knows about the file of a model. A model of an app has none."""

NEVER = "9999-12-31T23:59:59Z"
"""When a loaded model is unloaded."""

COMPLETION = ["completion", "tools", "vision", "thinking"]
"""What clients may ask of a chat model. Whether it can do that is its own matter."""


class OllamaRoute(FormattedRoute):
    """A route whose errors have Ollama's format."""

    @staticmethod
    def respond(failure: Failure) -> Response:
        return document_response(error_document(failure), failure.status, failure.all_headers)


def error_document(failure: Failure) -> dict[str, str]:
    """Return the body of a response, or the last line of a stream."""
    message = failure.message
    return {"error": f"{failure.param}: {message}" if failure.param and failure.param not in message else message}


def ollama_router(
    models: Source | Mapping[str, Source],
    *,
    embeddings: Mapping[str, EmbedSource] | None = None,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> APIRouter:
    """Return a router with the API of Ollama, for clients that speak nothing else.

    ```python
    app.include_router(ollama_router({"my-model": Model.bind()}), prefix="/ollama")
    ```

    Clients get `http://HOST:PORT/ollama` as the address of the server. The routes are `POST /api/chat`,
    `POST /api/generate`, `POST /api/embed`, `POST /api/embeddings`, `POST /api/show`, `GET /api/tags`, `GET /api/ps`
    and `GET /api/version`. Without a prefix, `/api/chat` would be the path that `ai_sdk_router` often has.

    Errors have Ollama's format. An exception before the first event of a model is a response with its status; a later
    one is the last line of the stream. When the client disconnects, the generator of the model is closed.

    The router checks no API key: pass `dependencies=[...]` to `include_router`.

    Parameters:
        models: Chat models by name: what `bind` returns, objects with a method `chat`, or async generator functions. A
            single model has the name `default`.
        embeddings: Models of embeddings by name, as of `openai_router`. Default: none.
        files: The files that messages may name by their addresses. Default: none.
        user: A dependency that returns the id of the user whose files a client may name. Default: the name of the API
            key that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may send requests with cookies, as of `ai_sdk_router`. Default: none.
        max_body_size: Bytes of a request's body. Default: 16 MiB.

    Raises:
        ConfigError: There is no model, one is of none of the kinds, or a number is out of bounds.
    """
    checks = RequestChecks.of("ollama_router", origins, max_body_size)
    router = APIRouter(prefix="/api", route_class=checked(OllamaRoute, checks), responses=ERRORS)
    catalog_of, embedders_of = (
        catalog_parameter(models, files, user),
        embedders_parameter(embeddings or {}),
    )
    _add_responses(router, catalog_of)
    _add_embeddings(router, embedders_of)
    _add_models(router, catalog_of, embedders_of)
    add_fallback(router, OllamaRoute.respond)
    return router


def _add_responses(router: APIRouter, catalog_of: Any) -> None:
    @router.post("/chat", response_model=OllamaChunk, responses=STREAMED)
    @on_disconnect("cancel")
    async def create_ollama_chat(body: OllamaChatRequest, request: Request, catalog: catalog_of) -> Any:
        if not body.messages:
            return _loaded(body, chat_delta, catalog)
        return await _response(body, chat_request(body), chat_delta, catalog, request.receive)

    @router.post("/generate", response_model=OllamaChunk, responses=STREAMED)
    @on_disconnect("cancel")
    async def generate_ollama_text(body: GenerateRequest, request: Request, catalog: catalog_of) -> Any:
        if not (body.prompt or body.images):
            return _loaded(body, text_delta, catalog)
        return await _response(body, text_request(body), text_delta, catalog, request.receive)


def _loaded(body: OllamaRequest, delta: Delta, catalog: Catalog) -> Response:
    """Return the response to a request that only loads or unloads a model, which has no effect here."""
    name = known_name(body.model, catalog.names)
    catalog.find(name)
    reason = "unload" if body.keep_alive in (0, "0", "0s", "0m") else "load"
    chunk = Chunks(body.model, delta, time.monotonic_ns, thinks=False).head()
    return document_response({**chunk, "done": True, "done_reason": reason})


async def _response(
    body: OllamaRequest, asked: ChatRequest, delta: Delta, catalog: Catalog, receive: Receive
) -> Response:
    """Return the response to a request. Raises what the model raises before its first event."""
    name = known_name(body.model, catalog.names)
    chunks = Chunks(body.model, delta, time.monotonic_ns, thinks=body.think is not False)
    response = OllamaResponse(catalog.find(name), replace(asked, model=name), chunks)
    if body.stream is not False:
        return response.stream()
    document = await until_disconnect(receive, response.document())
    return Response(status_code=CLIENT_GONE) if document is None else document_response(document)


def _add_embeddings(router: APIRouter, embedders_of: Any) -> None:
    @router.post("/embed")
    @on_disconnect("cancel")
    async def embed_ollama_texts(body: EmbedRequest, embedders: embedders_of) -> Any:
        began = time.monotonic_ns()
        texts = [body.input] if isinstance(body.input, str) else body.input
        found = cast(Embedders, embedders)
        vectors, tokens = await found.vectors(known_name(body.model, found.names), texts, body.dimensions)
        return document_response(
            {
                "model": body.model,
                "embeddings": vectors,
                "total_duration": time.monotonic_ns() - began,
                "load_duration": 0,
                "prompt_eval_count": tokens,
            }
        )

    @router.post("/embeddings")
    @on_disconnect("cancel")
    async def embed_ollama_prompt(body: EmbeddingsRequest, embedders: embedders_of) -> Any:
        found = cast(Embedders, embedders)
        vectors, _ = await found.vectors(known_name(body.model, found.names), [body.prompt])
        return document_response({"embedding": vectors[0]})


def _add_models(router: APIRouter, catalog_of: Any, embedders_of: Any) -> None:
    modified = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    def described(name: str) -> dict[str, Any]:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return {"name": name, "model": name, "modified_at": modified, "size": 0, "digest": digest, "details": DETAILS}

    @router.get("/tags")
    @without_permit
    async def list_ollama_models(catalog: catalog_of, embedders: embedders_of) -> Any:
        return {"models": [described(name) for name in dict.fromkeys([*catalog.names, *embedders.names])]}

    @router.get("/ps")
    @without_permit
    async def list_loaded_ollama_models(catalog: catalog_of, embedders: embedders_of) -> Any:
        loaded = {"size_vram": 0, "expires_at": NEVER}
        return {"models": [described(name) | loaded for name in dict.fromkeys([*catalog.names, *embedders.names])]}

    @router.post("/show")
    @without_permit
    async def show_ollama_model(body: ShowRequest, catalog: catalog_of, embedders: embedders_of) -> Any:
        name = known_name(body.model or body.name, [*catalog.names, *embedders.names])
        if name not in catalog.names and name not in embedders.names:
            raise ChatError(f"the model {name!r} does not exist", status=404, code="model_not_found")
        capabilities = [*COMPLETION] if name in catalog.names else []
        if name in embedders.names:
            capabilities.append("embedding")
        return {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "modified_at": modified,
            "details": DETAILS,
            "model_info": {"general.architecture": "app_toolkit"},
            "capabilities": [
                *(COMPLETION if name in catalog.names else ()),
                *(("embedding",) * (name in embedders.names)),
            ],
        }

    @router.get("/version")
    @without_permit
    async def get_ollama_version() -> Any:
        return {"version": VERSION}


def known_name(name: str, names: Collection[str]) -> str:
    """Return the name of a model without the tag `latest`, unless there is one with it."""
    return name if name in names else name.removesuffix(LATEST)


class OllamaResponse:
    """The response to one request, streamed or as one document."""

    def __init__(self, model: CheckedModel, request: ChatRequest, chunks: Chunks) -> None:
        """Call no model yet."""
        self._model = model
        self._request = request
        self._chunks = chunks

    async def document(self) -> dict[str, Any]:
        """Return the response as one document. Raises what the model raises."""
        async with aclosing(self._translated()) as documents:
            return whole([chunk async for chunks in documents for chunk in chunks])

    def stream(self) -> LiveResponse:
        """Return the response as a stream of lines."""
        return streamed(
            self._translated,
            _line,
            lambda failure: _line(error_document(failure)),
            OllamaRoute.respond,
            heartbeat=_line(self._chunks.head()),
            headers=HEADERS,
        )

    def _translated(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Return the lines of the stream, those of one event of the model at a time."""
        return translated(with_known_runners(self._model(self._request)), self._chunks.translate)


def _line(document: Mapping[str, Any]) -> bytes:
    return b"%b\n" % json_line(document)
