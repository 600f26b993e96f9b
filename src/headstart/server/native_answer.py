"""An answer in llama-server's own form: of /completion, and as `__verbose` of other routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headstart.server.adapters import described_scales
from headstart.server.results import speculative_metrics, timings
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call, generation_settings

if TYPE_CHECKING:
    from headstart.server.dialect import Choice

STOP_TYPES = {"eos": "eos", "word": "word", "length": "limit", "cancelled": "none"}


def native_answer(
    call: Call, body: GenerationBody, choice: Choice, text: str, tokens: Sequence[int]
) -> dict[str, Any]:
    """The last object of an answer that is over."""
    assert choice.finish
    stats = choice.stats
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
        "stop_type": STOP_TYPES[choice.finish.reason],
        "stopping_word": choice.finish.stopping_word,
        # what the slot holds now; the last token is not decoded
        "tokens_cached": min(
            stats.num_prompt + max(0, stats.num_emitted - 1), call.info.context_size - 1
        ),
        "timings": timings(stats),
        "metrics": speculative_metrics(stats, is_whole=body.return_metrics),
    }
