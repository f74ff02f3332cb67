"""The stages of a request at the proxy, and the transitions between them."""

from collections.abc import Mapping
from enum import IntEnum, auto


class Stage(IntEnum):
    """The stage of a request. An int, because it is looked up several times for each request."""

    NEW = auto()
    ARRIVING = auto()
    """The body of the request is arriving. The request does not ask for a permit yet, or not now."""
    WAITING = auto()
    """The request asks or waits for a permit at a replica."""
    CONNECTING = auto()
    """The request has a permit, and waits for a connection to the replica."""
    SENT = auto()
    """The request was sent to the replica, and no response was sent to the client."""
    RESPONDING = auto()
    """The response has begun, and is passed on as it arrives."""
    TUNNEL = auto()
    """The exchange is an open WebSocket."""
    DONE = auto()


TRANSITIONS: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.NEW: (Stage.ARRIVING, Stage.WAITING, Stage.DONE),
    Stage.ARRIVING: (Stage.WAITING, Stage.DONE),
    Stage.WAITING: (Stage.CONNECTING, Stage.SENT, Stage.DONE),
    Stage.CONNECTING: (Stage.WAITING, Stage.SENT, Stage.DONE),
    Stage.SENT: (Stage.ARRIVING, Stage.WAITING, Stage.RESPONDING, Stage.TUNNEL, Stage.DONE),
    Stage.RESPONDING: (Stage.DONE,),
    Stage.TUNNEL: (Stage.DONE,),
    Stage.DONE: (),
}
"""A request returns to WAITING or ARRIVING only after an attempt without a response. Every stage except DONE may lead
to DONE."""


class IllegalStage(AssertionError):
    """A transition that is not listed in `TRANSITIONS`: a bug in the proxy."""

    def __init__(self, stage: Stage, after: Stage) -> None:
        super().__init__(f"a request that is {stage.name} cannot become {after.name}")
