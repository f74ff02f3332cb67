"""Decides which models a replica loads and unloads, and which requests use them.

A model is unloaded only if no request uses it and another one needs its place; the least recently used one goes first.
Each model is loaded at most once at a time. Requests for models that are loaded overtake those for other ones, but only
`MOST_OVERTAKING` times: then the model that goes first is closed, and gets no more users until it has been unloaded.
"""

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

MOST_OVERTAKING = 32
"""The maximum number of requests that overtake one that waits for a place for its model."""


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
    closed: bool = False
    """Whether no further request gets the model, because it is about to be unloaded."""


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
    overtaken: int = 0
    """The number of requests that were granted since a model has last got a place, while a request waited for one."""
    changes: int = 0
    """Increases whenever `held` or `free` may have changed."""

    @property
    def held(self) -> list[str]:
        """The models that are loaded, or will be loaded next, the most recently used first."""
        kept = [
            name for name, place in reversed(self.models.items()) if place.state != "unloading" and not place.closed
        ]
        return self._missing()[: len(self.models) - len(kept)] + kept

    @property
    def free(self) -> int:
        """The number of models that can be loaded, while none has to be unloaded for them."""
        return self.max_models - len(self.models)

    def add(self, request: T, model: str) -> None:
        """Add a request that needs a model."""
        self.waiting[request] = model
        self.changes += model not in self.models

    def remove(self, request: T) -> bool:
        """Remove a request that waits. Return False if it does not wait."""
        model = self.waiting.pop(request, None)
        self.changes += model is not None and model not in self.models
        return model is not None

    def release(self, model: str) -> None:
        """Note that a request that was granted does not use the model any more."""
        self.models[model].users -= 1

    def loaded(self, model: str) -> None:
        """Note that a model can be used now."""
        self.models[model].state = "loaded"

    def failed(self, model: str) -> list[T]:
        """Note that a model could not be loaded. Return and remove the requests that wait for it."""
        self._end(model)
        failed = [request for request, needed in self.waiting.items() if needed == model]
        for request in failed:
            del self.waiting[request]
        return failed

    def unloaded(self, model: str) -> None:
        """Note that the place of a model is free."""
        self._end(model)

    def decide(self) -> list[GrantModel[T] | LoadModel | UnloadModel]:
        """Return what is to be done now. Call it after each event. The owner does all of it."""
        if not self._missing():
            self._reopen()
        return [*self._grants(), *self._loads(), *self._unloads()]

    def _grants(self) -> list[GrantModel[T]]:
        grants: list[GrantModel[T]] = []
        for request, model in self.waiting.items():
            place = self.models.get(model)
            if place is not None and place.state == "loaded" and not place.closed:
                grants.append(GrantModel(request, model))
        if grants and self._missing():
            self.overtaken += len(grants)
        for grant in grants:
            del self.waiting[grant.request]
            place = self.models[grant.model] = self.models.pop(grant.model)  # the most recently used one now
            place.users += 1
        return grants

    def _loads(self) -> list[LoadModel]:
        loads = [LoadModel(model) for model in self._missing()[: self.max_models - len(self.models)]]
        for load in loads:
            self.models[load.model] = ModelPlace()
            self.overtaken = 0
            self.changes += 1
        return loads

    def _unloads(self) -> list[UnloadModel]:
        ending = sum(place.state == "unloading" for place in self.models.values())
        if self.overtaken >= MOST_OVERTAKING and not ending and self._missing():
            self._close()
        idle = [name for name, place in self.models.items() if place.state == "loaded" and not place.users]
        unloads = [UnloadModel(model) for model in idle[: max(0, len(self._missing()) - ending)]]
        for unload in unloads:
            self.models[unload.model].state = "unloading"
            self.changes += 1
        return unloads

    def _close(self) -> None:
        """Close the least recently used model, unless one is closed already."""
        loaded = [place for place in self.models.values() if place.state == "loaded"]
        if loaded and not any(place.closed for place in loaded):
            loaded[0].closed = True
            self.changes += 1

    def _reopen(self) -> None:
        """Open the model that was closed, because nobody needs its place any more."""
        self.overtaken = 0
        for place in self.models.values():
            if place.closed and place.state == "loaded":
                place.closed = False
                self.changes += 1

    def _end(self, model: str) -> None:
        del self.models[model]
        self.changes += 1

    def _missing(self) -> list[str]:
        """Return the models that requests need and that have no place, the one that is needed for longest first."""
        return [model for model in dict.fromkeys(self.waiting.values()) if model not in self.models]
