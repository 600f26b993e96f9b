"""Whether llama_decode returns before the device has finished, found out by timing it.

A GPU computes by itself, unless the last layer is left to the processor, as it is beside RPC
workers. The processor's own backend has finished when llama_decode returns. libllama does not say
which it is.
"""

from __future__ import annotations

NUM_DECODES = 9  # that are looked at
LEAST_SHARE = 0.25  # of a decode's time that is spent waiting for its result; 0.00 on a processor


class Asynchrony:
    """Judges by the first decodes; until then it is not proven."""

    def __init__(self) -> None:
        self.is_proven = False
        self._num_decodes = self._num_waits = 0

    def observe(self, decode_seconds: float, wait_seconds: float) -> None:
        """One llama_decode took so long, and then waiting for its logits."""
        if self._num_decodes == NUM_DECODES:
            return
        self._num_decodes += 1
        self._num_waits += wait_seconds > LEAST_SHARE * (decode_seconds + wait_seconds)
        if self._num_decodes == NUM_DECODES:
            self.is_proven = 2 * self._num_waits > NUM_DECODES


__all__ = ["LEAST_SHARE", "NUM_DECODES", "Asynchrony"]
