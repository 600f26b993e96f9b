"""Defaults of requests: llama-server's sampling flags, and those of chats.

For sampling, None means the model file's recommendation (`general.sampling.*`), or else
llama-server's default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config.fields import flag_of, option
from headstart.types.errors import ConfigError


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
        -1, "tokens after which reasoning is ended: -1 for no limit, 0 for no reasoning", least=-1
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
        if self.reasoning != "auto":  # on: even if no markers of reasoning were found
            switches["enable_thinking"] = self.reasoning == "on"
        if not self.reasoning_preserve:
            switches["preserve_reasoning"] = False
        if self.reasoning_effort not in (None, "default"):
            switches["reasoning_effort"] = self.reasoning_effort
        return switches | arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Defaults of requests; ranges are checked like those of a request."""

    predict: int = option(-1, "maximum tokens of an answer; -1 for no limit", least=-2)
    seed: int = option(-1, "seed of the random numbers; -1 picks a new one for each request")
    # by field of `SamplingParams`, which declares their flags
    numbers: Mapping[str, float] = field(default_factory=dict)
    dry_sequence_breaker: str | None = option(
        None,
        'text that ends a repetition for DRY, instead of \\n, :, " and *; repeatable; none: no '
        "text does",
        separator="\n",
    )
    samplers: str | None = option(
        None,
        "samplers in order, separated by semicolons "
        "(penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)",
    )
    sampler_seq: str | None = option(
        None, "same as --samplers with one letter for each (edskypmxt)"
    )
    ignore_eos: bool = option(False, "continue past the model's end of text")
    logit_bias: str | None = option(
        None,
        "logit biases as ID+BIAS,... or ID-BIAS,...; repeatable",
        separator=",",
    )
    reverse_prompt: str | None = option(
        None, "stop string of requests that name none; repeatable", separator="\n"
    )
    grammar: str | None = option(
        None,
        "grammar (GBNF, or Lark after %llguidance) for answers to requests without a constraint "
        "or tools of their own",
    )
    grammar_file: str | None = option(None, "the same from a file")
    json_schema: str | None = option(None, "JSON schema for such answers; {} for any JSON object")
    json_schema_file: str | None = option(None, "the same from a file")
    escape: bool = option(
        True, "read escapes such as \\n and \\t in --reverse-prompt and --dry-sequence-breaker"
    )

    def __post_init__(self) -> None:
        forms = ("grammar", "grammar_file", "json_schema", "json_schema_file")
        given = [flag_of(name) for name in forms if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} both say what form answers have; use one")
        if self.samplers is not None and self.sampler_seq is not None:
            raise ConfigError("--samplers and --sampler-seq are two ways to say one thing; use one")
