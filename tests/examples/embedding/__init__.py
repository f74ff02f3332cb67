"""The embeddings example over an encoder that needs nothing; the same under every engine."""
