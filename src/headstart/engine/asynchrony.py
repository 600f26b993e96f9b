"""Whether a device computes while Python goes on, found out by timing."""

from __future__ import annotations

from collections import deque

NUM_DECODES = 9  # number of last decodes that decide
LEAST_SHARE = 0.25  # share of a decode spent waiting for its result; 0.00 on a CPU


class Asynchrony:
    """Finds out by timing whether llama_decode returns before the device has finished.

    A GPU computes asynchronously, unless the last layer is left to the CPU, as with RPC workers.
    The CPU backend has finished when llama_decode returns. libllama does not say which applies.
    Judged by the last informative decodes; not proven until there are enough.
    """

    def __init__(self) -> None:
        self.is_proven = False
        self._had_waits = deque[bool](maxlen=NUM_DECODES)

    def observe(self, decode_seconds: float, aside_seconds: float, wait_seconds: float) -> None:
        """Record the times of llama_decode, of other work after it, and of waiting for the logits.

        The device may have finished at any time during the other work. Decodes whose verdict
        depends on that are ignored.
        """
        total = decode_seconds + aside_seconds + wait_seconds
        had_to_wait = wait_seconds > LEAST_SHARE * total
        if not had_to_wait and aside_seconds + wait_seconds > LEAST_SHARE * total:
            return
        self._had_waits.append(had_to_wait)
        if len(self._had_waits) == NUM_DECODES:
            self.is_proven = 2 * sum(self._had_waits) > NUM_DECODES
