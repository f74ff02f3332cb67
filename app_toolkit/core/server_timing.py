"""The response field of W3C Server Timing."""

SERVER_TIMING = b"server-timing"
"""The field name, in lowercase."""


def server_timing(queued_s: float, app_s: float) -> bytes:
    """Return the value of the field: how long a request was queued, and how long the app took to begin its response."""
    return b"queue;dur=%.1f, app;dur=%.1f" % (1_000 * queued_s, 1_000 * app_s)
