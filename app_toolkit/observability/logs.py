"""Adds the request and the replica to the log records of a process, and shows them if no handler of the app does."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app_toolkit.observability.context import REPLICA, REQUEST_ID, REQUEST_IDS, TRACE, ReplicaContext
from app_toolkit.observability.log_formats import FIELDS, FORMATTERS, MOST_BYTES_OF_REQUEST_IDS

own_replica: ReplicaContext | None = None
"""The only replica of this process, for records outside of its contexts. None: it has none, or several. For another
process of an instance, only the id is not empty."""

MOST_REQUEST_IDS = 100
"""The most request ids that a record of a batch has. Together they have at most `MOST_BYTES_OF_REQUEST_IDS`."""

UVICORN_LOGGERS = ("uvicorn", "uvicorn.access")
"""The loggers that have handlers under uvicorn. The others, such as `uvicorn.error`, propagate to the first."""

_is_attached = False


def attach_fields(replica: ReplicaContext | None = None) -> None:
    """Give each record that a logger of this process makes from now on the attributes `FIELDS`.

    They describe the context of the log call. An attribute is the empty string if there is none: outside of a request,
    and in a batch, which belongs to no request but has `request_ids`. `extra` and the app's own record factory override
    them.

    `replica`: the only replica of this process, to which threads belong that have no context.

    `Logger.makeRecord` is wrapped. With a record factory (`logging.setLogRecordFactory`) instead, every call with
    `extra={"request_id": ...}` would raise `KeyError`, and a factory that the app sets later would end the fields.
    """
    global _is_attached, own_replica
    own_replica = replica or own_replica
    if _is_attached:
        return
    _is_attached = True
    make_record = logging.Logger.makeRecord

    @functools.wraps(make_record)
    def make_record_with_fields(self: logging.Logger, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(self, *args, **kwargs)
        add_fields(record)
        return record

    logging.Logger.makeRecord = make_record_with_fields  # type: ignore[method-assign]


def add_fields(record: logging.LogRecord) -> None:
    """Give a record the attributes `FIELDS` of the current context, except those that it has."""
    for name, value in zip(FIELDS, _values(), strict=True):
        vars(record).setdefault(name, value)


def _values() -> Iterator[str | int]:
    """Yield the values of `FIELDS` in the current context."""
    yield REQUEST_ID.get() or ""
    items = REQUEST_IDS.get()
    yield _request_ids(items) if items else ""
    trace = TRACE.get()
    yield trace.split("-", 2)[1] if trace else ""
    replica = REPLICA.get() or own_replica
    if replica is None:
        yield from ("", "", "", "")
        return
    yield replica.application
    yield replica.revision or ""
    yield replica.deployment
    yield replica.replica_id


def _request_ids(items: Sequence[str | None]) -> str:
    """Return the ids of the requests of a batch, separated by commas, without those that are too many."""
    ids: list[str] = []
    room = MOST_BYTES_OF_REQUEST_IDS
    for item in dict.fromkeys(items):
        if item is not None:
            room -= len(item) + 3  # in JSON, with quotation marks and a comma
            if room < 0 or len(ids) == MOST_REQUEST_IDS:
                break
            ids.append(item)
    return ",".join(ids)


def show_logs(level: str, format: str = "text") -> None:
    """Show records of this level and above on standard error, if no handler of the app takes them.

    `logging.lastResort` handles records that no other handler takes. By default it shows warnings without their time,
    and the root logger drops records below a warning. A level that the app has set does not change. `format`: one of
    `FORMATTERS`.
    """
    attach_fields()
    logging.lastResort = _handler(level, format)
    root = logging.getLogger()
    if root.level == logging.WARNING:  # its default
        root.setLevel(level.upper())


def handle_uvicorn_loggers(level: str, format: str = "text") -> None:
    """Give uvicorn's loggers this level and handlers of their own, as its own configuration does.

    Apps log with these loggers, and change or copy their handlers. `level` and `format` are those of `show_logs`.
    """
    for name in UVICORN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [_handler(level, format)]
        logger.propagate = False
        logger.setLevel(level.upper())


def propagate_uvicorn_loggers(configured: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the handlers of the root logger, if it has any, show the records of uvicorn's loggers.

    Apps still find a handler at each of these loggers. `configured`: the loggers of a logging configuration that has
    been applied, by their names. Their levels, handlers and `propagate` do not change if it gives them.
    """
    for name in UVICORN_LOGGERS:
        logger = logging.getLogger(name)
        options = configured.get(name)
        if options is None and logging.getLogger().handlers:
            logger.handlers = []
            logger.propagate = True
        elif options is not None and options.get("propagate") is None:
            logger.propagate = True  # Python's default, which `handle_uvicorn_loggers` has changed
        if not logger.handlers:  # the configuration also takes those of a logger that it names, and of those below it
            logger.handlers = [logging.NullHandler() if logger.hasHandlers() else _like_last_resort()]


def _like_last_resort() -> logging.Handler:
    """Return a handler that shows records as the last resort does, whose format the app may change."""
    handler = logging.StreamHandler()
    if logging.lastResort is not None:
        handler.setFormatter(logging.lastResort.formatter)
    return handler


def _handler(level: str, format: str) -> logging.StreamHandler[Any]:
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[format](level))
    return handler
