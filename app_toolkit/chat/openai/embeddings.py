"""The functions that compute embeddings, by name, and their vectors in the formats of OpenAI's API."""

import array
import asyncio
import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from fastapi import Response

from app_toolkit.chat.catalog import sources_parameter
from app_toolkit.chat.openai.stream import document_response
from app_toolkit.chat.openai.wire import EmbeddingRequest, InvalidParameter
from app_toolkit.chat.protocol import Embed, Embedding
from app_toolkit.core.batch import is_batched
from app_toolkit.deployment import Bound
from app_toolkit.errors import ChatError, ConfigError
from app_toolkit.router.handle import call_many

EmbedSource = Embed | Callable[..., Any] | Bound[Any]
"""An async function over texts, a `@batch` function or method, or an object or bound deployment with `embed`."""

MAX_INLINE_VECTORS = 16
"""The maximum number of vectors that are encoded on the event loop. More are encoded in a thread."""


class Embedder:
    """One model of embeddings."""

    def __init__(self, function: Callable[..., Any], batched: bool) -> None:
        """`batched`: the function takes one text, because `@batch` collects its calls."""
        self._function = function
        self._batched = batched

    async def embed(self, texts: list[str]) -> Sequence[Any]:
        """Return one vector, or `Embedding`, for each text. Raises what the function raises."""
        if self._batched:
            return await call_many(self._function, texts)
        vectors: Sequence[Any] = await self._function(texts)
        if len(vectors) != len(texts):
            raise ValueError(f"the function returned {len(vectors)} vectors for {len(texts)} texts")
        return vectors


class Embedders:
    """Models of embeddings by name: the value that the dependency of a route injects."""

    def __init__(self, functions: Mapping[str, Embedder]) -> None:
        self._functions = functions

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    def find(self, name: str) -> Embedder:
        """Return a model. Raises `ChatError` 404 if there is none with this name."""
        if name not in self._functions:
            there = f"; there are {', '.join(self.names)}" if self._functions else ""
            message = f"the model {name!r} does not exist or computes no embeddings{there}"
            raise ChatError(message, status=404, code="model_not_found")
        return self._functions[name]


def embedders_parameter(sources: Mapping[str, EmbedSource]) -> Any:
    """Return the annotation of a route's parameter that injects these models.

    The planner finds the bound deployments in this annotation.

    Raises:
        ConfigError: A model is of none of the kinds.
    """
    batched = {name: _is_batched(name, source) for name, source in sources.items()}

    def embedders(found: Mapping[str, Any]) -> Embedders:
        return Embedders({name: Embedder(_function(source), batched[name]) for name, source in found.items()})

    return sources_parameter(sources, embedders)


def _function(source: Any) -> Callable[..., Any]:
    # A batch function has no attribute `embed`, and a handle only those that its class has.
    return cast(Callable[..., Any], getattr(source, "embed", source))


def _is_batched(name: str, source: Any) -> bool:
    function = getattr(source.cls, "embed", None) if isinstance(source, Bound) else _function(source)
    if not callable(function):
        raise ConfigError(
            f"the embeddings {name!r} are {source!r}: pass an async function, or what bind() returns for a class with "
            "a method embed"
        )
    return is_batched(function)


async def embeddings_response(embedder: Embedder, request: EmbeddingRequest) -> Response:
    """Return the vectors of a request, in the format that it asks for.

    Raises:
        InvalidParameter: The request has no texts, or the vectors have another length than it asks for.
    """
    found = await embedder.embed(request.texts())
    vectors = [each.vector if isinstance(each, Embedding) else each for each in found]
    tokens = sum(each.tokens for each in found if isinstance(each, Embedding))
    if request.dimensions is not None and any(len(each) != request.dimensions for each in vectors):
        raise InvalidParameter(f"the model computes vectors of {len(vectors[0])} dimensions only", "dimensions")
    if len(vectors) <= MAX_INLINE_VECTORS:
        return _response(vectors, tokens, request)
    return await asyncio.to_thread(_response, vectors, tokens, request)


def _response(vectors: Sequence[Any], tokens: int, request: EmbeddingRequest) -> Response:
    encode: Callable[[Any], Any] = _in_base64 if request.encoding_format == "base64" else _numbers
    data = [{"object": "embedding", "index": number, "embedding": encode(each)} for number, each in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return document_response({"object": "list", "data": data, "model": request.model, "usage": usage})


def _numbers(vector: Any) -> list[float]:
    return list(map(float, vector))


def _in_base64(vector: Any) -> str:
    """Return the vector as OpenAI's SDK asks for it: 32-bit floats, little-endian, in base64."""
    floats = array.array("f", map(float, vector))
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
