"""Replays a speculator over recorded texts and counts how much of its drafts was right.

The next token is argmax(log p + noise) with known noise, regardless of drafts, so a draft token is
right if it equals the recorded token: the target need not run. A speculator is asked after every
token of an answer, through its contract. A model is asked for one token at a time: its draft of k
tokens is right as far as its picks after the true text are, so these cover all lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.control.cost import CostTable
from headstart.extras.distill.texts import RecordedText
from headstart.sampling.sampler import Sampler
from headstart.speculators import Speculator
from headstart.structures.prefix import common_prefix_length
from headstart.types import Draft, DraftRequest

LONGEST = 16  # draft tokens


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes for one text: row i is for the draft after token i of the answer, except the last.

    A model's draft has no end of its own: it offers LONGEST, and `scores` are per token.
    """

    offered: NDArray[np.int32]  # tokens
    accepted: NDArray[np.int32]
    scores: NDArray[np.float32]  # of a text: accepted tokens that it expects; of a model: see above
    is_model: bool


def replay(
    speculator: Speculator,
    texts: Sequence[RecordedText],
    make_sampler: Callable[[RecordedText], Sampler],
    width: int = 1,
    earlier: Sequence[RecordedText] = (),
) -> list[Outcomes]:
    """Replay a speculator over texts, `width` at a time, after the `earlier` ones.

    Args:
        make_sampler: of the target's vocabulary.
    """
    for text in earlier if not speculator.is_model else ():
        speculator.begin(0, [*text.prompt, *text.answer[:1]], text.tenant)
        speculator.accept(0, text.answer[1:], 0)
        speculator.end(0)
    outcomes: list[Outcomes] = []
    for start in range(0, len(texts), width):
        group = list[_Follower]()
        for seq_id, text in enumerate(texts[start : start + width]):
            tokens, sampler = [*text.prompt, *text.answer[:1]], make_sampler(text)
            sampler.read(tokens)
            speculator.begin(seq_id, tokens, text.tenant)
            group.append(_Follower(seq_id, text, sampler, tokens, []))
        while active := [one for one in group if one.is_open]:
            for one, draft in zip(active, _ask(speculator, active), strict=True):
                token, num_right = one.take(draft)
                speculator.accept(one.seq_id, [token], min(num_right, 1))
        for one in group:
            speculator.end(one.seq_id)
            outcomes.append(one.outcomes(is_model=speculator.is_model))
    return outcomes


def _ask(speculator: Speculator, active: Sequence[_Follower]) -> list[Draft]:
    """A draft for each; a model that reads a long prompt in parts is asked again."""
    length = 1 if speculator.is_model else LONGEST
    drafts = speculator.propose([one.request(length) for one in active])
    for place, one in enumerate(active):
        left = speculator.num_catch_up(one.seq_id, one.tokens)
        while not drafts[place].is_ready:
            (drafts[place],) = speculator.propose([one.request(length)])
            before, left = left, speculator.num_catch_up(one.seq_id, one.tokens)
            if left >= before:  # it cannot, for instance because its context is full
                break
    return drafts


@dataclass(slots=True)
class _Follower:
    """A text during its replay."""

    seq_id: int
    text: RecordedText
    sampler: Sampler  # has read `tokens`
    tokens: list[int]  # of prompt and answer so far
    rows: list[tuple[int, int, float]]  # offered, right, expected

    @property
    def is_open(self) -> bool:
        return len(self.rows) + 1 < len(self.text.answer)

    def request(self, max_tokens: int) -> DraftRequest:
        choose = None if self.text.sampling.is_greedy else self.sampler.couple
        return DraftRequest(
            self.seq_id, self.tokens, max_tokens, choose=choose, namespace=self.text.tenant
        )

    def take(self, draft: Draft) -> tuple[int, int]:
        """Compare a draft with the recorded text; returns the next token and the number right."""
        answer, place = self.text.answer, len(self.rows) + 1
        num_right = common_prefix_length(list(draft.tokens), list(answer[place : place + LONGEST]))
        scores = [min(1.0, score) for score in draft.confidence]
        self.rows.append((len(draft.tokens), num_right, float(np.cumprod(scores).sum())))
        self.tokens.append(answer[place])
        self.sampler.read(answer[place : place + 1])
        return answer[place], num_right

    def outcomes(self, *, is_model: bool) -> Outcomes:
        """The outcomes at all positions."""
        rows = np.array(self.rows, np.float32).reshape(-1, 3)
        offered, accepted = rows[:, 0].astype(np.int32), rows[:, 1].astype(np.int32)
        if is_model:
            accepted = _runs(accepted == 1)
            offered = np.where(offered > 0, LONGEST, 0).astype(np.int32)
        return Outcomes(offered, accepted, rows[:, 2], is_model)


