"""Whether a speculator is asked at all: its drafts have to earn the time of asking.

Asking takes time even where the answer is no: it searches, and its answer is calibrated and
planned. With a step of 50 ms that does not show, with one of 0.5 ms it costs every fifth token. So,
for each request, the milliseconds that drafts are expected to save are averaged over the times that
the speculator was asked. While they are less than what asking takes, it is asked again only after a
wait, which doubles up to where asking takes ASK_SHARE of the time. Where that is less than a step,
it is asked in every step. One that takes as long as ten steps waits for ten at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

ASK_SHARE = 0.01  # of the time may go into asking those that do not earn it
GAIN_RATE = 0.2  # of a request's average: a copied passage is found within a few steps


@dataclass(slots=True)
class AskWait:
    """Of one request."""

    gain: float  # milliseconds that a time of asking earned on average
    wait: float = 0.0  # steps between two times
    left: int = 0  # of them


@dataclass(slots=True)
class Asking:
    """Of one speculator. Milliseconds."""

    cost: float = 0.0  # of asking for one slot
    num_costs: int = 0
    _requests: dict[int, AskWait] = field(default_factory=dict)  # by seq_id

    def wants(self, seq_id: int) -> bool:
        """Whether to ask in this step; call it once a step."""
        return bool(self.wanted((seq_id,)))

    def wanted(self, seq_ids: Sequence[int]) -> list[int]:
        """Of these, those to ask for in this step; call it once a step."""
        wanted = []
        for seq_id in seq_ids:
            request = self._requests.get(seq_id)
            if request is None or request.left <= 0:
                wanted.append(seq_id)
            else:
                request.left -= 1
        return wanted

    @property
    def waits(self) -> bool:
        """Whether it is not to be asked for some request."""
        return max(map(attrgetter("left"), self._requests.values()), default=0) > 0

    def sleeps(self, seq_ids: Sequence[int]) -> bool:
        """Whether it is to be asked for none of these."""
        requests = self._requests
        return all(i in requests and requests[i].left > 0 for i in seq_ids)

    def earned(self, seq_id: int, milliseconds: float, slot_ms: float) -> float:
        """It was asked, and its draft is expected to save so much; `slot_ms` is the time of a step
        without drafts, per slot. Returns the steps until it is asked again.
        """
        request = self._requests.get(seq_id)
        if request is None:  # at first every text may be worth it
            request = self._requests[seq_id] = AskWait(self.cost)
        request.gain += GAIN_RATE * (milliseconds - request.gain)
        if request.gain >= self.cost:
            request.wait = 0.0
        else:
            most = self.cost / (ASK_SHARE * slot_ms)
            request.wait = min(most, max(2.0 * request.wait + 1.0, self.cost / slot_ms))
        request.left = int(request.wait)
        return request.left

    def took(self, milliseconds: float) -> None:
        """Learn what asking for one slot takes."""
        self.num_costs += 1
        if self.num_costs > 1:
            milliseconds = min(milliseconds, 2.0 * self.cost)  # one slow call silences no one
        rate = max(0.05, 1.0 / self.num_costs)
        self.cost += rate * (milliseconds - self.cost)

    def wake(self, seq_id: int) -> None:
        """Ask at the next opportunity."""
        if (request := self._requests.get(seq_id)) is not None:
            request.left = 0

    def end(self, seq_id: int) -> None:
        """The request is over."""
        self._requests.pop(seq_id, None)
