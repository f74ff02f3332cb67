"""The stages of a request at the proxy, and which of them may follow which."""

from collections.abc import Mapping
from enum import IntEnum, auto


class Stage(IntEnum):
    """How far a request has come. An int, because it is looked up several times for each request."""

    NEW = auto()
    ARRIVING = auto()
    """Its body arrives. It asks for no replica yet."""
    WAITING = auto()
    """It asks for a permit at a replica, or waits for one."""
    CONNECTING = auto()
    """It has a permit, and waits for a connection to the replica."""
    SENT = auto()
    """The replica has it, and the client has seen nothing of a response."""
    ANSWERED = auto()
    """The response has begun. It is passed on as it comes."""
    TUNNEL = auto()
    """It is an open WebSocket."""
    DONE = auto()


TRANSITIONS: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.NEW: (Stage.ARRIVING, Stage.WAITING, Stage.DONE),
    Stage.ARRIVING: (Stage.WAITING, Stage.DONE),
    Stage.WAITING: (Stage.CONNECTING, Stage.SENT, Stage.DONE),
    Stage.CONNECTING: (Stage.WAITING, Stage.SENT, Stage.DONE),
    Stage.SENT: (Stage.WAITING, Stage.ANSWERED, Stage.TUNNEL, Stage.DONE),
    Stage.ANSWERED: (Stage.DONE,),
    Stage.TUNNEL: (Stage.DONE,),
    Stage.DONE: (),
}
"""Only an attempt that brought no answer leads back, to WAITING. Every stage but the last leads to DONE."""


class IllegalStage(AssertionError):
    """A stage that may not follow the one before: a mistake in the proxy."""

    def __init__(self, stage: Stage, after: Stage) -> None:
        super().__init__(f"a request that is {stage.name} cannot become {after.name}")
