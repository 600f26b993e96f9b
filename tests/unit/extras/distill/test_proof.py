"""A tuned model is promoted if it is better on later conversations, and only then.

The models here are tables: what follows a token after a prompt. In these texts that depends on the
prompt and the tenant, and a table learns it by counting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.lib.curves import CostCurve

from headstart.extras.distill.acceptance import Outcomes, always_right, replay
from headstart.extras.distill.candidates import SUFFIX
from headstart.extras.distill.measure import Findings
from headstart.extras.distill.proof import Proof, prove
from headstart.extras.distill.texts import RecordedText, split, without_duplicates
from headstart.sampling.sampler import Sampler
from headstart.speculators import SPECULATORS, Speculator
from headstart.testing import FakeEngine
from headstart.types import Draft, DraftRequest
from headstart.types.sampling_params import SamplingParams

SIZE = 500
COST, ROUND_MS = CostCurve.parse("1:10,2:11,4:13,8:20,17:40").table(), 0.5


def texts_of(tenant: str, num: int, seed: int, noise: float = 0.25) -> list[RecordedText]:
    """Answers in which what follows a token depends on the prompt; some tokens are anything."""
    rules = np.random.default_rng(hash_of(tenant)).integers(1, SIZE, (4, SIZE))
    random, texts = np.random.default_rng(seed), []
    for number in range(num):
        kind, token = int(random.integers(4)), int(random.integers(1, SIZE))
        answer = [token]
        for _ in range(39):
            is_free = random.random() < noise
            token = int(random.integers(1, SIZE) if is_free else rules[kind, token])
            answer.append(token)
        texts.append(
            RecordedText(
                recorded=float(number),
                model="",
                tenant=tenant,
                prompt=[kind, int(random.integers(1, SIZE)), int(random.integers(1, SIZE))],
                answer=answer,
                sampling=SamplingParams(temperature=0.0),
                conversation=number,
            )
        )
    return texts


def hash_of(tenant: str) -> int:
    return sum(map(ord, tenant))


class Table(Speculator):
    """Counts what followed a token after a kind of prompt."""

    name = "table"
    is_model = True

    def __init__(self, texts: Sequence[RecordedText]) -> None:
        self._counts: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._kinds: dict[int, int] = {}
        for text in texts:
            for before, after in zip(text.answer, text.answer[1:], strict=False):
                self._counts[text.prompt[0], before][after] += 1

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        self._kinds[seq_id] = text[0]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(one) for one in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        found = self._counts.get((self._kinds[request.seq_id], request.tokens[-1]))
        if not found:
            return Draft(reason="never seen")
        token, count = found.most_common(1)[0]
        return Draft([token], [count / found.total()], self.name)


def follow(speculator: Speculator, texts, earlier=()) -> list[Outcomes]:
    engine = FakeEngine(SIZE)
    return replay(speculator, texts, lambda text: Sampler(text.sampling, engine, ()), 4, earlier)


BASE = texts_of("ours", 20, 9)  # knows a little


def untuned(later: Sequence[RecordedText], earlier, base=BASE) -> Findings:
    """What copies and the base model draft."""
    found = Findings.of(later, follow(SPECULATORS["suffix"](), later, earlier), COST)
    return found.with_model("base", follow(Table(base), later), ROUND_MS)


def judge(learned: Sequence[RecordedText], later: Sequence[RecordedText], found: Findings) -> Proof:
    tuned = found.with_model("tuned", follow(Table(learned), later), ROUND_MS)
    return prove(tuned, "base", "tuned")


@pytest.fixture(scope="module")
def traffic() -> tuple[list[RecordedText], list[RecordedText], Findings]:
    earlier, later = split(texts_of("ours", 300, 1))
    return earlier, later, untuned(later, earlier)


def test_a_model_that_learned_from_earlier_conversations_is_promoted(traffic) -> None:
    earlier, later, found = traffic
    verdict = judge(without_duplicates(earlier, later), later, found)
    assert verdict.refusal == ""
    assert verdict.facts["num_conversations"] == 90
    assert verdict.facts["gain"]["low"] > 0.5
    assert verdict.facts["ratio"]["low"] > 1.05


def test_a_model_that_learned_from_shuffled_pairs_is_not(traffic) -> None:
    earlier, later, found = traffic
    prompts = [earlier[i].prompt for i in np.random.default_rng(0).permutation(len(earlier))]
    shuffled = [replace(text, prompt=p) for text, p in zip(earlier, prompts, strict=True)]
    verdict = judge([*BASE, *shuffled], later, found)
    assert verdict.facts["gain"]["value"] > 0.0  # it learned some words all the same
    assert "too little" in verdict.refusal
    assert "may be chance" in judge(shuffled, later, found).refusal


def test_a_model_that_learned_from_another_tenant_is_not(traffic) -> None:
    _, later, found = traffic
    verdict = judge([*BASE, *texts_of("theirs", 210, 2)], later, found)
    assert "may be chance" in verdict.refusal


def test_what_is_also_in_the_test_is_not_learned_from(traffic) -> None:
    _, later, found = traffic
    again = [replace(text, recorded=-1.0, conversation=1000 + i) for i, text in enumerate(later)]
    passing = judge([*BASE, *again], later, found)
    assert passing.facts["gain"]["value"] > 1.0
    left = without_duplicates([*again, *BASE], later)
    assert left == BASE
    assert "may be chance" in judge(left, later, found).refusal


def test_a_model_that_only_copies_better_than_its_base_loses_to_copies() -> None:
    """The same texts come again: copies know them as well, at no cost."""
    few = texts_of("ours", 10, 1, noise=0.9)
    earlier = [replace(text, recorded=float(i), conversation=i) for i, text in enumerate(few * 10)]
    later = [
        replace(text, recorded=200.0 + i, conversation=200 + i, prompt=[*text.prompt, i])
        for i, text in enumerate(few * 2)
    ]
    verdict = judge(earlier, later, untuned(later, earlier))
    assert verdict.facts["gain"]["low"] > 0.0
    assert verdict.facts["best"].startswith(SUFFIX)
    assert "too little" in verdict.refusal


def test_nothing_is_trained_where_a_model_that_is_always_right_gains_too_little() -> None:
    later = texts_of("ours", 20, 1)
    copies, model = follow(SPECULATORS["suffix"](), later), follow(Table(BASE), later)

    def refusal(copies: Sequence[Outcomes], round_ms: float) -> str:
        found = Findings.of(later, copies, COST).with_model("base", model, round_ms)
        return found.bounded().refusal

    assert refusal(copies, ROUND_MS) == ""
    assert "would come 1.00 times as fast as by suffix" in refusal(copies, 100.0)
    right = [replace(always_right(len(text.answer) - 1), is_model=False) for text in later]
    assert "would come 1.00 times as fast as by suffix" in refusal(right, ROUND_MS)


def test_chance_promotes_nothing() -> None:
    """Two models that are equally good, on few conversations."""
    promoted = 0
    for seed in range(12):
        later = texts_of("ours", 20, 100 + seed)
        base, other = texts_of("ours", 40, 500 + seed), texts_of("ours", 40, 900 + seed)
        promoted += not judge(other, later, untuned(later, (), base)).refusal
    assert promoted == 0


def test_too_few_conversations_prove_nothing(traffic) -> None:
    earlier, later, _ = traffic
    few = later[:7]
    assert "are the least to judge by" in judge(earlier, few, untuned(few, earlier)).refusal
