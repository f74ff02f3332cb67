"""The filters of all requests to ingresses, through a proxy and in one process. A plane adds those of its own."""

from collections.abc import Callable

from app_toolkit.dispatch.filters.faults import FaultInjection
from app_toolkit.dispatch.filters.server_timing import ServerTiming
from app_toolkit.dispatch.filters.stream_gaps import StreamGaps


def ingress_filters(*, count_gap: Callable[[str], Callable[[float], None]], server_timing: bool) -> list[object]:
    """Return the filters, in their order.

    Parameters:
        count_gap: As for `StreamGaps`.
        server_timing: Whether responses have a Server-Timing field.
    """
    timing = [ServerTiming()] if server_timing else []
    return [*timing, FaultInjection(), StreamGaps(count_gap)]
