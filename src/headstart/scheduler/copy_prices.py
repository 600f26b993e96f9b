"""Whether copying cells to main memory and back takes less time than decoding them again."""

from __future__ import annotations

from headstart.scheduler.disk_cache import SECONDS_PER_BYTE, SPEED_RATE
from headstart.types.report import Counters

STEP_SECONDS = 0.003  # time for copies in a step; what takes no longer delays nobody
# minimum for a prompt to be kept, restored or waited for, and of tokens still to come for idle ones
# to be set aside
LEAST_TOKENS = 32
# share by which a price falls each time that nothing is copied because of it: the next dozens are
# not copied, then it is measured again
FORGETTING = 0.01


class CopyPrices:
    """Measured seconds of copies."""

    def __init__(self, counters: Counters) -> None:
        """`counters` have what decoding prompts took, in steps with at least LEAST_TOKENS of them:
        a prompt from the cache has one, which takes as long as dozens.
        """
        self._counters = counters
        self.seconds_per_byte = SECONDS_PER_BYTE  # back into the cache
        # of a block to main memory: of a prompt, and of an answer, whose cells lie between those of
        # other answers
        self._block_seconds = [0.0, 0.0]

    def observe_block(self, seconds: float, is_answer: bool) -> None:
        """Update from the copy of a block to main memory."""
        known = self._block_seconds[is_answer]
        # limited: the machine may have paused meanwhile
        more = min(seconds - known, max(STEP_SECONDS, known))
        self._block_seconds[is_answer] += SPEED_RATE * more

    def observe_restore(self, seconds_per_byte: float) -> None:
        """Update from a copy back."""
        known = self.seconds_per_byte
        self.seconds_per_byte += SPEED_RATE * min(seconds_per_byte - known, known)

    def pays(self, num_tokens: int, is_answer: bool) -> bool:
        """Whether a block is copied within a step's time, or copying it, and back, takes less time
        than decoding it again. A graphics card reads prompts fast and copies single cells slowly:
        20 ms for 64 tokens of an answer beside seven others, 9 to decode them. If not, the price
        falls a little.
        """
        seconds = self._block_seconds[is_answer]
        pays = seconds <= STEP_SECONDS or self.saves_time(num_tokens, 2.0 * seconds)
        if not pays:
            self._block_seconds[is_answer] *= 1.0 - FORGETTING
        return pays

    def restoring_pays(self, num_gained: int, num_bytes: float) -> bool:
        """Whether copying that many bytes back takes less time than decoding their tokens; if not,
        the price falls a little.
        """
        pays = self.saves_time(num_gained, num_bytes * self.seconds_per_byte)
        if not pays and num_gained >= LEAST_TOKENS:
            self.seconds_per_byte *= 1.0 - FORGETTING
        return pays

    def saves_time(self, num_gained: int, copying: float) -> bool:
        """Whether restoring `num_gained` tokens in `copying` seconds beats decoding them; yes if
        unmeasured.
        """
        counters, reading = self._counters, copying
        if counters.prefill_rows:
            reading = num_gained * counters.prefill_seconds / counters.prefill_rows
        elif counters.prompt_tokens:  # in small pieces only
            reading = num_gained * counters.prompt_seconds / counters.prompt_tokens
        return num_gained >= LEAST_TOKENS and reading >= copying
