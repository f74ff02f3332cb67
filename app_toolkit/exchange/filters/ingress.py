"""The filters of all requests to ingresses, through a proxy and in one process. A plane adds those of its own."""

from collections.abc import Callable

from app_toolkit.config.models import HTTPOptions
from app_toolkit.exchange.filters.faults import FaultInjection
from app_toolkit.exchange.filters.rate_limit import RateLimits
from app_toolkit.exchange.filters.server_timing import ServerTiming
from app_toolkit.exchange.filters.stream_gaps import StreamGaps


def ingress_filters(options: HTTPOptions, *, count_gap: Callable[[str], Callable[[float], None]]) -> list[object]:
    """Return the filters, in their order.

    Parameters:
        options: Those of the proxies, or of the app in one process.
        count_gap: As for `StreamGaps`.
    """
    timing = [ServerTiming()] if options.server_timing else []
    return [RateLimits(options.rate_limit_storage), FaultInjection(), *timing, StreamGaps(count_gap)]
