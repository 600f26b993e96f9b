"""What a step leaves over that the next batch does not need: counting, and what control learns.

Where the device computes by itself, this is done while it computes, so that it does not wait.
"""

from __future__ import annotations

from collections.abc import Callable


class DeferredCalls:
    """Calls to make later, in their order."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def add(self, call: Callable[[], object]) -> None:
        """Make this call at the next `run`; what it reads must not change until then."""
        self._calls.append(call)

    def run(self) -> None:
        """Make the calls that were added since the last time."""
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()
