"""The functions that compute embeddings, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from app_toolkit import Bound, ChatError, ConfigError, call_many, is_batched
from app_toolkit.chat.catalog import sources_parameter
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.protocol import Embed, Embedding, UsageEvent
from app_toolkit.chat.usage import count_usage

EmbedSource = Embed | Callable[..., Any] | Bound[Any]
"""An async function over texts, a `@batch` function or method, or an object or bound deployment with `embed`."""


class Embedder:
    """One model of embeddings."""

    def __init__(self, function: Callable[..., Any], batched: bool) -> None:
        """`batched`: the function takes one text, because `@batch` collects its calls."""
        self._function = function
        self._batched = batched

    async def embed(self, texts: list[str]) -> Sequence[Any]:
        """Return one vector, or `Embedding`, for each text. Raises what the function raises."""
        if self._batched:
            return await call_many(self._function, texts)
        vectors: Sequence[Any] = await self._function(texts)
        if len(vectors) != len(texts):
            raise ValueError(f"the function returned {len(vectors)} vectors for {len(texts)} texts")
        return vectors


class Embedders:
    """Models of embeddings by name: the value that the dependency of a route injects."""

    def __init__(self, functions: Mapping[str, Embedder]) -> None:
        self._functions = functions

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    async def vectors(self, name: str, texts: list[str], dimensions: int | None = None) -> tuple[Sequence[Any], int]:
        """Return the vectors of texts, and the tokens that the texts have.

        `dimensions`: the length of a vector that the client asks for. Default: any.

        Raises:
            ChatError: 404, there is no model with this name.
            InvalidParameter: The vectors have another length.
        """
        embeddings = await self.find(name).embed(texts)
        vectors = [embedding.vector if isinstance(embedding, Embedding) else embedding for embedding in embeddings]
        tokens = sum(embedding.tokens for embedding in embeddings if isinstance(embedding, Embedding))
        await count_usage(name, UsageEvent(tokens, 0))
        if dimensions is not None and any(len(vector) != dimensions for vector in vectors):
            raise InvalidParameter(f"the model computes vectors of {len(vectors[0])} dimensions only", "dimensions")
        return vectors, tokens

    def find(self, name: str) -> Embedder:
        """Return a model. Raises `ChatError` 404 if there is none with this name."""
        if name not in self._functions:
            others = f"; there are {', '.join(self.names)}" if self._functions else ""
            message = f"the model {name!r} does not exist or computes no embeddings{others}"
            raise ChatError(message, status=404, code="model_not_found")
        return self._functions[name]


def embedders_parameter(sources: Mapping[str, EmbedSource]) -> Any:
    """Return the annotation of a route's parameter that injects these models.

    The planner finds the bound deployments in this annotation.

    Raises:
        ConfigError: A model is of none of the kinds.
    """
    batched = {name: _is_batched(name, source) for name, source in sources.items()}

    def embedders(found: Mapping[str, Any]) -> Embedders:
        return Embedders({name: Embedder(_function(source), batched[name]) for name, source in found.items()})

    return sources_parameter(sources, embedders)


def _function(source: Any) -> Callable[..., Any]:
    # A batch function has no attribute `embed`, and a handle only those that its class has.
    return cast(Callable[..., Any], getattr(source, "embed", source))


def _is_batched(name: str, source: Any) -> bool:
    function = getattr(source.cls, "embed", None) if isinstance(source, Bound) else _function(source)
    if not callable(function):
        raise ConfigError(
            f"the embeddings {name!r} are {source!r}: pass an async function, or what bind() returns for a class with "
            "a method embed"
        )
    return is_batched(function)
