"""Defaults of chat requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headstart.config.fields import option
from headstart.types.errors import ConfigError

__all__ = ["ChatConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """Defaults of chat requests."""

    chat_template_kwargs: str | None = option(
        None, "variables for the chat template in every request, as a JSON object"
    )
    prefill_assistant: bool = option(
        True, "continue a last message of the assistant instead of answering it"
    )
    reasoning: str = option(
        "auto", "whether models that can reason do so", choices=("on", "off", "auto")
    )
    reasoning_format: str = option(
        "auto",
        "where reasoning goes: none leaves it in the content, the others put it into "
        "reasoning_content",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    )
    reasoning_budget: int = option(
        -1, "tokens after which reasoning is ended: -1 for no limit, 0 for no reasoning"
    )
    reasoning_budget_message: str = option(
        "", "text inserted before the end of reasoning that exceeds the budget"
    )
    reasoning_effort: str | None = option(
        None, "how much to reason, in the template's words; default: the template's own"
    )
    reasoning_preserve: bool = option(
        True, "show the model its reasoning of earlier answers, where the template supports it"
    )

    def __post_init__(self) -> None:
        _ = self.template_arguments  # raises
        if self.reasoning_budget < -1:
            raise ConfigError(
                f"--reasoning-budget is {self.reasoning_budget} but must be a number of tokens, 0 "
                "for no reasoning, or -1 for no limit"
            )

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Variables that the chat template gets in every request.

        Raises:
            ConfigError: --chat-template-kwargs is not a JSON object.
        """
        try:
            arguments = json.loads(self.chat_template_kwargs or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise ConfigError(
                f"--chat-template-kwargs is {self.chat_template_kwargs!r} but must be a JSON "
                'object such as {"enable_thinking": false}'
            )
        switches: dict[str, Any] = {}
        if self.reasoning != "auto":  # on: also where no markers of reasoning were found
            switches["enable_thinking"] = self.reasoning == "on"
        if not self.reasoning_preserve:
            switches["preserve_reasoning"] = False
        if self.reasoning_effort not in (None, "default"):
            switches["reasoning_effort"] = self.reasoning_effort
        return switches | arguments
