"""Who guessed the tokens of an answer, as JSON: per token, and per step what it verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.text.utf8 import text_or_bytes
from headstart.types import Vocab
from headstart.types.request import TokenEvent


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step emitted; `number` counts the steps of an answer from 0."""

    number: int
    event: TokenEvent


def provenance(emissions: Sequence[Emission], vocab: Vocab) -> dict[str, Any]:
    """Tokens and steps of a request that asked for it.

    Positions in a draft start at 0; a chance is that the token and all before it are accepted.
    """
    return {
        "tokens": [token for one in emissions for token in _tokens(one, vocab)],
        "steps": [_step(one.event, vocab) for one in emissions],
    }


def _tokens(emission: Emission, vocab: Vocab) -> list[dict[str, Any]]:
    event = emission.event
    assert event.step is not None
    chances = event.step.chances
    return [
        {
            "id": token,
            "piece": text_or_bytes(vocab.token_bytes(token)),
            "source": source,
            "position": position if source else None,
            "chance": _rounded(chances[position]) if source else None,
            "step": emission.number,
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
