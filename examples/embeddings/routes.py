"""What clients may ask."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from app_toolkit import remote
from embeddings.embedder import Embedder, Hit

Text = Annotated[str, Field(min_length=1, max_length=2_000)]


class Texts(BaseModel):
    texts: Annotated[list[Text], Field(min_length=1, max_length=32)]


class Vectors(BaseModel):
    vectors: list[list[float]]
    """One for each text, of length 1."""


class Pair(BaseModel):
    first: Text
    second: Text


class Similarity(BaseModel):
    score: float
    """From -1 to 1."""


class Query(BaseModel):
    text: Text
    count: Annotated[int, Field(ge=1, le=20)] = 5


def routes(embedder: Callable[[], Awaitable[Embedder]]) -> APIRouter:
    """`embedder`: the bound deployment that they call."""
    router = APIRouter(tags=["embeddings"])
    Model = Annotated[Embedder, Depends(embedder)]

    @router.post("/embed")
    async def embed(body: Texts, model: Model) -> Vectors:
        # All of them are under way before the first is awaited.
        calls = [remote(model.embed, text) for text in body.texts]
        return Vectors(vectors=[(await call).tolist() for call in calls])

    @router.post("/similarity")
    async def similarity(body: Pair, model: Model) -> Similarity:
        first, second = remote(model.embed, body.first), remote(model.embed, body.second)
        return Similarity(score=float((await first) @ (await second)))

    @router.post("/search")
    async def search(body: Query, model: Model) -> list[Hit]:
        return await model.search(body.text, body.count)

    return router
