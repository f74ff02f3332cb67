"""Shows the log records of an app, with the id of the request, unless the app configures logging itself."""

import logging
from typing import Any

from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.observability.tracebacks import shortened

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s%(request)s: %(message)s"
TIME = "%Y-%m-%d %H:%M:%S"


def show_logs(level: str) -> None:
    """Show records of this level and above on standard error, if no handler of the app takes them.

    `logging.lastResort` handles records that no other handler takes. By default it shows warnings without their time,
    and the root logger drops records below a warning. A level that the app has set does not change.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(FORMAT, TIME))
    handler.addFilter(_with_request)
    logging.lastResort = handler
    root = logging.getLogger()
    if root.level == logging.WARNING:  # its default
        root.setLevel(level.upper())
    server = logging.getLogger("uvicorn")
    if server.level == logging.NOTSET:  # in a replica, where each start and end of the server would log a record
        server.setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    def formatException(self, ei: Any) -> str:
        return shortened(super().formatException(ei))


def _with_request(record: logging.LogRecord) -> bool:
    request = REQUEST_ID.get()
    record.request = "" if request is None else f" [{request}]"
    return True
