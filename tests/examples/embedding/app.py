"""The routes and the deployment of the example; texts become vectors by their words alone."""

import sys
import time
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[3] / "examples"))

from embeddings.embedder import Embedder
from embeddings.routes import routes

from app_toolkit import Toolkit
from tests.engines.contract.ground import AGAIN_S, Ground
from tests.patience import PATIENCE_S

HOLD = "hold "
WIDTH = 512


class Words:
    """Who has more words in common is nearer. `hold FOLDER` keeps the thread until that ground's gate is open, and from
    then on batches are noted there.
    """

    def __init__(self) -> None:
        self.ground: Ground | None = None

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        if self.ground is not None:
            self.ground.note(f"{len(texts)} texts")
        for text in texts:
            if text.startswith(HOLD):
                self.hold(Ground(Path(text.removeprefix(HOLD))))
        vectors = np.zeros((len(texts), WIDTH), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in text.lower().strip(".").split():
                vector[crc32(word.encode()) % WIDTH] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def hold(self, ground: Ground) -> None:
        self.ground = ground
        ground.note("held")
        deadline = time.monotonic() + PATIENCE_S
        while not (ground.folder / "hold is open").exists() and time.monotonic() < deadline:
            time.sleep(AGAIN_S)


embedder = Embedder.options(resources={"num_cpus": 0.1}).bind(Words)

app = Toolkit(title="Words")
app.include_router(routes(embedder))
