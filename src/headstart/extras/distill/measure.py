"""`headstart distill measure`: the value of each drafter on the later conversations, at this
machine's prices, and the maximum possible.

Every drafter gets the best of the same rules, chosen on the same texts: this models control, which
finds lengths itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf
from typing import Any

import numpy as np

from headstart.control.cost import CostTable
from headstart.extras.bench.comparison import OFF
from headstart.extras.bench.report import table_head, table_row
from headstart.extras.distill.acceptance import (
    DraftRule,
    Outcomes,
    Walk,
    always_right,
    walk,
)
from headstart.extras.distill.candidates import SUFFIX
from headstart.extras.distill.texts import RecordedText, counts

LEAST_GAIN = 1.1  # of a draft model that is always right, over the best without; less is too little
SHOWN = (1, 2, 4, 8)  # positions


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting, and its result for each text."""

    rule: DraftRule | None
    walks: list[Walk]
    survival: tuple[float, ...] = ()  # at SHOWN, of a drafter by itself

    @property
    def num_tokens(self) -> int:
        return sum(one.num_tokens for one in self.walks)

    @property
    def rate(self) -> float:
        """Tokens per second of decoding."""
        return 1000.0 * self.num_tokens / sum(one.milliseconds for one in self.walks)

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per step, >= 1."""
        return self.num_tokens / sum(one.num_steps for one in self.walks)

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "rule": None if self.rule is None else asdict(self.rule),
            "tokens_per_second": self.rate,
            "acceptance_length": self.acceptance_length,
            "draft_n": sum(one.num_drafted for one in self.walks),
            "draft_n_accepted": sum(one.num_accepted for one in self.walks),
            "accepted_at": dict(zip(map(str, SHOWN), self.survival, strict=False)),
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """The results on some texts."""

    texts: Sequence[RecordedText]
    cost: CostTable  # of the target's steps
    suffix: Sequence[Outcomes]
    arms: Mapping[str, Arm]
    models: Mapping[str, tuple[Sequence[Outcomes], float]]  # and milliseconds of their tokens
    not_used: Mapping[str, str]  # draft models that cannot be replayed, and why
    most: float = inf  # times the best arm, of copies and a draft model that is always right

    @classmethod
    def of(
        cls, texts: Sequence[RecordedText], suffix: Sequence[Outcomes], cost: CostTable
    ) -> Findings:
        """Results without drafts and with copies."""
        off = Arm(None, [walk(text, (), DraftRule(0), cost) for text in texts])
        arms = {OFF: off, SUFFIX: best_arm(texts, [suffix], cost)}
        return cls(texts, cost, suffix, arms, {}, {})

    def with_model(self, name: str, model: Sequence[Outcomes], round_ms: float) -> Findings:
        """Add a draft model, alone and after copies; `round_ms` is the time of its token."""
        ways = {name: [model], f"{SUFFIX}, {name}": [self.suffix, model]}
        arms = {by: best_arm(self.texts, way, self.cost, round_ms) for by, way in ways.items()}
        models = {**self.models, name: (model, round_ms)}
        return replace(self, arms={**self.arms, **arms}, models=models)

    def bounded(self) -> Findings:
        """Add what a draft model could gain that is always right and as cheap as the cheapest."""
        least = min((ms for _, ms in self.models.values()), default=0.0)
        right = [always_right(len(text.answer) - 1) for text in self.texts]
        ways = [right], [self.suffix, right]
        bound = max(best_arm(self.texts, way, self.cost, least).rate for way in ways)
        return replace(self, most=max(1.0, bound / self.arms[self.best].rate))  # or never asked

    @property
    def best(self) -> str:
        """The name of the fastest arm."""
        return max(self.arms, key=lambda name: self.arms[name].rate)

    @property
    def refusal(self) -> str:
        """The reason why training cannot pay; "" if it may."""
        if self.most >= LEAST_GAIN:
            return ""
        return (
            f"no draft model of this size can pay here: if all its tokens were right, answers "
            f"would come {self.most:.2f} times as fast as by {self.best}, and {LEAST_GAIN} is the "
            "least worth having"
        )

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "texts": counts(self.texts),
            "arms": {name: arm.describe() for name, arm in self.arms.items()},
            "most": self.most,
            "not_used": dict(self.not_used),
            "refusal": self.refusal,
        }

    def report(self) -> Iterator[str]:
        """Lines to print."""
        found = counts(self.texts)
        yield (
            f"{found['tokens']} tokens of {found['texts']} answers in the {found['conversations']} "
            "later conversations"
        )
        yield ""
        first = [f"first {n} right" for n in SHOWN]
        yield table_head("drafts by", "tokens a step", *first, "tokens/s", "x off")
        off = self.arms[OFF].rate
        for name, arm in self.arms.items():
            at = [f"{share:.0%}" for share in arm.survival] or [""] * len(SHOWN)
            yield table_row(name, arm.acceptance_length, *at, f"{arm.rate:.1f}", arm.rate / off)
        yield ""
        yield f"if every token of a draft model were right: {self.most:.2f} x {self.best}"
        yield from (f"{name} is not compared: {why}" for name, why in self.not_used.items())
        if self.refusal:
            yield self.refusal


def best_arm(
    texts: Sequence[RecordedText],
    drafters: Sequence[Sequence[Outcomes]],
    cost: CostTable,
    round_ms: float = 0.0,
) -> Arm:
    """The rule with which these drafters are fastest; `round_ms` is as for `walk`."""
    by_text = [list(row) for row in zip(*drafters, strict=True)]
    has_text, has_model = (
        any(one.is_model == kind for one in by_text[0]) for kind in (False, True)
    )
    survival: tuple[float, ...] = ()
    if len(drafters) == 1:
        accepted = np.concatenate([one.accepted for one in drafters[0]])
        survival = tuple(float(np.mean(accepted >= length)) for length in SHOWN)
    best: Arm | None = None
    for length, expected, score in product(
        (1, 2, 3, 4, 6, 8, 12, 16),
        (0.5, 1.0, 2.0) if has_text else (0.0,),
        (0.0, 0.4, 0.7) if has_model else (0.0,),
    ):
        rule = DraftRule(length, expected, score)
        walks = [
            walk(text, own, rule, cost, round_ms) for text, own in zip(texts, by_text, strict=True)
        ]
        arm = Arm(rule, walks, survival)
        if best is None or arm.rate > best.rate:
            best = arm
    assert best is not None
    return best
