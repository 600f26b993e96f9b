"""All guesses of a request's speculators, used or not, for what each alone would have given.

Kept where a request asks for that, and for every SAMPLE_EVERY-th of the others, so that the sums in
/metrics are there without anybody asking.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.control.controller import Controller
from headstart.control.counterfactual import Guess
from headstart.scheduler.draft_plan import DraftPlan
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Draft

SAMPLE_EVERY = 16  # requests: a sixteenth of about a microsecond a step and speculator
MOST_TOKENS = 4096  # of a text that are looked at: 10 to 20 ms at its end


class GuessLog:
    """Of one request. Drafts are kept as they are, and compared with the text when it is over."""

    def __init__(self) -> None:
        self._drafts: dict[str, list[tuple[int, Sequence[int], float]]] = {}

    def note(self, plan: DraftPlan, speculator: str, draft: Draft, *, is_model: bool) -> None:
        """A speculator was asked; it may have had no draft, but not be still reading."""
        if not draft.is_ready:
            return
        at, limit = plan.active.num_emitted, 0.0
        if is_model:
            at += len(plan.proposal.tokens) if plan.continues else 0
            limit = plan.allowance.min_confidence
        self._drafts.setdefault(speculator, []).append((at, draft.tokens, limit))

    def compare(self, text: Sequence[int]) -> dict[str, list[Guess]]:
        """By speculator, how much of each guess this text agrees with."""
        return {
            name: [_guess(text, *draft) for draft in drafts if draft[0] < len(text)]
            for name, drafts in self._drafts.items()
        }


class GuessLogs:
    """Of a worker: which requests have one, and what comes of it."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._num_begun = controller, 0

    def begin(self, active: ActiveRequest) -> None:
        """The request begins to generate, or goes on after it had to wait."""
        self._num_begun += 1
        is_sampled = self._num_begun % SAMPLE_EVERY == 1
        if active.guesses is None and (active.request.wants_counterfactual or is_sampled):
            active.guesses = GuessLog()

    def conclude(self, active: ActiveRequest) -> None:
        """The text is whole: work out what others would have given."""
        if active.guesses is not None:
            start = active.num_prompt
            text = active.tokens[start : start + MOST_TOKENS]
            active.counterfactual = self._controller.counterfactual(
                active.guesses.compare(text), active.num_prompt, len(text)
            )


def _guess(text: Sequence[int], at: int, tokens: Sequence[int], limit: float) -> Guess:
    length = min(len(tokens), len(text) - at)
    right = 0
    while right < length and tokens[right] == text[at + right]:
        right += 1
    return Guess(at, length, right, limit)
