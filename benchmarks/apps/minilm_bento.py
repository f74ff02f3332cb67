"""MiniLM on BentoML, whose dispatcher determines how long a batch waits."""

from typing import Any

import bentoml
from minilm import BATCH_SIZE, TimedMiniLM


@bentoml.service(workers=1)
class Embedder:
    def __init__(self) -> None:
        self.model = TimedMiniLM()

    @bentoml.api(route="/embed", batchable=True, max_batch_size=BATCH_SIZE, max_latency_ms=60_000)
    def embed(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.model(texts)
