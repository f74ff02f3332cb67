"""`openai_router`: chat models and embeddings behind the API of OpenAI."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from app_toolkit import Bound, ChatError, ConfigError, on_disconnect
from app_toolkit.chat.catalog import Catalog, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.conversations import ConversationStore
from app_toolkit.chat.embeddings import Embedders, EmbedSource, embedders_parameter
from app_toolkit.chat.failures import InvalidParameter, add_fallback
from app_toolkit.chat.filed_conversations import filed
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.live_response import CLIENT_GONE, SSE, LiveResponse, document_response
from app_toolkit.chat.openai.completion import EXPRESSED, Completion, TextCompletion
from app_toolkit.chat.openai.conversations import add_conversations, conversations_parameter
from app_toolkit.chat.openai.embeddings import embeddings_response
from app_toolkit.chat.openai.errors import OpenAIRoute, error_response
from app_toolkit.chat.openai.files import add_files
from app_toolkit.chat.openai.responses import ResponseOptions, add_responses
from app_toolkit.chat.openai.wire import (
    ChatCompletion,
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingList,
    EmbeddingRequest,
    OpenAIErrorDocument,
    ServedModel,
    ServedModels,
    TextCompletionDocument,
    chat_request,
    prompt_requests,
)
from app_toolkit.chat.requests import MAX_BODY_SIZE, RequestChecks, checked
from app_toolkit.streaming import StreamLog, until_disconnect, without_permit

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": OpenAIErrorDocument, "description": "The request cannot be served."},
    "5XX": {"model": OpenAIErrorDocument, "description": "The server cannot serve the request now."},
}

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion; with `stream`, its chunks as server-sent events, and `[DONE]`.",
        "content": {SSE: {"schema": {"type": "string"}}},
    }
}


def openai_router(
    models: Source | Mapping[str, Source],
    *,
    embeddings: Mapping[str, EmbedSource] | None = None,
    max_choices: int = 8,
    log: "StreamLog | Bound[Any] | None" = None,
    conversations: ConversationStore | None = None,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    linger_s: float = 60.0,
    max_duration_s: float = 3_600.0,
    origins: Sequence[str] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> APIRouter:
    """Return a router with the API of OpenAI, for its SDKs and for front ends such as Open WebUI and LibreChat.

    ```python
    app.include_router(openai_router({"my-model": Model.bind()}), prefix="/v1")
    ```

    Its routes are `GET /models`, `GET /models/{model}`, `POST /chat/completions`, `POST /completions`,
    `POST /embeddings`, and those of the Responses API: `POST /responses`, `GET /responses/{id}`,
    `GET /responses/{id}/input_items`, `POST /responses/{id}/cancel`, `DELETE /responses/{id}`, and
    `POST /responses/input_tokens`. With `conversations`, it also has `/conversations`, and a response of the Responses
    API can belong to a conversation. With `files`, it also has `/files`, and messages can have a `file_id`.

    Errors of these routes have OpenAI's format. If the router has a prefix, so have those of paths below it that no
    route of the app serves. An exception before the first event of a model is a response with its
    status; a later one ends the stream with an event that has the error. A stream without an event for 15 s begins with
    a comment, so that proxies keep the connection; from then on, errors are events. When the client disconnects, or one
    choice fails, the generators of all choices are closed. A response of the Responses API that is stored, which is the
    default of `store`, outlives its client.

    The router checks no API key: pass `dependencies=[...]` to `include_router`.

    Parameters:
        models: Chat models by name: what `bind` returns, objects with a method `chat`, or async generator functions. A
            single model has the name `default`.
        embeddings: Models of embeddings by name: async functions that return one vector, or `Embedding`, for each text
            of a list, `@batch` functions, or objects or bound deployments with such a method `embed`. Default: none.
        max_choices: Limit of `n`, the number of responses to one request. Default: 8.
        log: Where stored responses are kept, as of `resumable`. Default: that of the application.
        conversations: Where conversations are stored, as of `ai_sdk_router`. Default: nowhere.
        files: Where files are stored. Messages may name those of the user. Default: nowhere.
        user: A dependency that returns the id of the user whose conversations and files a client sees. Default: the
            name of the API key that `api_keys` has checked; without keys, all clients are one user.
        linger_s: Seconds without a client after which the model of a stored response is stopped. A response in the
            background needs no client. Default: 60.
        max_duration_s: Seconds after which the model of a response of the Responses API is stopped. Default: 3600.
        origins: Origins whose pages may send requests with cookies, as of `ai_sdk_router`. Default: none.
        max_body_size: Bytes of a request's body. Default: 16 MiB.

    Raises:
        ConfigError: There is no model, one is of none of the kinds, or a number is out of bounds.
    """
    if max_choices < 1:
        raise ConfigError(f"openai_router: max_choices = {max_choices!r}: must be at least 1")
    for name, value in (("linger_s", linger_s), ("max_duration_s", max_duration_s)):
        if not 0 < value <= 86_400:
            raise ConfigError(f"openai_router: {name} = {value!r}: must be above 0 and at most 86,400")
    checks = RequestChecks.of("openai_router", origins, max_body_size)
    router = APIRouter(route_class=checked(OpenAIRoute, checks), responses=ERRORS)
    catalog_of, embedders_of = (
        catalog_parameter(models, files, user),
        embedders_parameter(embeddings or {}),
    )
    _add_models(router, catalog_of, embedders_of)
    _add_completions(router, catalog_of, max_choices)
    conversations_of = conversations_parameter(filed(conversations, files), user)
    add_responses(router, catalog_of, conversations_of, ResponseOptions(log, linger_s, max_duration_s))
    if conversations is not None:
        add_conversations(router, conversations_of)
    if files is not None:
        add_files(router, files, user, checks.origins)
    _add_embeddings(router, embedders_of, in_schema=bool(embeddings))
    add_fallback(router, error_response)
    return router


def _add_models(router: APIRouter, catalog_of: Any, embedders_of: Any) -> None:
    created = int(time.time())

    @router.get("/models")
    @without_permit
    async def list_models(catalog: catalog_of, embedders: embedders_of) -> ServedModels:
        names = dict.fromkeys([*cast(Catalog, catalog).names, *cast(Embedders, embedders).names])
        return ServedModels(data=[ServedModel(id=name, created=created) for name in names])

    # Names of models may have slashes.
    @router.get("/models/{model:path}")
    @without_permit
    async def get_model(model: str, catalog: catalog_of, embedders: embedders_of) -> ServedModel:
        if model not in {*cast(Catalog, catalog).names, *cast(Embedders, embedders).names}:
            raise ChatError(f"the model {model!r} does not exist", status=404, code="model_not_found")
        return ServedModel(id=model, created=created)


def _add_completions(router: APIRouter, catalog_of: Any, max_choices: int) -> None:
    @router.post("/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    @on_disconnect("cancel")
    async def create_chat_completion(body: ChatCompletionRequest, request: Request, catalog: catalog_of) -> Any:
        choices = body.n or 1
        if choices > max_choices:
            raise InvalidParameter(f"n is {choices}: it must be at most {max_choices}", "n")
        completion = Completion(cast(Catalog, catalog).find(body.model, EXPRESSED), chat_request(body), choices)
        if body.stream:
            include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return LiveResponse(partial(completion.send_stream, include_usage))
        return await _whole(request, completion)

    @router.post("/completions", response_model=TextCompletionDocument, responses=STREAMED)
    @on_disconnect("cancel")
    async def create_completion(body: CompletionRequest, request: Request, catalog: catalog_of) -> Any:
        requests, choices = prompt_requests(body), body.n or 1
        if (total := len(requests) * choices) > max_choices:
            many = f"prompt and n ask for {total} choices: they must be at most {max_choices}"
            raise InvalidParameter(many, "n" if choices > 1 else "prompt")
        model = cast(Catalog, catalog).find(body.model)
        completion = TextCompletion(model, requests, choices, echo=bool(body.echo))
        if body.stream:
            include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return LiveResponse(partial(completion.send_stream, include_usage))
        return await _whole(request, completion)


async def _whole(request: Request, completion: Completion) -> Response:
    """Return a completion that is not streamed, unless the client disconnects."""
    document = await until_disconnect(request.receive, completion.document())
    return Response(status_code=CLIENT_GONE) if document is None else document_response(document)


def _add_embeddings(router: APIRouter, embedders_of: Any, in_schema: bool) -> None:
    @router.post("/embeddings", response_model=EmbeddingList, include_in_schema=in_schema)
    @on_disconnect("cancel")
    async def create_embeddings(body: EmbeddingRequest, request: Request, embedders: embedders_of) -> Any:
        response = await until_disconnect(request.receive, embeddings_response(cast(Embedders, embedders), body))
        return response or Response(status_code=CLIENT_GONE)
