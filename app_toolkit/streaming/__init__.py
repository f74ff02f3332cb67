"""Resumable responses and the logs that keep their events.

Design: docs/design/streams.md
"""

from app_toolkit.streaming.generation import Generation, tied_stream, until_disconnect
from app_toolkit.streaming.log import MemoryStreamLog, StreamLog
from app_toolkit.streaming.permits import takes_permit, without_permit
from app_toolkit.streaming.resumable import (
    STREAM_ERRORS,
    LostStream,
    OpenStream,
    StreamOptions,
    log_parameter,
    resumable,
)
from app_toolkit.streaming.router import stream_router
from app_toolkit.streaming.service import StreamLogDeployment
from app_toolkit.streaming.shared import SharedStreamLog
from app_toolkit.streaming.stream_log import Append, Outcome, Page, Renewal, StreamLimits

__all__ = [
    "STREAM_ERRORS",
    "Append",
    "Generation",
    "LostStream",
    "MemoryStreamLog",
    "OpenStream",
    "Outcome",
    "Page",
    "Renewal",
    "SharedStreamLog",
    "StreamLimits",
    "StreamLog",
    "StreamLogDeployment",
    "StreamOptions",
    "log_parameter",
    "resumable",
    "stream_router",
    "takes_permit",
    "tied_stream",
    "until_disconnect",
    "without_permit",
]
