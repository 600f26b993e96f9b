"""Limits on thoughts where a body, not a chat template, says how they are marked."""

from __future__ import annotations

from headstart.server.conversation import reasoning_budget
from headstart.server.errors import ApiError
from headstart.server.limits import check_length
from headstart.server.model import ServedModel
from headstart.server.schemas import ChatBody, GenerationBody
from headstart.types.thought_limit import ThoughtLimit

MAX_TAG = 256  # characters


def tagged_thoughts(body: GenerationBody, prompt: str, model: ServedModel) -> ThoughtLimit | None:
    """When the thoughts of an answer to this prompt are ended; None if nothing limits them.

    Raises:
        ApiError: tags without which the others say nothing.
    """
    if isinstance(body, ChatBody):  # its template marks them
        return None
    start, ends = body.reasoning_budget_start_tag or "", _end_tags(body)
    if not (start or ends):
        return None
    if not (start and ends):
        there, missing = ("start_tag", "end_tags") if start else ("end_tags", "start_tag")
        raise ApiError(
            400,
            f"reasoning_budget_{there} says nothing without reasoning_budget_{missing}; send both",
        )
    budget = reasoning_budget(body, model.chat)
    if budget < 0:
        return None
    message = body.reasoning_budget_message
    text = (model.chat.reasoning_budget_message if message is None else message) + ends[0]
    return ThoughtLimit(
        max_tokens=budget,
        start=start.encode(),
        end=ends[0].encode(),
        further_ends=tuple(end.encode() for end in ends[1:]),
        closing=tuple(model.vocab.tokenize(text, add_special=False, parse_special=True)),
        is_thinking=prompt.rfind(start) > max(prompt.rfind(end) for end in ends),
    )


def _end_tags(body: GenerationBody) -> list[str]:
    """llama-server takes a single one, too, and empty ones for none."""
    single = body.reasoning_budget_end_tag
    tags = body.reasoning_budget_end_tags
    found = [tag for tag in ([single or ""] if tags is None else tags) if tag]
    for tag in found:
        check_length("reasoning_budget_end_tags", tag, MAX_TAG, "characters")
    return found
