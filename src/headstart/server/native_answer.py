"""An answer in llama-server's format, for /completion and as `__verbose` of other routes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headstart.server.adapters import described_scales
from headstart.server.answer_numbers import speculative_metrics, timings
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.types.request import Request

if TYPE_CHECKING:
    from headstart.server.dialect import Choice

# parameters of llama-server that have no effect here
OFF = {
    "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "backend_sampling": False, "preserved_tokens": [],
    "reasoning_in_content": False, "chat_format": "peg-native", "generation_prompt": "",
}  # fmt: skip


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
            choice.request, body, sorted(call.model.vocab.eog_ids)
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
    request: Request, body: GenerationBody | None = None, eog_ids: Iterable[int] = ()
) -> dict[str, Any]:
    """The values that a request ran with, under llama-server's names.

    `eog_ids`: tokens banned by `ignore_eos`.
    """
    sampling = request.sampling
    settings = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    limit = -1 if request.max_tokens is None else request.max_tokens
    speculative = request.speculative
    return {
        **OFF,
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
        "speculative.types": ",".join(speculative.types or ("none",)),
        "speculative.n_max": speculative.n_max,
        "speculative.n_min": speculative.n_min,
        "speculative.p_min": speculative.p_min,
    }
