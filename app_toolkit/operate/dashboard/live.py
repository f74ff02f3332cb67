"""Follows an instance for the pages that are open, and makes the documents that they get."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from anyio import to_thread

from app_toolkit.control.command import Command
from app_toolkit.control.queries import GetApplications, GetEvents, GetStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.errors import InstanceEnded
from app_toolkit.observability.event_log import EventPage
from app_toolkit.observability.metrics import LATENCY_S
from app_toolkit.operate.aggregate import Numbers
from app_toolkit.operate.client import Client
from app_toolkit.operate.dashboard.failing import Failing
from app_toolkit.operate.dashboard.history import EVERY_S, History, samples
from app_toolkit.operate.dashboard.tables import (
    COLUMNS,
    Moments,
    Row,
    difference,
    event_row,
    layout,
    number_rows,
    process_rows,
    status_tables,
)

R = TypeVar("R")

logger = logging.getLogger("app_toolkit.dashboard")

UPDATE_S = 1.0
"""Seconds between two documents of a stream."""

SILENT_S = 4.0
"""Seconds without an answer of the controller after which the page says so."""

LATEST_EVENTS = 300
"""The number of events that a page gets at first, and the maximum that it keeps."""

MOST_STREAMS = 32
"""The maximum number of open pages."""


class Live:
    """The state of an instance as the page shows it.

    The numbers are sampled all the time. The controller is asked only while a page is open.
    """

    def __init__(self, client: Client, latest: Callable[[], Numbers]) -> None:
        """Create the state of an instance.

        Parameters:
            client: A connection to the instance.
            latest: Returns the metrics at this moment.
        """
        self._client = client
        self._latest = latest
        self._links: Mapping[str, str] = {}
        self.history = History(LATENCY_S)
        self._failing = Failing()
        self._moments = Moments()
        self._tables: dict[str, Mapping[str, Row]] = {}
        self._layouts: Mapping[str, Row] = {}
        self._revisions: object = None
        self._events: deque[Row] = deque(maxlen=LATEST_EVENTS)
        self._new_events: list[Row] = []
        self._answered = time.monotonic()
        self._number = 0
        """The number of the last document."""
        self._delta = ""
        self._stale = True
        self._streams = 0
        self._closed = False
        self._opened = asyncio.Event()
        self._made = asyncio.Condition()

    async def run(self) -> None:
        """Sample and follow the instance until cancelled, or until it has ended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            tasks.create_task(self._follow())
            tasks.create_task(self._publish())

    @property
    def is_full(self) -> bool:
        """Whether `MOST_STREAMS` pages are open."""
        return self._streams >= MOST_STREAMS

    @contextmanager
    def page(self) -> Iterator[AsyncIterator[str]]:
        """Return the documents of a page, which is open until the context is left.

        The first document has the state as JSON. The others have what has changed, and come at most once each second. A
        page that is too slow for all of them gets the whole state again.
        """
        self._streams += 1
        self._opened.set()
        try:
            yield self._documents()
        finally:
            self._streams -= 1
            if not self._streams:  # the next page must not get what is known now, which will be old
                self._opened.clear()
                self._tables.pop("deployments", None)
                self._stale = True

    async def _documents(self) -> AsyncIterator[str]:
        seen = None
        while (following := await self._next(seen)) is not None:
            document, seen = following
            yield document

    async def close(self) -> None:
        """End the streams of documents."""
        async with self._made:
            self._closed = True
            self._made.notify_all()

    async def _next(self, seen: int | None) -> tuple[str, int] | None:
        """Return the document that follows the one with the number `seen`, and its number; None: the streams end."""
        async with self._made:
            await self._made.wait_for(lambda: self._closed or (not self._stale and seen != self._number))
            if self._closed:
                return None
            follows = seen is not None and seen + 1 == self._number
            return self._delta if follows else self._whole(), self._number

    async def _sample(self) -> None:
        while True:
            numbers, now = self._latest(), time.time()
            sampled = samples(numbers)
            self.history.add(now, sampled)
            self._tables["numbers"] = number_rows(sampled, self.history)
            self._tables["failing"] = self._failing.add(now, numbers.deployments)
            self._tables["processes"] = process_rows(numbers.processes)
            self._tables["sample"] = {"at": round(now, 3)}
            await asyncio.sleep(EVERY_S)

    async def _follow(self) -> None:
        after, epoch, number = -1, 0, 0
        while True:
            await self._opened.wait()
            try:
                status = await self._execute(GetStatus(after, UPDATE_S if not self._stale else 0.0))
                page = await self._execute(GetEvents(None, LATEST_EVENTS, epoch, number))
                await self._know_layouts(status)
            except InstanceEnded:
                return
            except Exception as error:  # the engine's own errors, after which the controller may answer again
                logger.warning("the dashboard cannot follow the instance: %s: %s", type(error).__name__, error)
                await asyncio.sleep(UPDATE_S)
                continue
            after = status.change
            self._take(status, page, began_anew=page.epoch != epoch)
            epoch, number = page.epoch, page.number
            await asyncio.sleep(UPDATE_S)

    async def _publish(self) -> None:
        before: dict[str, Mapping[str, Row]] = {}
        while True:
            await self._opened.wait()
            if "deployments" in self._tables:
                self._tables["connection"] = {"answers": time.monotonic() - self._answered < SILENT_S}
                changed: dict[str, Any] = dict(difference(before, self._tables))
                before = dict(self._tables)
                events, self._new_events = self._new_events, []
                if events:
                    changed["events"] = events
                if changed or self._stale:
                    async with self._made:
                        self._number += 1
                        self._stale = False
                        self._delta = _json({"at": time.time(), **changed})
                        self._made.notify_all()
                await asyncio.sleep(UPDATE_S)
            else:
                await asyncio.sleep(UPDATE_S / 20)

    def _take(self, status: InstanceStatus, page: EventPage, *, began_anew: bool) -> None:
        now = time.time()
        self._answered = time.monotonic()
        self._tables.update(status_tables(status, self._layouts, self._moments, now))
        first = page.number - len(page.events)
        events = [event_row(event, now, f"{page.epoch}-{first + place}") for place, event in enumerate(page.events)]
        if began_anew:
            self._events.clear()
        self._events.extend(events)
        self._new_events = [*self._new_events, *events][-LATEST_EVENTS:]

    async def _know_layouts(self, status: InstanceStatus) -> None:
        revisions = [
            (application.name, application.revision, application.serving_revision)
            for application in status.applications
        ]
        if revisions != self._revisions:
            applications, _ = await self._execute(GetApplications())
            self._links = await to_thread.run_sync(self._client.links, abandon_on_cancel=True)
            self._layouts, self._revisions = layout(applications), revisions

    async def _execute(self, command: Command[R]) -> R:
        return await to_thread.run_sync(self._client.execute, command, abandon_on_cancel=True)

    def _whole(self) -> str:
        past = {name: self.history.series(name)["rate"][-30:] for name in self._tables.get("numbers", {})}
        return _json(
            {
                "at": time.time(),
                "whole": True,
                "columns": COLUMNS,
                "every_s": EVERY_S,
                "links": self._links,
                "past": past,
                **self._tables,
                "events": list(self._events),
            }
        )


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)
