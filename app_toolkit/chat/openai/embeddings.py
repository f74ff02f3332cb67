"""Vectors of texts in the formats of OpenAI's API."""

import array
import asyncio
import base64
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Response

from app_toolkit.chat.embeddings import Embedders
from app_toolkit.chat.live_response import document_response
from app_toolkit.chat.openai.wire import EmbeddingRequest

MAX_INLINE_VECTORS = 16
"""The maximum number of vectors that are encoded on the event loop. More are encoded in a thread."""


async def embeddings_response(embedders: Embedders, request: EmbeddingRequest) -> Response:
    """Return the vectors of a request, in the format that it asks for.

    Raises:
        ChatError: 404, there is no such model.
        InvalidParameter: The request has no texts, or the vectors have another length than it asks for.
    """
    vectors, tokens = await embedders.vectors(request.model, request.texts(), request.dimensions)
    if len(vectors) <= MAX_INLINE_VECTORS:
        return _response(vectors, tokens, request)
    return await asyncio.to_thread(_response, vectors, tokens, request)


def _response(vectors: Sequence[Any], tokens: int, request: EmbeddingRequest) -> Response:
    encode: Callable[[Any], Any] = _in_base64 if request.encoding_format == "base64" else _numbers
    data = [
        {"object": "embedding", "index": number, "embedding": encode(vector)} for number, vector in enumerate(vectors)
    ]
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
