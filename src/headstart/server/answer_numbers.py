"""Numbers of an answer as JSON: timings, acceptance, log probabilities, provenance, and what
each speculator would have yielded alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headstart.structures.prefix import common_prefix_length
from headstart.text.utf8 import CharCounter, text_or_bytes
from headstart.types import Vocab
from headstart.types.request import ProgressEvent, RequestStats, TokenEvent, TokenLogprob
from headstart.types.speculation_stats import SpeculationStats

Emission = tuple[int, TokenEvent]
"""The tokens of a step, and its index in the answer, from 0."""


def timings(stats: RequestStats) -> dict[str, Any]:
    """llama-server's timings: milliseconds and tokens per second."""
    num_prompt_read = stats.num_prompt - stats.num_cached
    result = {
        "cache_n": stats.num_cached,
        **_pace("prompt", num_prompt_read, stats.prompt_seconds),
        # timed from the first token on
        **_pace("predicted", max(0, stats.num_emitted - 1), stats.generation_seconds),
        "predicted_n": stats.num_emitted,
    }
    if num_drafted := stats.drafts.num_drafted:
        result |= {"draft_n": num_drafted, "draft_n_accepted": stats.drafts.num_accepted}
    if stats.num_near_ties:
        result["near_ties"] = stats.num_near_ties
    return result


def reading_times(progress: ProgressEvent) -> dict[str, Any]:
    """The timings of a prompt that is being processed."""
    has_begun = progress.num_processed > progress.num_cached
    so_far = RequestStats(
        num_prompt=progress.num_processed,
        num_cached=progress.num_cached,
        prompt_seconds=progress.seconds if has_begun else 0.0,
    )
    return timings(so_far)


def _pace(name: str, num_tokens: int, seconds: float) -> dict[str, float]:
    milliseconds = seconds * 1000
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / num_tokens if num_tokens else 0.0,
        f"{name}_per_second": num_tokens / seconds if seconds > 0 else 0.0,
    }


def speculative_metrics(stats: RequestStats, *, is_whole: bool) -> dict[str, Any]:
    """Acceptance of an answer under the names of vLLM and AIPerf; `is_whole` adds speculators and
    reasons.
    """
    drafts, num_drafted = stats.drafts, stats.drafts.num_drafted
    rate = drafts.num_accepted / num_drafted if num_drafted else 0.0
    metrics = {
        "mean_acceptance_length": round(stats.acceptance_length, 3),
        "draft_acceptance_rate": round(rate, 4),
        "acceptance_histogram": list(drafts.accepted_histogram),
        "num_spec_steps": drafts.num_drafts,
        "num_draft_tokens": num_drafted,
        "num_accepted_draft_tokens": drafts.num_accepted,
    }
    if is_whole:
        by_speculator = {name: draft_counts(one) for name, one in stats.by_speculator.items()}
        metrics |= {
            "num_steps": stats.num_steps,
            "by_speculator": by_speculator,
            "reasons_not_drafted": dict(drafts.reasons),
        }
    return {"speculative_decoding": metrics}


def draft_counts(stats: SpeculationStats) -> dict[str, Any]:
    """Counts of one speculator, with the same names in answers, /slots and /props."""
    return {
        "num_calls": stats.num_calls,
        "num_drafts_offered": stats.num_offered,
        "num_drafts": stats.num_drafts,
        "num_drafts_accepted": stats.num_drafts_accepted,
        "num_draft_tokens": stats.num_drafted,
        "num_accepted_draft_tokens": stats.num_accepted,
        "num_rows_wasted": stats.num_rows_wasted,
        "draft_tokens_by_position": stats.drafted_by_position,
        "accepted_draft_tokens_by_position": stats.accepted_by_position,
        "reasons_not_drafted": dict(stats.reasons),
    }


def sum_stats(stats: Sequence[RequestStats]) -> RequestStats:
    """The sum over the choices of a call; times add up too."""
    if len(stats) == 1:
        return stats[0]
    by_speculator: dict[str, SpeculationStats] = {}
    for one in stats:
        for name, drafts in one.by_speculator.items():
            by_speculator[name] = by_speculator.get(name, SpeculationStats()) + drafts
    numbers = [one.name for one in fields(RequestStats) if one.default == 0]
    return RequestStats(
        drafts=sum((one.drafts for one in stats), SpeculationStats()),
        by_speculator=by_speculator,
        **{name: sum(getattr(one, name) for one in stats) for name in numbers},
    )


