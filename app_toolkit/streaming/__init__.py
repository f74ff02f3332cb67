"""Resumable responses and the logs that keep their events."""

from app_toolkit.core.stream_log import Page, StreamLimits
from app_toolkit.streaming.log import MemoryStreamLog, StreamLog
from app_toolkit.streaming.resumable import LostStream, resumable
from app_toolkit.streaming.router import stream_router
from app_toolkit.streaming.service import StreamLogDeployment
from app_toolkit.streaming.shared import SharedStreamLog

__all__ = [
    "LostStream",
    "MemoryStreamLog",
    "Page",
    "SharedStreamLog",
    "StreamLimits",
    "StreamLog",
    "StreamLogDeployment",
    "resumable",
    "stream_router",
]
