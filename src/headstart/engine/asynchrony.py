"""Whether llama_decode returns before the device has finished, found out by timing it.

A GPU computes by itself, unless the last layer is left to the processor, as it is beside RPC
workers. The processor's own backend has finished when llama_decode returns. libllama does not say
which it is.
"""

from __future__ import annotations

from collections import deque

NUM_DECODES = 9  # the last ones, which decide
LEAST_SHARE = 0.25  # of a decode's time that is spent waiting for its result; 0.00 on a processor


class Asynchrony:
    """Judges by the last informative decodes; not proven until there are enough of them."""

    def __init__(self) -> None:
        self.is_proven = False
        self._had_waits = deque[bool](maxlen=NUM_DECODES)

    def observe(self, decode_seconds: float, aside_seconds: float, wait_seconds: float) -> None:
        """One llama_decode took so long, then something else, then waiting for the logits.

        The device may have finished at any time while something else was done. A decode whose
        verdict depends on when is ignored.
        """
        total = decode_seconds + aside_seconds + wait_seconds
        had_to_wait = wait_seconds > LEAST_SHARE * total
        if not had_to_wait and aside_seconds + wait_seconds > LEAST_SHARE * total:
            return
        self._had_waits.append(had_to_wait)
        if len(self._had_waits) == NUM_DECODES:
            self.is_proven = 2 * sum(self._had_waits) > NUM_DECODES