def _runs(is_right: NDArray[np.bool_]) -> NDArray[np.int32]:
    """For each position, the number of consecutive right tokens from it on."""
    runs = np.zeros(len(is_right) + 1, np.int32)
    for place in range(len(is_right) - 1, -1, -1):
        runs[place] = runs[place + 1] + 1 if is_right[place] else 0
    return runs[:-1]


def always_right(num_tokens: int) -> Outcomes:
    """A draft model whose picks are the text's next `num_tokens` tokens."""
    left = np.arange(num_tokens, 0, -1, dtype=np.int32)
    longest = np.full(num_tokens, LONGEST, np.int32)
    return Outcomes(longest, left, np.ones(num_tokens, np.float32), is_model=True)


@dataclass(frozen=True, slots=True)
class DraftRule:
    """When to draft, and how many tokens; control finds this itself, here it is searched."""

    longest: int
    least_expected: float = 0.0  # a text's draft that expects less is left to the model
    least_score: float = 0.0  # a model stops before a token of a lower score


@dataclass(frozen=True, slots=True)
class Walk:
    """The cost and tokens of drafting one text with a rule."""

    num_tokens: int  # emitted in steps; the first token comes with the prompt
    num_steps: int
    num_drafted: int
    num_accepted: int
    milliseconds: float


def walk(
    text: RecordedText,
    drafters: Sequence[Outcomes],
    rule: DraftRule,
    cost: CostTable,
    round_ms: float = 0.0,
) -> Walk:
    """Simulate the steps of a text; text speculators come before models. Copies take next to
    nothing, and each token of a model `round_ms`.
    """
    offers = [list(_offers(one, rule)) for one in drafters]
    place, last, steps, drafted, num_accepted, ms = 0, len(text.answer) - 1, 0, 0, 0, 0.0
    while place < last:
        length, right, by_model = 0, 0, 0
        for one, rows in zip(drafters, offers, strict=True):
            length, right = rows[place]
            if length:
                by_model = length if one.is_model else 0
                break
        curve = cost.curve(1 + length, len(text.prompt) + place, can_fill=True)
        ms += curve[1 + length] + by_model * round_ms
        steps, drafted, num_accepted = steps + 1, drafted + length, num_accepted + right
        place += right + 1
    return Walk(max(0, last), steps, drafted, num_accepted, ms)


def _offers(outcomes: Outcomes, rule: DraftRule) -> Iterator[tuple[int, int]]:
    """(draft tokens, of them right) at each place."""
    if not outcomes.is_model:
        wanted = outcomes.scores >= rule.least_expected
        offered = np.minimum(outcomes.offered, rule.longest) * wanted
        right = np.minimum(outcomes.accepted, offered)
    else:
        # sure up to this point; after a wrong token the model's picks are unknown and assumed to
        # continue
        sure = _runs(outcomes.scores >= rule.least_score)
        right = np.minimum(np.minimum(outcomes.accepted, sure), rule.longest)
        offered = np.where(sure <= outcomes.accepted, sure, outcomes.offered)
        offered = np.minimum(offered, rule.longest)
    yield from zip(offered.tolist(), right.tolist(), strict=True)
