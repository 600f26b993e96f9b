"""Chat messages to prompt text, with the Jinja template that came with the model.

The environment is the one templates are written for (Hugging Face's recipe), sandboxed because a
template is code from a stranger.

Source: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.config import ServerConfig
from headstart.errors import ConfigError, InvalidParameterError, ModelError

Message = Mapping[str, Any]
"""role, content (text, or a list of {"type": "text", "text": ...}) and whatever else the template
reads.
"""

CHATML_NAME = "chatml"  # as at llama-server
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def template_by_hand(config: ServerConfig) -> str | None:
    """The template that the flags give; None if they give none.

    Raises:
        ConfigError: the file cannot be read, or the template shows no message.
        ModelError: it is not valid Jinja.
    """
    source = config.chat_template
    flag = f"--chat-template {textwrap.shorten(source or '', 40)!r}"
    if config.chat_template_file:
        flag = f"--chat-template-file {config.chat_template_file}"
        try:
            source = Path(config.chat_template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{flag} cannot be read: {reason}; name a text file in UTF-8"
            ) from error
    elif not source:
        return None
    if not source or not ChatTemplate(source).shows_messages:
        raise ConfigError(
            f"{flag}: the chat template shows no message; --chat-template takes Jinja text, or "
            f"{CHATML_NAME}, "
            "--chat-template-file a file"
        )
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
        """Compile the template; `None`, an empty one and the name chatml stand for ChatML.

        Raises:
            ModelError: the template is not valid Jinja.
        """
        self.is_fallback = not source
        self.source = source or CHATML_NAME
        self.stop: tuple[str, ...] = ()
        if self.source.strip() == CHATML_NAME:
            # a model of another template may not know ChatML's markers as tokens and spell them
            # instead
            self.source, self.stop = CHATML, ("<|im_end|>",)
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._has_developer_role = "developer" in self.source
        try:
            self._template = _environment(now).from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"line {error.lineno} of the chat template is not valid Jinja: {error.message}"
            ) from error
        self._probe()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text; `arguments` are further variables for the template.

        Raises:
            InvalidParameterError: the template refuses these messages.
        """
        variables = {
            **(arguments or {}),
            "messages": [self._adapt(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        try:
            return self._template.render(variables)
        # a stranger's code: whatever it raises is its answer to these messages
        except Exception as error:
            raise InvalidParameterError(
                f"the chat template cannot render these messages: {error}"
            ) from error

    def _adapt(self, message: Message) -> dict[str, Any]:
        """Bring role and content into the form that the template reads."""
        adapted = dict(message)
        if adapted.get("role") == "developer" and not self._has_developer_role:
            adapted["role"] = "system"
        content = adapted.get("content")
        if self._wants_parts and isinstance(content, str):
            adapted["content"] = [{"type": "text", "text": content}]
        elif not self._wants_parts:
            adapted["content"] = content_text(content)
        return adapted

    def _probe(self) -> None:
        """Find out whether text is lost as a string but shown as a list of parts, or is lost as
        both.
        """
        self._wants_parts = False
        as_text = self._shows_probe()
        self._wants_parts = not as_text
        self._wants_parts = self._wants_parts and bool(self._shows_probe())
        # a template that refuses the probe may show other messages
        self.shows_messages = as_text is not False or self._wants_parts

    def _shows_probe(self) -> bool | None:
        """Whether a message of a user is in the text; None if the template refuses it."""
        try:
            return "probe-5d1c" in self.render([{"role": "user", "content": "probe-5d1c"}]).lower()
        except InvalidParameterError:
            return None


def content_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Join a message's text parts, one a line."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


class _Generation(Extension):
    """`{% generation %}` marks text for training; here it only shows its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> Node | list[Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like `json.dumps` rather than Jinja's filter, which escapes HTML; generators become lists."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list,
    )
