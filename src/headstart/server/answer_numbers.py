"""What an answer has beside its text, as JSON: timings, acceptance, log probabilities, provenance,
what each speculator would have yielded alone, and all of llama-server's format.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headstart.server.adapters import described_scales
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.structures.prefix import common_prefix_length
from headstart.text.utf8 import text_or_bytes
from headstart.types import DraftMode, Vocab
from headstart.types.request import (
    ProgressEvent,
    Request,
    RequestStats,
    SpeculativeParams,
    TokenEvent,
    TokenLogprob,
)
from headstart.types.speculation_stats import SpeculationStats

if TYPE_CHECKING:
    from headstart.server.dialect import Choice

Emission = tuple[int, TokenEvent]
"""The tokens of a step, and its index in the answer, from 0."""


def timings(stats: RequestStats) -> dict[str, Any]:
    """llama-server's timings: milliseconds and tokens per second."""
    num_prompt_read = stats.num_prompt - stats.num_cached
    result = {
        "cache_n": stats.num_cached,
        **_pace("prompt", num_prompt_read, stats.prompt_seconds),
        **_pace("predicted", stats.num_timed, stats.generation_seconds),
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
        "num_drafts_offered": stats.num_drafts_offered,
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
    total = RequestStats()
    for one in stats:
        total.add(one)
    return total


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


def legacy_logprobs(
    content: Sequence[dict[str, Any]], offset_of: Callable[[bytes], int]
) -> dict[str, Any]:
    """Log probabilities in OpenAI's legacy format for completions, four parallel lists."""
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content
        ],
        "text_offset": [offset_of(bytes(entry["bytes"])) for entry in content],
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
    survival = event.step.survival
    return [
        {
            "id": token,
            "piece": text_or_bytes(vocab.token_bytes(token)),
            "source": source,
            "position": position if source else None,
            "chance": _rounded(survival[position]) if source else None,
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
            for token, source, chance in zip(step.draft, step.sources, step.survival, strict=True)
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


def native_answer(
    call: Call, body: GenerationBody, choice: Choice, text: str, tokens: Sequence[int]
) -> dict[str, Any]:
    """The last object of a finished answer."""
    assert choice.finish
    stats, reason = choice.stats, choice.finish.reason
    return {
        "index": choice.index,
        "content": text,
        "tokens": list(tokens),
        "id_slot": stats.slot_id,
        "stop": True,
        "model": call.model.alias,
        "tokens_predicted": stats.num_emitted,
        "tokens_evaluated": stats.num_prompt,
        "generation_settings": generation_settings(
            choice.request, call.info.speculation, body, sorted(call.model.vocab.eog_ids)
        )
        | {"lora": described_scales(choice.request.adapters, call.info)},
        "prompt": choice.prompt.text,
        "has_new_line": "\n" in choice.text,
        "truncated": choice.finish.truncated,
        "stop_type": {"length": "limit", "cancelled": "none"}.get(reason, reason),
        "stopping_word": choice.finish.stopping_word,
        # currently in the slot; the last token is not decoded
        "tokens_cached": min(
            stats.num_prompt + max(0, stats.num_emitted - 1), call.info.context_size - 1
        ),
        "timings": timings(stats),
        "metrics": speculative_metrics(stats, is_whole=body.return_metrics),
    }


def generation_settings(
    request: Request,
    server_speculation: Mapping[str, Any],
    body: GenerationBody | None = None,
    eog_ids: Iterable[int] = (),
) -> dict[str, Any]:
    """The values that a request ran with, under llama-server's names.

    `server_speculation`: `WorkerInfo.speculation`; `eog_ids`: tokens banned by `ignore_eos`.
    """
    sampling = request.sampling
    settings = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    limit = -1 if request.max_tokens is None else request.max_tokens
    speculative = request.speculative
    return {
        # of no effect here
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "backend_sampling": False,
        "preserved_tokens": [],
        "reasoning_in_content": False,
        "chat_format": "peg-native",
        "generation_prompt": "",
        **settings,
        "logit_bias": [  # false for banned tokens, because JSON has no infinity
            {"token": token, "bias": value if math.isfinite(value) else False}
            for token, value in sampling.logit_bias.items()
        ]
        + [{"token": token, "bias": None} for token in eog_ids if sampling.ignore_eos],
        "max_tokens": limit,
        "n_predict": limit,
        "stop": [stop.decode("utf-8", "replace") for stop in request.stop],
        "n_indent": request.min_indent,
        "n_probs": request.num_logprobs or 0,
        "post_sampling_probs": request.post_sampling_probs,
        "grammar": "" if request.constraint is None else request.constraint.text,
        "grammar_lazy": request.constraint is not None and bool(request.constraint.triggers),
        "cache_prompt": request.cache_prompt,
        "n_cache_reuse": request.cache_reuse,
        "n_keep": request.num_keep,
        "n_discard": request.num_discard,
        "stream": body.stream if body else False,
        "timings_per_token": body.timings_per_token if body else False,
        "grammar_triggers": [
            {"type": 1, "value": trigger.decode("utf-8", "replace")}
            for trigger in (request.constraint.triggers if request.constraint else ())
        ],
        "reasoning_format": getattr(body, "reasoning_format", None) or "auto",
        "lora": [],
        "speculative.mode": None if speculative.mode is None else speculative.mode.value,
        "speculative.types": ",".join(_drafting(speculative, server_speculation)) or "none",
        "speculative.n_max": speculative.n_max,
        "speculative.n_min": speculative.n_min,
        "speculative.p_min": speculative.p_min,
    }


def _drafting(wish: SpeculativeParams, server: Mapping[str, Any]) -> Sequence[str]:
    """Names of the speculators that may draft for a request."""
    if wish.mode is DraftMode.OFF or 0 in (wish.n_max, server["n_max"]) or server["unusable"]:
        return ()
    return server["types"] if wish.types is None else wish.types
