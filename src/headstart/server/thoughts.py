"""How the reasoning of an answer is marked and limited."""

from __future__ import annotations

from headstart.server.conversation import RenderedChat, reasoning_budget
from headstart.server.limits import check_length
from headstart.server.model import ServedModel
from headstart.server.schemas import ChatBody, GenerationBody
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.types import Vocab
from headstart.types.constraint import NO_LIMIT, ThoughtLimit, ThoughtMarks
from headstart.types.errors import RequestError


def thought_marks(
    answer_format: AnswerFormat, chat: RenderedChat, vocab: Vocab
) -> ThoughtMarks | None:
    """How an answer's reasoning is marked; None if it has none."""
    thinking = answer_format.thinking
    is_open = chat.start == "thoughts"
    if thinking is None or not thinking.end.strip() or not (is_open or chat.may_think):
        return None
    start = thinking.start.strip()
    is_first = chat.start == "answer" and bool(start)
    tokens = vocab.tokenize(start, add_special=False, parse_special=True) if is_first else ()
    return ThoughtMarks(start.encode(), thinking.end.strip().encode(), is_open, tuple(tokens))


def chat_thoughts(body: ChatBody, model: ServedModel, chat: RenderedChat) -> ThoughtLimit | None:
    """The limit on a chat answer's reasoning; None without one."""
    budget, thinking = reasoning_budget(body, model.chat), model.answer_format.thinking
    if thinking is None or (budget < 0 and not body.reasoning_control):
        return None
    begins_with_thoughts = not thinking.start and chat.start == "answer" and chat.may_think
    return ThoughtLimit(
        max_tokens=budget if budget >= 0 else NO_LIMIT,
        start=thinking.start.strip().encode(),
        end=thinking.end.strip().encode(),
        closing=_closing(body, model, thinking.end + thinking.answer),
        is_thinking=chat.start == "thoughts" or begins_with_thoughts,
    )


def tagged_thoughts(body: GenerationBody, prompt: str, model: ServedModel) -> ThoughtLimit | None:
    """The limit on reasoning whose marks are given by the body instead of a chat template.

    Raises:
        RequestError: the body has a start tag or end tags, but not both.
    """
    if isinstance(body, ChatBody):
        return None
    start, ends = body.reasoning_budget_start_tag or "", _end_tags(body)
    if not (start or ends):
        return None
    if not (start and ends):
        there, missing = ("start_tag", "end_tags") if start else ("end_tags", "start_tag")
        raise RequestError(
            f"reasoning_budget_{there} says nothing without reasoning_budget_{missing}; send both"
        )
    budget = reasoning_budget(body, model.chat)
    if budget < 0:
        return None
    return ThoughtLimit(
        max_tokens=budget,
        start=start.encode(),
        end=ends[0].encode(),
        further_ends=tuple(end.encode() for end in ends[1:]),
        closing=_closing(body, model, ends[0]),
        is_thinking=prompt.rfind(start) > max(prompt.rfind(end) for end in ends),
    )


def _closing(body: GenerationBody, model: ServedModel, end: str) -> tuple[int, ...]:
    """The tokens that end reasoning which exceeds its budget."""
    message = body.reasoning_budget_message
    if message is None:
        message = model.chat.reasoning_budget_message
    return tuple(model.vocab.tokenize(message + end, add_special=False, parse_special=True))


def _end_tags(body: GenerationBody) -> list[str]:
    """The end tags; as at llama-server also a single one, and empty ones for none."""
    single = body.reasoning_budget_end_tag
    tags = body.reasoning_budget_end_tags
    found = [tag for tag in ([single or ""] if tags is None else tags) if tag]
    for tag in found:
        check_length("reasoning_budget_end_tags", tag, 256, "characters")
    return found
