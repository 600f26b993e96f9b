"""Log probabilities of a prompt's own tokens, for requests that ask how likely a text is."""

from __future__ import annotations

from headstart.sampling.logprobs import token_logprobs
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Logits
from headstart.types.request import PromptEvent, TokenLogprob


def score_prompt(
    active: ActiveRequest, logits: Logits, offset: int
) -> tuple[list[PromptEvent], int]:
    """The event for the rows of the prompt that were just decoded, and where the outputs go on.

    The prompt's last row is no such row: it tells of the answer. A request that was preempted
    reads its prompt again, and does not tell it twice.

    Args:
        logits, offset: of all outputs of the decode, and the first one of this request.
    """
    prompt, num_top = active.request.prompt, active.request.num_logprobs or 0
    num_rows = active.num_rows - (active.num_rows == active.num_pending)
    scores: list[TokenLogprob] = []
    for row in range(num_rows):
        following = active.num_decoded + row + 1
        if active.num_scored < following < len(prompt):
            token = int(prompt[following])
            of_row = token_logprobs(logits[offset + row], token, num_top)
            scores.append(TokenLogprob(token, *of_row))
            active.num_scored = following
    event = PromptEvent(active.request.request_id, tuple(scores))
    return [event] if scores else [], offset + num_rows