def token_probabilities(
    logprobs: Sequence[TokenLogprob], vocab: Vocab, *, is_post_sampling: bool
) -> list[dict[str, Any]]:
    """An entry per emitted token with its alternatives; as logarithms only before sampling."""
    name, top_name = ("prob", "top_probs") if is_post_sampling else ("logprob", "top_logprobs")

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = vocab.token_bytes(token)
        # float32's lowest, because JSON has no -infinity
        value = math.exp(logprob) if is_post_sampling else max(logprob, -3.4028234663852886e38)
        return {
            "id": token,
            "token": data.decode("utf-8", "replace"),
            "bytes": list(data),
            name: value,
        }

    return [
        {
            **entry(one.token, one.logprob),
            top_name: [entry(token, logprob) for token, logprob in one.alternatives()],
        }
        for one in logprobs
    ]


def legacy_logprobs(content: Sequence[dict[str, Any]], before: CharCounter) -> dict[str, Any]:
    """Log probabilities in OpenAI's legacy format for completions, four parallel lists.

    `before` counts the text in front of them, and then these tokens too.
    """
    offsets = []
    for entry in content:
        offsets.append(before.num_chars)
        before.add(bytes(entry["bytes"]))
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content
        ],
        "text_offset": offsets,
    }


def provenance(emissions: Sequence[Emission], vocab: Vocab) -> dict[str, Any]:
    """Which speculator drafted each token, and what each step verified.

    Positions in a draft start at 0; `chance` is that of the token and all before it being accepted.
    """
    return {
        "tokens": [token for number, event in emissions for token in _tokens(number, event, vocab)],
        "steps": [_step(event, vocab) for _, event in emissions],
    }


def _tokens(number: int, event: TokenEvent, vocab: Vocab) -> list[dict[str, Any]]:
    assert event.step is not None
    chances = event.step.chances
    return [
        {
            "id": token,
            "piece": text_or_bytes(vocab.token_bytes(token)),
            "source": source,
            "position": position if source else None,
            "chance": _rounded(chances[position]) if source else None,
            "step": number,
        }
        for position, (token, source) in enumerate(zip(event.tokens, event.sources, strict=True))
    ]


def _step(event: TokenEvent, vocab: Vocab) -> dict[str, Any]:
    step = event.step
    assert step is not None
    return {
        "rows": 1 + len(step.draft),
        "rows_wasted": len(step.draft) - sum(map(bool, event.sources)),
        "target_ms": round(step.target_ms, 3),
        "draft_ms": round(step.draft_ms, 3),
        "draft": [
            {
                "id": token,
                "piece": text_or_bytes(vocab.token_bytes(token)),
                "source": source,
                "chance": _rounded(chance),
            }
            for token, source, chance in zip(step.draft, step.sources, step.chances, strict=True)
        ],
    }


def _rounded(chance: float | None) -> float | None:
    return None if chance is None else round(chance, 4)


def counterfactual(answers: Sequence[Sequence[Emission]]) -> dict[str, Any]:
    """Steps and accepted tokens of each speculator on its own, for answers with known provenance.

    Offers are known only at the starts of actual steps. If a step of the speculator alone would
    start elsewhere, the newest offer that still agrees with the text is continued; without one, the
    step yields one token. So the result is a lower bound, the tighter the more often the speculator
    was asked. O(tokens), including those of the offers.
    """
    sums: dict[str, list[int]] = {}  # offers, tokens, steps, accepted
    for emissions in answers:
        text, right = _rights(emissions)
        for name, ends in right.items():
            found = (len(ends), len(text), *_replay(len(text), ends))
            sums[name] = [a + b for a, b in zip(sums.get(name, (0,) * 4), found, strict=True)]
    return {
        name: {
            "offers": offers,
            "steps": steps,
            "accepted": accepted,
            "mean_acceptance_length": round(tokens / steps, 3),
        }
        for name, (offers, tokens, steps, accepted) in sums.items()
    }


def _rights(emissions: Sequence[Emission]) -> tuple[list[int], dict[str, dict[int, int]]]:
    """The text; and by speculator, start and end of the correct part of each offer."""
    text = [token for _, event in emissions for token in event.tokens]
    right: dict[str, dict[int, int]] = {}
    start = 0
    for _, event in emissions:
        for name, tokens in event.step.offers if event.step else ():
            num_right = common_prefix_length(list(tokens), text[start : start + len(tokens)])
            right.setdefault(name, {}).setdefault(start, start + num_right)
        start += len(event.tokens)
    return text, right


def _replay(num_tokens: int, ends: Mapping[int, int]) -> tuple[int, int]:
    """Steps and accepted tokens; `ends`: end of the correct part, by start, in order."""
    at = num_steps = num_accepted = reach = 0
    offers = iter([*ends.items(), (num_tokens, num_tokens)])
    start, end = next(offers)
    while at < num_tokens:
        while start <= at:
            if end >= at:
                reach = end
            start, end = next(offers)
        accepted = max(0, reach - at)
        num_steps, num_accepted, at = num_steps + 1, num_accepted + accepted, at + accepted + 1
    return num_steps, num_accepted
