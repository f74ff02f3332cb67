"""Embeddings by all-MiniLM-L6-v2.

app-toolkit run examples/embeddings/app.py
app-toolkit dev examples/embeddings/app.py
"""

from app_toolkit import Toolkit
from embeddings.embedder import Embedder, Encoder
from embeddings.routes import routes


def minilm() -> Encoder:
    from embeddings.minilm import MiniLM  # here: an ingress imports this file, too, and computes nothing

    return MiniLM()


embedder = Embedder.bind(minilm)

app = Toolkit(title="Embeddings", summary="Sentences as vectors, batched over concurrent requests.")
app.include_router(routes(embedder))
