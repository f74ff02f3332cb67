"""The stage of a request at a replica: what has become of its response."""

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
        return self > HELD


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


# An attribute of an enum class takes longer to read than a name of a module.
ARRIVED, RUNNING, HELD, RESPONDING, REPLACED, CUT, COMPLETE = Stage
ADMITTED, HEAD_KEPT, HEAD_DROPPED, STARTED, UNSENT, ENDED, FAILED = Event


class IllegalEvent(AssertionError):
    """An event that is not listed in `TRANSITIONS`: a bug of the replica."""

    def __init__(self, stage: Stage, event: Event) -> None:
        super().__init__(f"a request that is {stage.name} cannot be {event.name}")


class Transitions(dict[tuple[Stage, Event], Stage]):
    """By stage and event: the stage that follows. Any other event raises `IllegalEvent`."""

    def __missing__(self, key: tuple[Stage, Event]) -> Stage:
        raise IllegalEvent(*key)


TRANSITIONS = Transitions(
    {
        (ARRIVED, ADMITTED): RUNNING,
        (ARRIVED, STARTED): RESPONDING,  # the replica itself responds, such as with a refusal
        (RUNNING, HEAD_KEPT): HELD,
        (RUNNING, STARTED): RESPONDING,
        (RUNNING, ENDED): COMPLETE,  # a WebSocket that the app refuses
        (RUNNING, FAILED): REPLACED,
        (HELD, HEAD_DROPPED): RUNNING,
        (HELD, STARTED): RESPONDING,
        (HELD, FAILED): REPLACED,
        (RESPONDING, UNSENT): HELD,
        (RESPONDING, ENDED): COMPLETE,
        (RESPONDING, FAILED): CUT,
        (REPLACED, ENDED): COMPLETE,
        (REPLACED, FAILED): CUT,
        (CUT, ENDED): COMPLETE,
        (CUT, FAILED): CUT,
        (COMPLETE, ENDED): COMPLETE,  # the server decides about a second close of a WebSocket
    }
)
