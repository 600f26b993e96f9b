"""Whether copying cells to main memory and back takes less time than decoding them again."""

from __future__ import annotations

from headstart.types.report import Counters

STEP_SECONDS = 0.003  # time for copies in a step; what takes no longer delays nobody
# minimum for a prompt to be kept, restored or waited for, and of tokens still to come for idle ones
# to be set aside
LEAST_TOKENS = 32
# share by which a price falls each time that nothing is copied because of it: the next dozens are
# not copied, then it is measured again
FORGETTING = 0.01
SECONDS_PER_BYTE = 1e-9  # at first, from the disk and to the cache
SPEED_RATE = 0.3  # of the moving average


class Price:
    """Measured seconds of a kind of copy."""

    def __init__(self, seconds: float = SECONDS_PER_BYTE, least_rise: float = 0.0) -> None:
        self.seconds, self._least_rise = seconds, least_rise

    def observe(self, seconds: float) -> None:
        """Update from a copy; limited, because machine or disk may have paused meanwhile."""
        more = min(seconds - self.seconds, max(self._least_rise, self.seconds))
        self.seconds += SPEED_RATE * more

    def fall(self) -> None:
        """Forget a little, because nothing was copied at this price."""
        self.seconds *= 1.0 - FORGETTING


class CopyPrices:
    """Measured seconds of copies."""

    def __init__(self, counters: Counters) -> None:
        """`counters` have what decoding prompts took, in steps with at least LEAST_TOKENS of them:
        a prompt from the cache has one, which takes as long as dozens.
        """
        self._counters = counters
        self.restoring = Price()  # per byte, back into the cache
        # of a block to main memory: of a prompt, and of an answer, whose cells lie between those of
        # other answers
        self.blocks = Price(0.0, STEP_SECONDS), Price(0.0, STEP_SECONDS)

    def pays(self, num_tokens: int, is_answer: bool) -> bool:
        """Whether a block is copied within a step's time, or copying it, and back, takes less time
        than decoding it again. A graphics card reads prompts fast and copies single cells slowly:
        20 ms for 64 tokens of an answer beside seven others, 9 to decode them. If not, the price
        falls a little.
        """
        price = self.blocks[is_answer]
        pays = price.seconds <= STEP_SECONDS or self.saves_time(num_tokens, 2.0 * price.seconds)
        if not pays:
            price.fall()
        return pays

    def restoring_pays(self, num_gained: int, num_bytes: float, *reading: Price) -> bool:
        """Whether copying that many bytes back, after `reading` them, takes less time than decoding
        their tokens; if not, the prices fall a little.
        """
        prices = (self.restoring, *reading)
        pays = self.saves_time(num_gained, num_bytes * sum(price.seconds for price in prices))
        if not pays and num_gained >= LEAST_TOKENS:
            for price in prices:
                price.fall()
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
