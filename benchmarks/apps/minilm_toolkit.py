"""MiniLM on app_toolkit: an ingress, and the model in a separate process."""

from typing import Annotated, Any

from fastapi import Depends
from minilm import BATCH_SIZE, ONGOING, WAIT_S, TimedMiniLM
from pydantic import BaseModel

from app_toolkit import Deployment, Toolkit, batch


class Query(BaseModel):
    text: str


class Answer(BaseModel):
    vector: list[float]
    busy_s: float


class Embedder(Deployment, max_ongoing_requests=ONGOING):
    def __init__(self) -> None:
        self.model = TimedMiniLM()

    @batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=WAIT_S)
    def embed(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.model(texts)


embedder = Embedder.bind()

app = Toolkit()


@app.post("/embed", response_model=Answer)
async def embed(query: Query, model: Annotated[Embedder, Depends(embedder)]) -> dict[str, Any]:
    return await model.embed(query.text)
