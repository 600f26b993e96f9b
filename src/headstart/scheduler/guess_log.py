"""All guesses of a request's speculators, used or not, for what each alone would have given.

Kept where a request asks for that, and for every SAMPLE_EVERY-th of the others, so that the sums in
/metrics are there without anybody asking.

A model is asked only where control expects that to pay, and stops where it is unsure, so its drafts
say little of the rest of the text. So it reads the text of such a request as it is written, PIECE
tokens at a time, and tells what it would have picked at each place. That is about as dear as to
read as much of a prompt, and what it has read it need not read for a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.control.controller import Controller
from headstart.control.counterfactual import Guess, WrittenText
from headstart.scheduler.draft_plan import DraftPlan
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Draft, DraftRequest

SAMPLE_EVERY = 16  # requests: a sixteenth of about a microsecond a step and speculator
MOST_TOKENS = 4096  # of a text that are looked at: 10 to 20 ms at its end
PIECE = 16  # tokens of the text that a model reads at once
# tokens that a model may be behind where it is to read: one call where nobody asked
ANY, NEAR, NONE = 2**30, 256, -1


class GuessLog:
    """Of one request. Drafts are kept as they are, and compared with the text when it is over."""

    def __init__(self, most_behind: int) -> None:
        """most_behind: tokens that a model may have to read to tell what it would pick."""
        self._most_behind = most_behind
        self._drafts: dict[str, list[tuple[int, Sequence[int], float]]] = {}
        self._picks: dict[str, list[int]] = {}  # of models, from the second token of the text on
        self._silent: set[str] = set()  # models that cannot tell what they would pick

    def note(self, plan: DraftPlan, speculator: str, draft: Draft, *, is_model: bool) -> None:
        """A speculator was asked; it may have had no draft, but not be still reading."""
        if not draft.is_ready:
            return
        at, tokens, limit = plan.active.num_emitted, draft.tokens, 0.0
        if is_model:
            at += len(plan.proposal.tokens) if plan.continues else 0
            if draft.stopped_at is not None:  # it would have been the next one
                tokens = [*tokens, draft.stopped_at]
            elif len(tokens) < plan.allowance.max_tokens:
                limit = plan.allowance.min_confidence
        self._drafts.setdefault(speculator, []).append((at, tokens, limit))

    def follow(self, active: ActiveRequest, speculator: GuardedSpeculator, least: int) -> None:
        """Let a model read the text if so many tokens of it are new."""
        picks = self._picks.setdefault(speculator.name, [])
        start = active.num_prompt + 1 + len(picks)
        if len(active.tokens) - start < least or speculator.name in self._silent:
            return
        if len(picks) >= MOST_TOKENS:
            return
        if speculator.num_catch_up(active.slot_id, active.tokens) > self._most_behind:
            return
        choose = None if active.request.sampling.is_greedy else active.sampler.couple
        told = speculator.picks(
            DraftRequest(active.slot_id, active.tokens, 1, choose=choose), start
        )
        if told is None:
            self._silent.add(speculator.name)
        else:
            picks += told

    def compare(self, text: Sequence[int]) -> dict[str, list[Guess]]:
        """By speculator, how much of each guess this text agrees with."""
        return {
            name: [
                _guess(text, *draft) for draft in self._drafts.get(name, ()) if draft[0] < len(text)
            ]
            for name in self._drafts | self._picks
        }

    def right_picks(self, text: Sequence[int]) -> dict[str, list[bool]]:
        """By model, whether it would have picked the token of this text, from the second one on."""
        return {
            name: [a == b for a, b in zip(picks, text[1:], strict=False)]
            for name, picks in self._picks.items()
        }


class GuessLogs:
    """Of a worker: which requests have one, and what comes of it."""

    def __init__(self, controller: Controller, speculators: Sequence[GuardedSpeculator]) -> None:
        self._controller, self._num_begun = controller, 0
        self._models = [speculator for speculator in speculators if speculator.is_model]

    def begin(self, active: ActiveRequest) -> None:
        """The request begins to generate, or goes on after it had to wait."""
        self._num_begun += 1
        if active.guesses is not None:
            return
        if active.request.wants_counterfactual:
            active.guesses = GuessLog(ANY)
        elif self._num_begun % SAMPLE_EVERY == 1:  # the first one is not delayed by reading
            active.guesses = GuessLog(NEAR if self._num_begun > 1 else NONE)

    def follow(self, active: ActiveRequest, least: int = PIECE) -> None:
        """The text has grown, and the speculators know it."""
        if active.guesses is None or active.policy is None or active.legality is not None:
            return
        if active.num_dropped or active.policy.reason:
            return
        for model in self._models:
            if model.name in active.policy.types:
                active.guesses.follow(active, model, least)

    def conclude(self, active: ActiveRequest) -> None:
        """The text is whole: work out what others would have given."""
        if active.guesses is None or active.num_dropped:
            return
        self.follow(active, 1)
        start, limit = active.num_prompt, active.request.max_tokens
        tokens = active.tokens[start : start + MOST_TOKENS]
        text = WrittenText(len(tokens), start, limit, active.guesses.right_picks(tokens))
        active.counterfactual = self._controller.counterfactual(
            active.guesses.compare(tokens), text
        )


def _guess(text: Sequence[int], at: int, tokens: Sequence[int], limit: float) -> Guess:
    length = min(len(tokens), len(text) - at)
    right = 0
    while right < length and tokens[right] == text[at + right]:
        right += 1
    return Guess(at, length, right, limit)
