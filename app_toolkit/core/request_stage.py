"""The stage of a request at a replica: what has become of its response."""

from collections.abc import Mapping
from enum import IntEnum, auto


class Stage(IntEnum):
    """The stage of a request at a replica. An int, because it is looked up several times for each request."""

    ARRIVED = auto()
    """The replica has not admitted the request."""
    RUNNING = auto()
    """The app runs, and has sent nothing of its response."""
    HELD = auto()
    """The app has sent a head that is kept until the first bytes of the body. An app that fails before that has not
    begun its response."""
    RESPONDING = auto()
    """The head was sent."""
    REPLACED = auto()
    """An error of the toolkit replaces the response. What the app sends is dropped."""
    CUT = auto()
    """The response has begun and cannot be completed. What the app sends is dropped."""
    COMPLETE = auto()
    """The app has ended its response. What it still does is background work."""

    @property
    def begun(self) -> bool:
        """Whether the response has begun, so that no other one can be sent."""
        return self > Stage.HELD


class Event(IntEnum):
    """What happens to a request."""

    ADMITTED = auto()
    HEAD_KEPT = auto()
    HEAD_DROPPED = auto()
    """The kept head is discarded, because another response follows."""
    STARTED = auto()
    """The head is sent."""
    UNSENT = auto()
    """The head that was kept could not be sent yet, because its sender was cancelled while it waited."""
    ENDED = auto()
    """The app has sent the last part of its response, or has closed the WebSocket."""
    FAILED = auto()
    """The deadline has passed, or the body arrives too slowly."""


TRANSITIONS: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.ARRIVED, Event.ADMITTED): Stage.RUNNING,
    (Stage.ARRIVED, Event.STARTED): Stage.RESPONDING,  # of the replica itself: a refusal, or a place in its wait queue
    (Stage.RUNNING, Event.HEAD_KEPT): Stage.HELD,
    (Stage.RUNNING, Event.STARTED): Stage.RESPONDING,
    (Stage.RUNNING, Event.ENDED): Stage.COMPLETE,  # a WebSocket that the app refuses
    (Stage.RUNNING, Event.FAILED): Stage.REPLACED,
    (Stage.HELD, Event.HEAD_DROPPED): Stage.RUNNING,
    (Stage.HELD, Event.STARTED): Stage.RESPONDING,
    (Stage.HELD, Event.FAILED): Stage.REPLACED,
    (Stage.RESPONDING, Event.UNSENT): Stage.HELD,
    (Stage.RESPONDING, Event.ENDED): Stage.COMPLETE,
    (Stage.RESPONDING, Event.FAILED): Stage.CUT,
    (Stage.REPLACED, Event.ENDED): Stage.COMPLETE,
    (Stage.REPLACED, Event.FAILED): Stage.CUT,
    (Stage.CUT, Event.ENDED): Stage.COMPLETE,
    (Stage.CUT, Event.FAILED): Stage.CUT,
    (Stage.COMPLETE, Event.ENDED): Stage.COMPLETE,  # the server decides about a second close of a WebSocket
}


class IllegalEvent(AssertionError):
    """An event that is not listed in `TRANSITIONS`: a bug of the replica."""

    def __init__(self, stage: Stage, event: Event) -> None:
        super().__init__(f"a request that is {stage.name} cannot be {event.name}")


def after(stage: Stage, event: Event) -> Stage:
    """Return the stage that follows. Raise `IllegalEvent` if the transition is not listed."""
    try:
        return TRANSITIONS[stage, event]
    except KeyError:
        raise IllegalEvent(stage, event) from None
