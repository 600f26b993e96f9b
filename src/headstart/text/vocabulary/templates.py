"""Replacement pairs between known families of chat templates."""

# ruff: noqa: RUF001 (DeepSeek spells its markers with fullwidth bars)

from __future__ import annotations

from dataclasses import dataclass

from headstart.text.vocabulary.replacements import Pair


@dataclass(frozen=True, slots=True)
class TemplateFamily:
    """Markers that a family of chat templates puts around the messages."""

    marker: str  # occurs in this family's templates, but not in those of earlier entries
    user: str  # opens a user message
    assistant: str  # opens an answer
    close: str  # closes an answer
    system: str = ""
    close_user: str | None = None  # closes a user or system message, if not like an answer

    @property
    def reply(self) -> str:
        """The text between a user message and its answer."""
        return (self.close if self.close_user is None else self.close_user) + self.assistant


_FAMILIES = (
    TemplateFamily(
        "<|im_start|>",
        "<|im_start|>user\n",
        "<|im_start|>assistant\n",
        "<|im_end|>\n",
        "<|im_start|>system\n",
    ),
    TemplateFamily(
        "<|start_header_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>system<|end_header_id|>\n\n",
    ),
    TemplateFamily(
        "<start_of_turn>", "<start_of_turn>user\n", "<start_of_turn>model\n", "<end_of_turn>\n"
    ),
    TemplateFamily("<|turn>", "<|turn>user\n", "<|turn>model\n", "<turn|>\n", "<|turn>system\n"),
    TemplateFamily(
        "<|START_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
    ),
    TemplateFamily(
        "<｜User｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", close_user=""
    ),
    TemplateFamily("<|end|>", "<|user|>\n", "<|assistant|>\n", "<|end|>\n", "<|system|>\n"),
    TemplateFamily("<|user|>", "<|user|>\n", "<|assistant|>\n", "</s>\n", "<|system|>\n"),
    TemplateFamily("[INST]", "[INST]", "[/INST]", "</s>", close_user=""),
)


def find_family(template: str) -> TemplateFamily | None:
    """The family of a chat template."""
    return next((family for family in _FAMILIES if family.marker in template), None)


def find_replacements(target_template: str, draft_template: str) -> list[Pair]:
    """Pairs that rewrite the target's prompts for the draft; empty if a family is unknown."""
    target, draft = find_family(target_template), find_family(draft_template)
    if target is None or draft is None or target is draft:
        return []
    pairs = [
        (target.reply, draft.reply),
        (target.close, draft.close),
        (target.close.rstrip(), draft.close.rstrip()),
        (target.user, draft.user),
        (target.assistant, draft.assistant),
    ]
    if target.system and draft.system:
        pairs.append((target.system, draft.system))
    return list(dict.fromkeys(pairs))
