"""The warning that a routing policy fails."""

import logging
import time
from math import inf

logger = logging.getLogger("app_toolkit.router")

WARN_S = 60.0
"""Seconds between two warnings about the policy of one deployment."""


class PolicyAlarm:
    """Warns at most once per `WARN_S` that calls of a deployment are routed as without a policy."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._warned_at = -inf

    def warn(self, why: object) -> None:
        now = time.monotonic()
        if now - self._warned_at >= WARN_S:
            self._warned_at = now
            logger.warning("calls of %s are routed as without a policy: %s", self._deployment, why)
