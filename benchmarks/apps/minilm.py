"""The model that the contenders of `benchmarks.embeddings` serve, and their batching options."""

import time
from typing import Any

from embeddings.minilm import MiniLM

BATCH_SIZE = 16
WAIT_S = 0.005
THREADS = 2
ONGOING = 256
"""The limit of concurrent requests, for contenders that have one. It is higher than the number of clients."""


class TimedMiniLM:
    """Adds to each vector the total time that the model has computed so far."""

    def __init__(self) -> None:
        self._model = MiniLM(THREADS)
        self._busy_s = 0.0

    def __call__(self, texts: list[str]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        vectors = self._model(texts)
        self._busy_s += time.perf_counter() - began
        return [{"vector": vector, "busy_s": self._busy_s} for vector in vectors.tolist()]
