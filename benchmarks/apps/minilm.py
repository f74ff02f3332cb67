"""The model that every contender of `benchmarks.embeddings` serves, and how they batch it."""

import time
from typing import Any

from embeddings.minilm import MiniLM

BATCH_SIZE = 16
WAIT_S = 0.005
THREADS = 2
ONGOING = 256
"""Requests that are let in at a time, where a contender has a limit: more than there are clients."""


class TimedMiniLM:
    """Counts for how long it has computed. With each vector it says how long that was, all in all."""

    def __init__(self) -> None:
        self._model = MiniLM(THREADS)
        self._busy_s = 0.0

    def __call__(self, texts: list[str]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        vectors = self._model(texts)
        self._busy_s += time.perf_counter() - began
        return [{"vector": vector, "busy_s": self._busy_s} for vector in vectors.tolist()]
