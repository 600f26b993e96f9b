"""Which replica takes a request: the one where it is expected to be answered first.

For each replica, in seconds:

    expected wait                       its queue, the prompts before this one, its busy slots
  + uncached tokens x prompt_token      what of the prompt it would have to read, which takes longer
                                        beside requests that generate
  - what its corpus knows of this text  tokens of the answer that it would draft from there

Affinity is a term of this sum and no mode: it yields, for one request, when waiting at the replica
that knows the prompt costs more than reading it anew elsewhere, and holds for all others. Pure
arithmetic: no clock, no randomness, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

# replicas that cost no more than the cheapest and this much are equal: prices are that uncertain
EQUAL_SHARE, EQUAL_SECONDS = 0.1, 0.01
CORPUS_GAIN = 0.5  # share of the time of a token that a draft from a corpus saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a replica does now."""

    num_slots: int = 1
    num_running: int = 0
    num_waiting: int = 0
    prompt_tokens_ahead: float = 0.0  # to be read before a new prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a replica takes for things, in seconds."""

    prompt_token: float = 1e-3  # reading one, alone
    prompt_neighbour: float = 5e-4  # added to that by each request that generates
    token: float = 0.02  # generating one, alone
    neighbour: float = 2e-3  # added to that by each further request that generates
    request: float = 2.0  # a whole request in its slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is known of a request before it is answered. Counts of tokens, estimated."""

    num_prompt: float
    num_answer: float
    conversation: str = ""  # requests of one conversation have the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that could take the request."""

    name: str
    load: Load = Load()
    prices: Prices = Prices()
    num_known: float = 0.0  # tokens of the prompt that it has read before
    corpus_share: float = 0.0  # of the text's passages that occur in its corpora, 0 to 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected seconds at one replica, by reason."""

    wait: float
    prompt: float
    saved: float

    @property
    def total(self) -> float:
        return self.wait + self.prompt - self.saved


def cost_of(ask: Ask, candidate: Candidate) -> Cost:
    """What the request is expected to cost there."""
    uncached = max(0.0, ask.num_prompt - candidate.num_known)
    num_beside = min(candidate.load.num_running, candidate.load.num_slots - 1)
    prices = candidate.prices
    # the text of an answer takes at least what its tokens cost when all are drafted
    saved = ask.num_answer * prices.token * candidate.corpus_share * CORPUS_GAIN
    return Cost(
        wait=wait_seconds(ask, candidate.load, prices),
        prompt=uncached * (prices.prompt_token + num_beside * prices.prompt_neighbour),
        saved=saved,
    )


def wait_seconds(ask: Ask, load: Load, prices: Prices) -> float:
    """What others cost this request: before it starts, and while it runs."""
    num_busy = load.num_running + load.num_waiting
    num_before = max(0, num_busy - load.num_slots + 1)
    in_queue = num_before * prices.request / load.num_slots
    reading = load.prompt_tokens_ahead * prices.prompt_token
    beside = min(num_busy, load.num_slots - 1) * prices.neighbour * ask.num_answer
    return in_queue + reading + beside


def ranking(ask: Ask, candidates: Sequence[Candidate], last: str = "") -> list[Candidate]:
    """All candidates, the one to ask first in front.

    Args:
        last: the replica that had this conversation before; among equals it keeps it.

    Equal are those that cost hardly more than the cheapest. Otherwise a hash of the conversation
    decides among them, which every router computes alike, and which spreads conversations.
    """
    costs = {one.name: cost_of(ask, one).total for one in candidates}
    best = min(costs.values(), default=0.0)
    limit = best + max(EQUAL_SECONDS, EQUAL_SHARE * abs(best))

    def place(one: Candidate) -> tuple[float, bool, int]:
        is_equal = costs[one.name] <= limit
        cost = best if is_equal else costs[one.name]
        return cost, not (is_equal and one.name == last), -_weight(ask.conversation, one.name)

    return sorted(candidates, key=place)


def _weight(conversation: str, name: str) -> int:
    digest = blake2b(f"{conversation}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
