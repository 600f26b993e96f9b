"""What a comparison comes to: Markdown tables, verdicts, JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headstart.extras.bench.comparison import (
    AUTO,
    OFF,
    Cell,
    Score,
    Scores,
    best_by_hand,
    best_other,
)
from headstart.extras.bench.report import MeanRatio, quantile, table_head, table_row


def own_arm(scores: Mapping[str, Score]) -> str:
    """The arm that tables are about: auto, or the only one."""
    return AUTO if AUTO in scores else next(iter(scores))


def tables(scores: Scores) -> str:
    """Speeds, where they come from, and what all lines come to."""
    arms = next(iter(scores.values()))
    own, other = own_arm(arms), best_other(arms)
    heads = ["workload", "temp", "users", f"{own}, tokens/s"]
    if own == AUTO:
        heads += [f"{AUTO} / {OFF}", "best by hand", f"{AUTO} / best by hand"]
    if other is not None:
        heads += ["best other", "tokens/s", f"{own} / best other"]
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
    own = own_arm(scores)
    score, other = scores[own], best_other(scores)
    yield f"{score.rate:.1f}"
    if own == AUTO:
        best = best_by_hand(scores)
        yield from (score.relative_to(scores[OFF]), best, score.relative_to(scores[best]))
    if other is not None:
        yield from (other, f"{scores[other].rate:.1f}", score.relative_to(scores[other]))
    yield f"{1000 * quantile(score.first_seconds, 0.5):.0f}"
    yield f"{1000 * quantile(score.longest_waits, 0.99):.0f}"


def _reasons(score: Score) -> Iterator[object]:
    yield f"{score.read_rate:.0f}" if score.read_rate else "-"
    yield f"{score.written_rate:.1f}"
    yield from (score.tokens_per_step, score.rows_per_token)
    yield f"{score.num_accepted}/{score.num_drafted}"
    yield ", ".join(f"{share:.0%}" for share in score.shares.values()) or "-"


def verdicts(scores: Scores) -> Iterator[str]:
    """A sentence for each arm that auto, or the only arm, is compared with."""
    for base, ratios in ratios_to(scores).items():
        mean = MeanRatio.of_means(ratios)
        slower = sum(ratio.verdict == "slower" for ratio in ratios)
        own = own_arm(next(iter(scores.values())))
        yield (
            f"{own} / {base}: {mean} on average: {mean.verdict}; slower in {slower} of "
            f"{len(ratios)} lines, by more than twice their error"
        )


def ratios_to(scores: Scores) -> dict[str, list[MeanRatio]]:
    """Of auto, or the only arm, in each cell, by what it is compared with."""
    found: dict[str, list[MeanRatio]] = {}
    for by_arm in scores.values():
        own = own_arm(by_arm)
        bases = {OFF: OFF, "best by hand": best_by_hand(by_arm)} if own == AUTO else {}
        if (other := best_other(by_arm)) is not None:
            bases["best other"] = other
        for base, arm in bases.items():
            found.setdefault(base, []).append(by_arm[own].relative_to(by_arm[arm]))
    return found


def facts(scores: Scores) -> list[dict[str, Any]]:
    """Each cell with its arms, JSON-ready; "relative" is to the first arm."""
    return [
        {
            **cell._asdict(),
            "own": own_arm(by_arm),
            "best_by_hand": best_by_hand(by_arm),
            "best_other": best_other(by_arm),
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
        "first_token_seconds": score.first_seconds,
        "longest_wait_seconds": score.longest_waits,
        "prompt_tokens_per_second": score.read_rate,
        "answer_tokens_per_second": score.written_rate,
        "draft_n": score.num_drafted,
        "draft_n_accepted": score.num_accepted,
        "tokens_per_step": score.tokens_per_step,
        "rows_per_token": score.rows_per_token,
        "shares": score.shares,
        "acceptance": score.acceptance,
    }
