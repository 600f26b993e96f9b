"""Renders chat messages to prompt text with a Jinja template."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from headstart.config import ServerConfig
from headstart.structures.prefix import common_prefix_length
from headstart.text.built_in_templates import BUILT_IN_TEMPLATES
from headstart.text.capabilities import (
    Capabilities,
    find_capabilities,
    is_text,
    preserve_reasoning,
)
from headstart.text.environment import chat_environment
from headstart.text.messages import Message, adapt_messages, adapt_tools
from headstart.text.quirks import (
    answer_opening,
    find_quirk,
    finish_prompt,
    patch_source,
    sort_results,
)
from headstart.text.thinking import Thinking, find_thinking
from headstart.text.time_limit import TimeLimitError, run_within
from headstart.types.errors import ConfigError, InvalidParameterError, ModelError

CHATML = BUILT_IN_TEMPLATES["chatml"]
PROBE_SECONDS = 10.0  # for all probes of a template


def template_by_hand(config: ServerConfig) -> str | None:
    """The template given by flags, or None.

    Raises:
        ConfigError: the file cannot be read.
        ModelError: it is not valid Jinja.
    """
    source = config.chat_template
    if config.chat_template_file:
        try:
            source = Path(config.chat_template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--chat-template-file {config.chat_template_file} cannot be read: {reason}; name "
                "a text file in UTF-8"
            ) from error
    if not source:
        return None
    ChatTemplate(source)  # raises
    return source


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile Jinja text or a built-in template by name; None and "" mean ChatML.

        Raises:
            ModelError: the template is not valid Jinja, or does not end.
        """
        self.is_fallback = not source
        self.source = source or CHATML
        self.source = BUILT_IN_TEMPLATES.get(self.source.strip(), self.source)
        # a model with another template may spell ChatML's markers instead of using tokens
        self.stop: tuple[str, ...] = ("<|im_end|>",) if self.source == CHATML else ()
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._now = now
        self._adapt = find_quirk(self.source)
        self.reads_schema = self._adapt is sort_results  # DeepSeek V4, as `response_format`
        self.thinking: Thinking | None = None
        try:
            run_within(PROBE_SECONDS, self._compile_and_probe)
        except TimeLimitError as error:
            raise ModelError(
                f"the chat template does not come to an end within {PROBE_SECONDS:g} s for a few "
                "words; name another with --chat-template-file"
            ) from error

    def _compile_and_probe(self) -> None:
        self._compile()
        self.capabilities: Capabilities = find_capabilities(self._probe, self._variables)
        self.thinking = find_thinking(self.source, self._probe_thinking)
        self.shows_messages = self._shows_messages()

    def _compile(self) -> None:
        environment = chat_environment(self._now)
        environment.tests["string"] = is_text
        try:
            tree = environment.parse(patch_source(self.source))
            self._variables = frozenset(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"line {error.lineno} of the chat template is not valid Jinja: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text; `arguments` are further variables for the template.

        Reasoning is on unless the argument enable_thinking is false; the reasoning of earlier
        answers is kept if the template can, unless preserve_reasoning is false.

        Raises:
            InvalidParameterError: the template refuses these messages.
        """
        variables = self._arguments(arguments or {}) | {
            "messages": self._adapt(
                adapt_messages(
                    messages,
                    self.capabilities,
                    knows_developers="<|channel|>" in self.source,
                )
            ),
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        if tools:
            variables["tools"] = adapt_tools(tools)
        if add_generation_prompt:
            variables["add_generation_prompt"] = True
        try:
            text = self._template.render(variables)
        # untrusted code may raise anything
        except Exception as error:
            raise InvalidParameterError(
                f"the chat template cannot render these messages: {error}"
            ) from error
        return finish_prompt(text, add_generation_prompt=add_generation_prompt, source=self.source)

    def generation_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The generation prompt: what the template adds after the messages."""
        without, with_prompt = (
            self.render(messages, tools=tools, arguments=arguments, add_generation_prompt=is_added)
            for is_added in (False, True)
        )
        return with_prompt[common_prefix_length(without, with_prompt) :]

    def opens_thoughts(self, generation_prompt: str) -> bool:
        """Whether a generation prompt opens reasoning without closing it."""
        if self.thinking is None or not self.thinking.start:
            return False
        _, start, rest = generation_prompt.rpartition(self.thinking.start.strip())
        return bool(start) and self.thinking.end.strip() not in rest

    def continuation(self, generation_prompt: str, *, thoughts: str, content: str | None) -> str:
        """The prompt text of a message that the answer continues.

        Args:
            generation_prompt: of the messages before it.
            thoughts: the message's reasoning.
            content: its content; None if the answer continues the reasoning.
        """
        if self.thinking:
            return self.thinking.continued(generation_prompt, thoughts, content)
        return generation_prompt + answer_opening(self.source) + (content or "")

    def _arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All template variables except the conversation."""
        now = self._now()
        given = {
            name: copy.deepcopy(value)
            for name, value in arguments.items()
            if name not in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
        }
        variables: dict[str, Any] = {
            "enable_thinking": self.thinking is not None,
            "preserve_reasoning": True,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
        }
        if isinstance(keep := given.get("preserve_reasoning", True), bool):
            variables |= preserve_reasoning(is_enabled=keep)
        if isinstance(effort := given.get("reasoning_effort"), str) and effort:
            variables["reasoning_strength"] = effort
        return variables | given

    def _probe(self, variables: Mapping[str, Any]) -> str | None:
        """Render unadapted messages; None if the template raises."""
        constants = {"bos_token": "", "eos_token": "", "add_generation_prompt": True}
        try:
            return self._template.render({"tools": [], **constants, **variables})
        except Exception:  # untrusted code; a refusal is a result
            return None

    def _probe_thinking(
        self,
        messages: list[dict[str, Any]],
        *,
        enable_thinking: bool = True,
        add_generation_prompt: bool = False,
    ) -> str | None:
        try:
            return self.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                arguments={"enable_thinking": enable_thinking},
            )
        except InvalidParameterError:
            return None

    def _shows_messages(self) -> bool:
        """Whether a user message appears in the text; true if the template refuses it."""
        try:
            text = self.render([{"role": "user", "content": "probe-5d1c"}])
        except InvalidParameterError:
            return True  # others may appear
        return "probe-5d1c" in text.lower()
