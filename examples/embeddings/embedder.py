"""The model as a deployment: texts to vectors, and the sentences of the corpus that are nearest to a text."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from app_toolkit import Deployment, batch
from embeddings.corpus import SENTENCES

Vector = NDArray[np.float32]


class Encoder(Protocol):
    """A row of length 1 for each text, whose dot products are the texts' similarity."""

    def __call__(self, texts: list[str]) -> NDArray[np.float32]: ...


class Hit(BaseModel):
    sentence: str
    score: float
    """From -1 to 1."""


class Embedder(Deployment, max_ongoing_requests=256, resources={"num_cpus": 2}):
    """One model, on a thread of its own: while it works, the event loop takes the texts of the next batch."""

    def __init__(self, load: Callable[[], Encoder], sentences: Sequence[str] = SENTENCES) -> None:
        self.encode = load()
        self.sentences = sentences

    def start(self) -> None:
        self.corpus = self.encode(list(self.sentences))

    # Both limits were measured: README.md.
    @batch(max_batch_size=16, batch_wait_timeout_s=0.005)
    def embed(self, texts: list[str]) -> list[Vector]:
        return list(self.encode(texts))

    async def search(self, text: str, count: int) -> list[Hit]:
        """The nearest sentences, the nearest first. The text is embedded in one batch with those of other requests."""
        scores = self.corpus @ await self.embed(text)
        return [Hit(sentence=self.sentences[i], score=float(scores[i])) for i in np.argsort(-scores)[:count]]
