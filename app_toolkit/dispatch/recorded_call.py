"""The record of one call, from its start to the end of its result."""

import asyncio
import time
from types import TracebackType
from typing import Any

from app_toolkit.dispatch.dispatcher import Dispatcher
from app_toolkit.errors import RequestError
from app_toolkit.observability.records import CLIENT_CLOSED_REQUEST, CLIENT_GONE, OK, Record, Records

FAILED = 500
"""The status of a call whose method raised an exception."""


class RecordedCall:
    """A context manager around one call. At its end, it adds a `Record`.

    As for a request, an exception of the user's method is a complete response: its outcome is `OK`.
    """

    __slots__ = ("_deployment", "_dispatcher", "_records")

    def __init__(self, records: Records[Record], dispatcher: Dispatcher[Any], deployment: str) -> None:
        """`deployment`: its name in the record."""
        self._records = records
        self._dispatcher = dispatcher
        self._deployment = deployment

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dispatcher, outcome, status = self._dispatcher, OK, 200
        if isinstance(error, RequestError):
            outcome, status = error.reason, error.status
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            outcome, status = CLIENT_GONE, CLIENT_CLOSED_REQUEST
        elif error is not None:
            status = FAILED
        request, now = dispatcher.request, time.monotonic()
        self._records.add(
            Record(
                dispatcher.began,
                now - dispatcher.began,
                "call",
                self._deployment,
                dispatcher.replica,
                dispatcher.attempts.count,
                outcome,
                request.name.encode(),
                request.request_id.encode("latin-1", "replace"),
                b"- 0",
                b"",
                status,
                0,
                dispatcher.affinity,
                *dispatcher.stage_times(now),
                trace=dispatcher.trace,
            )
        )
