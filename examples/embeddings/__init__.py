"""Sentence embeddings, batched over the requests that come at about the same time."""
