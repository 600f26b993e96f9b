"""Selects the replica for a request: the one expected to answer first.

For each replica, in seconds:

    expected wait                       its queue, the prompts before this one, its busy slots
  + uncached tokens x prompt_token      what it would have to read of the prompt, which takes longer
                                        beside requests that generate

Prices follow the answers, which report what their prompt and their tokens took. Affinity is a term
of this sum and not a mode: for one request it yields when waiting at the replica that knows the
prompt costs more than reading the prompt elsewhere, and it holds for all others.
Pure arithmetic: no clock, no randomness, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from headstart.gateway.balancer.conversation import Timings

# replicas that cost no more than the cheapest and this much are equal: prices are that uncertain
EQUAL_SHARE, EQUAL_SECONDS = 0.1, 0.01
# slowdown of a prompt token, and of a generated one, per request generating at the same time
PROMPT_SLOWDOWN, TOKEN_SLOWDOWN = 0.5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The current load of a replica."""

    num_slots: int = 4
    num_running: int = 0
    num_waiting: int = 0
    prompt_tokens_ahead: float = 0.0  # to be read before a new prompt


@dataclass(slots=True)
class Prices:
    """Seconds that a replica takes for each unit of work, as answers show them. They begin with a
    guess.
    """

    prompt_token: float = 1e-3  # reading one, alone
    token: float = 0.02  # generating one, alone
    request: float = 2.0  # a whole request in its slot

    def learn(self, timings: Timings, num_before: int, num_after: int, share: float = 1.0) -> None:
        """Follow an answer.

        Args:
            num_before, num_after: other requests that ran at its start and at its end.
            share: how much it counts.
        """
        num_beside = (num_before + num_after) / 2
        seconds = (timings.prompt_ms + timings.predicted_ms) / 1000
        self.request = follow(self.request, seconds, share)
        if timings.prompt_n >= 16:  # with fewer, the time is the step's rather than the tokens'
            seconds = timings.prompt_ms / 1000 / timings.prompt_n
            alone = seconds / (1 + PROMPT_SLOWDOWN * num_before)
            self.prompt_token = follow(self.prompt_token, alone, share)
        if timings.predicted_n > 1 and timings.predicted_ms:
            seconds = timings.predicted_ms / 1000 / (timings.predicted_n - 1)
            alone = seconds / (1 + TOKEN_SLOWDOWN * num_beside)
            self.token = follow(self.token, alone, share)


def follow(mean: float, value: float, share: float = 1.0) -> float:
    """A mean with one more value, in which older ones fade."""
    return mean + 0.1 * share * (value - mean)


def expected_seconds(load: Load, prices: Prices, num_unread: float, num_answer: float) -> float:
    """Expected seconds of a request at a replica. Counts of tokens are estimates.

    Args:
        num_unread: tokens of the prompt that the replica has not read before.
    """
    num_beside = min(load.num_running, load.num_slots - 1)
    reading = num_unread * prices.prompt_token * (1 + PROMPT_SLOWDOWN * num_beside)
    return wait_seconds(load, prices, num_answer) + reading


def wait_seconds(load: Load, prices: Prices, num_answer: float = 0.0) -> float:
    """Expected delay of a request by others, before it starts and while it runs."""
    num_busy = load.num_running + load.num_waiting
    num_before = max(0, num_busy - load.num_slots + 1)
    in_queue = num_before * prices.request / load.num_slots
    reading = load.prompt_tokens_ahead * prices.prompt_token
    num_beside = min(num_busy, load.num_slots - 1)
    return in_queue + reading + num_beside * TOKEN_SLOWDOWN * prices.token * num_answer


def ranking(costs: Mapping[str, float], conversation: str = "", last: str = "") -> list[str]:
    """All replicas, in the order to try them.

    Args:
        costs: by name, expected seconds of the request.
        conversation: the same for all requests of a conversation.
        last: the conversation's previous replica; wins ties.

    Replicas that cost hardly more than the cheapest tie. Otherwise a hash of the conversation
    decides among them, which every balancer computes alike, and which spreads conversations.
    """
    best = min(costs.values(), default=0.0)
    limit = best + max(EQUAL_SECONDS, EQUAL_SHARE * abs(best))

    def place(name: str) -> tuple[float, bool, bytes]:
        is_equal = costs[name] <= limit
        digest = blake2b(f"{conversation}\0{name}".encode(), digest_size=8).digest()
        return best if is_equal else costs[name], not (is_equal and name == last), digest

    return sorted(costs, key=place)
