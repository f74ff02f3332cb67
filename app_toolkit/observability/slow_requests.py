"""The slowest recent requests and calls of one process, for `app-toolkit slow`."""

import time
from collections.abc import Collection

from app_toolkit.observability.records import NOT_OWNED, Record
from app_toolkit.observability.slowest import SlowAttempt, Slowest, SlowRequest, is_selected, slowest

MOST_DEPLOYMENTS = 200
"""Maximum number of deployments whose slowest requests one process keeps."""


class SlowRequests:
    """The slowest requests or calls of each deployment. Subscribes to `Records`.

    If there are `MOST_DEPLOYMENTS`, the requests of others are not kept until those of one have become too old. The
    methods other than `add` are safe in any thread.
    """

    def __init__(self) -> None:
        self._by_deployment: dict[str, Slowest[Record]] = {}

    def add(self, record: Record) -> None:
        """Keep the record if its request is one of the slowest."""
        slowest_records = self._by_deployment.get(record.deployment)
        if slowest_records is None:
            if record.deployment == NOT_OWNED:
                return
            self._forget_old(record.arrived + record.seconds)
            if len(self._by_deployment) >= MOST_DEPLOYMENTS:
                return
            slowest_records = self._by_deployment[record.deployment] = Slowest()
        first_byte_s = record.first_byte_s
        slowest_records.add(
            record.seconds if first_byte_s is None else first_byte_s, record.arrived + record.seconds, record
        )

    def slowest(self, name: str | None, last: int) -> list[SlowRequest]:
        """Return at most `last` requests, the slowest first. `name`: as of `observability.slowest.is_selected`."""
        return slowest((request for request in self._requests() if is_selected(request, name)), last)

    def calls_of(self, request_ids: Collection[str]) -> list[SlowRequest]:
        """Return the calls that were made for these requests."""
        return [request for request in self._requests() if request.kind == "call" and request.request_id in request_ids]

    def _requests(self) -> list[SlowRequest]:
        now, offset = time.monotonic(), time.time() - time.monotonic()
        kept = list(self._by_deployment.values())
        return [slow_request(record, offset) for records in kept for record in records.items(now)]

    def _forget_old(self, now: float) -> None:
        old = [name for name, records in self._by_deployment.items() if not records.items(now)]
        for name in old:
            del self._by_deployment[name]


def slow_request(record: Record, offset: float) -> SlowRequest:
    """Return a record as plain data. `offset`: the seconds since 1970 minus the clock of the records."""
    began_s, seconds = record.attempt_s, record.seconds
    response_s = 0.0 if record.first_byte_s is None else seconds - record.first_byte_s
    failed_s = sum(attempt.seconds for attempt in record.failed)
    has_failed = bool(record.failed) and record.tries == len(record.failed)
    app_s = 0.0 if began_s is None or has_failed else seconds - response_s - began_s
    return SlowRequest(
        record.arrived + offset,
        seconds,
        record.kind,
        record.deployment,
        record.replica,
        record.method.decode("latin-1"),
        record.path.partition(b"?")[0].decode("latin-1"),
        record.status,
        record.outcome,
        record.id.decode("latin-1"),
        max(0.0, seconds - response_s - app_s - record.queued_s - failed_s),
        record.queued_s,
        tuple(SlowAttempt(attempt.replica, attempt.seconds, attempt.result) for attempt in record.failed),
        app_s,
        response_s,
    )
