"""Decides which models a replica loads and unloads, and which requests use them.

A model is unloaded only if no request uses it and another one needs its place; the least recently used one goes first.
Each model is loaded at most once at a time.
"""

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GrantModel(Generic[T]):
    """Give the model, which is loaded, to this request."""

    request: T
    model: str


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Begin to load this model."""

    model: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Begin to unload this model."""

    model: str


@dataclass(slots=True)
class ModelPlace:
    """One of the places for models, and the model in it."""

    state: Literal["loading", "loaded", "unloading"] = "loading"
    users: int = 0


@dataclass(slots=True)
class ModelPlaces(Generic[T]):
    """The models of one replica, and the requests that wait for one. The owner calls a method for each event.

    A request is a token of type T, which must be hashable.
    """

    max_models: int
    """The maximum number of models, including those that are being loaded or unloaded."""
    models: dict[str, ModelPlace] = field(default_factory=dict)
    """The models by name, least recently used first. The beginning of a load counts as a use."""
    waiting: dict[T, str] = field(default_factory=dict)
    """The requests that wait, oldest first, and the models that they need."""

    def add(self, request: T, model: str) -> None:
        """Add a request that needs a model."""
        self.waiting[request] = model

    def remove(self, request: T) -> bool:
        """Remove a request that waits. Return False if it does not wait."""
        return self.waiting.pop(request, None) is not None

    def release(self, model: str) -> None:
        """Note that a request that was granted does not use the model any more."""
        self.models[model].users -= 1

    def loaded(self, model: str) -> None:
        """Note that a model can be used now."""
        self.models[model].state = "loaded"

    def failed(self, model: str) -> list[T]:
        """Note that a model could not be loaded. Return and remove the requests that wait for it."""
        del self.models[model]
        failed = [request for request, needed in self.waiting.items() if needed == model]
        for request in failed:
            del self.waiting[request]
        return failed

    def unloaded(self, model: str) -> None:
        """Note that the place of a model is free."""
        del self.models[model]

    def decide(self) -> list[GrantModel[T] | LoadModel | UnloadModel]:
        """Return what is to be done now. Call it after each event. The owner does all of it."""
        return [*self._grants(), *self._loads(), *self._unloads()]

    def _grants(self) -> list[GrantModel[T]]:
        grants = [
            GrantModel(request, model)
            for request, model in self.waiting.items()
            if (place := self.models.get(model)) is not None and place.state == "loaded"
        ]
        for grant in grants:
            del self.waiting[grant.request]
            place = self.models[grant.model] = self.models.pop(grant.model)  # the most recently used one now
            place.users += 1
        return grants

    def _loads(self) -> list[LoadModel]:
        loads = [LoadModel(model) for model in self._missing()[: self.max_models - len(self.models)]]
        for load in loads:
            self.models[load.model] = ModelPlace()
        return loads

    def _unloads(self) -> list[UnloadModel]:
        ending = sum(place.state == "unloading" for place in self.models.values())
        idle = [name for name, place in self.models.items() if place.state == "loaded" and not place.users]
        unloads = [UnloadModel(model) for model in idle[: max(0, len(self._missing()) - ending)]]
        for unload in unloads:
            self.models[unload.model].state = "unloading"
        return unloads

    def _missing(self) -> list[str]:
        """Return the models that requests need and that have no place, the one that is needed for longest first."""
        return [model for model in dict.fromkeys(self.waiting.values()) if model not in self.models]
