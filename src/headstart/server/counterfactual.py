"""What each speculator would have yielded alone, from answers with known provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.server.answer_numbers import Emission
from headstart.structures.prefix import common_prefix_length


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
