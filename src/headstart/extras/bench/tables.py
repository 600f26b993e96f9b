"""Results of a comparison as Markdown tables, sentences and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headstart.extras.bench.comparison import (
    BY_HAND,
    OFF,
    OTHER_SERVER,
    Cell,
    Score,
    Scores,
    bases,
    own_arm,
)
from headstart.extras.bench.report import MeanRatio, table_head, table_row

# before the ratio: the arm, and its speed
COLUMNS: Mapping[str, Sequence[str]] = {
    OFF: (), BY_HAND: (BY_HAND,), OTHER_SERVER: (OTHER_SERVER, "tokens/s"),
}  # fmt: skip


def tables(scores: Scores) -> str:
    """A table of speeds, a table of their causes, and the verdicts."""
    arms = next(iter(scores.values()))
    own, heads = own_arm(arms), ["workload", "temp", "users"]
    heads.append(f"{own}, tokens/s")
    for base in bases(arms):
        heads += [*COLUMNS[base], f"{own} / {base}"]
    lines = [table_head(*heads, "first token, ms", "longest wait, ms")]
    lines += [table_row(*_about(cell), *_speeds(by_arm)) for cell, by_arm in scores.items()]
    lines += ["", table_head(
        "workload", "temp", "users", "prompts, tokens/s", "one answer, tokens/s",
        "tokens a step", "rows a token", "accepted of drafted", "time in target, drafting, rest",
    )]  # fmt: skip
    lines += [table_row(*_about(cell), *_reasons(by_arm[own])) for cell, by_arm in scores.items()]
    return "\n".join([*lines, "", *verdicts(scores)])


def _about(cell: Cell) -> tuple[object, ...]:
    return (cell.workload, f"{cell.temperature:g}", cell.users)


def _speeds(scores: Mapping[str, Score]) -> Iterator[object]:
    score = scores[own_arm(scores)]
    yield f"{score.rate:.1f}"
    for base, arm in bases(scores).items():
        yield from (arm, f"{scores[arm].rate:.1f}")[: len(COLUMNS[base])]
        yield score.relative_to(scores[arm])
    yield f"{1000 * np.quantile([one.first_seconds for one in score.answers], 0.5):.0f}"
    yield f"{1000 * np.quantile([one.longest_wait for one in score.answers], 0.99):.0f}"


def _reasons(score: Score) -> Iterator[object]:
    yield f"{score.read_rate:.0f}" if score.read_rate else "-"
    yield f"{score.written_rate:.1f}"
    yield from (score.tokens_per_step, score.rows_per_token)
    yield f"{score.num_accepted}/{score.num_drafted}"
    yield ", ".join(f"{share:.0%}" for share in score.shares.values()) or "-"


def verdicts(scores: Scores) -> Iterator[str]:
    """A sentence for each arm that auto, or the only arm, is compared with."""
    arms = next(iter(scores.values()))
    own = own_arm(arms)
    for base in bases(arms):
        ratios = [one[own].relative_to(one[bases(one)[base]]) for one in scores.values()]
        mean = MeanRatio.of_means(ratios)
        slower = sum(ratio.verdict == "slower" for ratio in ratios)
        yield (
            f"{own} / {base}: {mean} on average: {mean.verdict}; slower in {slower} of "
            f"{len(ratios)} lines, by more than twice their error"
        )


def facts(scores: Scores) -> list[dict[str, Any]]:
    """Each cell with its arms, JSON-ready; "relative" is to the first arm."""
    return [
        {
            **cell._asdict(),
            "own": own_arm(by_arm),
            "best_by_hand": bases(by_arm).get(BY_HAND),
            "best_other": bases(by_arm).get(OTHER_SERVER),
            "arms": {
                name: _facts(score, next(iter(by_arm.values()))) for name, score in by_arm.items()
            },
        }
        for cell, by_arm in scores.items()
    ]


def _facts(score: Score, first: Score) -> dict[str, Any]:
    return {
        "tokens_per_second": score.rate,
        "rates": score.rates,
        "relative": score.relative_to(first)._asdict(),
        "first_token_seconds": [one.first_seconds for one in score.answers],
        "longest_wait_seconds": [one.longest_wait for one in score.answers],
        "prompt_tokens_per_second": score.read_rate,
        "answer_tokens_per_second": score.written_rate,
        "draft_n": score.num_drafted,
        "draft_n_accepted": score.num_accepted,
        "tokens_per_step": score.tokens_per_step,
        "rows_per_token": score.rows_per_token,
        "shares": score.shares,
        "acceptance": score.acceptance,
    }
