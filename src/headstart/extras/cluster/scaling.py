"""Computes the number of replicas from the running and waiting requests.

Ray applies the limits and the waiting times. It would count calls of actors, but tokens do not pass
through those.
"""

from __future__ import annotations

import math
from typing import Any

REQUESTS = "requests"  # what a replica reports to Ray: how many run and wait there


class ScalingPolicy:
    """The policy object of Ray Serve, created in its controller."""

    def __init__(self, target_requests: float) -> None:
        """`target_requests`: what each replica should have."""
        self._target = target_requests

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Replicas wanted, and no state to keep."""
        by_replica = (context.aggregated_metrics or {}).get(REQUESTS, {})
        return max(1, math.ceil(sum(by_replica.values()) / self._target)), {}
