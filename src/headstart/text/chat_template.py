"""Renders chat messages to prompt text with a Jinja template.

Hugging Face's environment with the leniency of llama.cpp's engine, in a sandbox because templates
are untrusted code. A template may modify its lists (Kimi-K2's does), so each rendering gets copies.

Sources: https://huggingface.co/docs/transformers/chat_templating_writing and llama.cpp's
common/jinja, whose tolerance templates rely on.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from headstart.config import ServerConfig
from headstart.structures.interruption import progress, time_limit
from headstart.structures.prefix import common_prefix_length
from headstart.text.capabilities import (
    Capabilities,
    find_capabilities,
    preserve_reasoning,
    test_and_note_text,
)
from headstart.text.messages import Message, adapt_messages, adapt_tools, content_text
from headstart.text.quirks import find_quirks, patch_source, sort_results
from headstart.text.thinking import Thinking, find_thinking
from headstart.types.errors import (
    ConfigError,
    HeadstartError,
    ModelError,
    RequestError,
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RenderPlain = Callable[[Sequence[tuple[str, str]], bool], str]
"""(role and content of each message, whether to add the generation prompt) -> prompt."""
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


def probe_limit() -> AbstractContextManager[None]:
    """Have a template's probes raise a ModelError once they take too long together."""
    late = ModelError(
        f"the chat template does not finish within {PROBE_SECONDS:g} s for a few words; "
        "name another with --chat-template-file"
    )
    return time_limit(PROBE_SECONDS, late)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
        built_in: Mapping[str, RenderPlain] = MappingProxyType({}),
    ) -> None:
        """Compile Jinja text, or take a built-in template by name; None and "" mean ChatML.

        Raises:
            ModelError: the template is not valid Jinja, or does not end.
        """
        self.is_fallback = not source
        name = (source or "chatml").strip()
        self.source = CHATML if name == "chatml" else source or ""
        # a model with another template may spell ChatML's markers instead of using tokens
        self.stop: tuple[str, ...] = ("<|im_end|>",) if self.source == CHATML else ()
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._now = now
        self._rendered: Callable[[Mapping[str, Any]], str]
        self.quirks = find_quirks(self.source)
        self.reads_schema = self.quirks.adapt is sort_results  # DeepSeek V4, as `response_format`
        self.thinking: Thinking | None = None
        with probe_limit():
            if self.source != CHATML and name in built_in:
                self._rendered = partial(_render_plain, built_in[name])
                self._variables = frozenset[str]()
            else:
                self._compile()
            self.capabilities: Capabilities = find_capabilities(self._probe, self._variables)
            self.thinking = self.quirks.thinking or find_thinking(self.source, self.try_to_render)
            text = self.try_to_render([{"role": "user", "content": "probe-5d1c"}])
            # a template that refuses this may show other messages
            self.shows_messages = text is None or "probe-5d1c" in text.lower()

    def _compile(self) -> None:
        environment = chat_environment(self._now)
        environment.tests["string"] = test_and_note_text
        try:
            tree = environment.parse(patch_source(self.source))
            self._variables = frozenset(meta.find_undeclared_variables(tree))
            for loop in list(tree.find_all(nodes.For)):
                loop.iter = nodes.Filter(loop.iter, "watched", [], [], None, None)
                loop.iter.set_lineno(loop.lineno).set_environment(environment)
            self._rendered = environment.from_string(tree).render
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
            RequestError: the template refuses these messages.
        """
        quirks = self.quirks
        adapted = adapt_messages(
            messages, self.capabilities, knows_developers=quirks.knows_developers
        )
        variables = self._arguments(arguments or {}) | {
            "messages": quirks.adapt(adapted),
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        if tools:
            variables["tools"] = adapt_tools(tools)
        if add_generation_prompt:
            variables["add_generation_prompt"] = True
        return quirks.finish(self._run(variables), add_generation_prompt)

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._rendered(variables)
        except HeadstartError:  # it takes too long
            raise
        # untrusted code may raise anything
        except Exception as error:
            raise RequestError(
                f"the chat template cannot render these messages: {error}"
            ) from error

    def try_to_render(self, messages: Sequence[Message], **options: Any) -> str | None:
        """Like `render`, but None if the template refuses these messages."""
        try:
            return self.render(messages, **options)
        except RequestError:
            return None

    def generation_prompt(self, messages: Sequence[Message], **options: Any) -> str:
        """The generation prompt: what the template adds after the messages."""
        without, with_prompt = (
            self.render(messages, add_generation_prompt=is_added, **options)
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
        return generation_prompt + self.quirks.answer_opening + (content or "")

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
            return self._run({"tools": [], **constants, **variables})
        except RequestError:
            return None


def _render_plain(render: RenderPlain, variables: Mapping[str, Any]) -> str:
    """Render what a built-in template reads: roles and contents."""
    messages = [(one["role"], content_text(one["content"])) for one in variables["messages"]]
    return render(messages, bool(variables.get("add_generation_prompt")))


class _Generation(Extension):
    """`{% generation %}` marks text for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _ChatEnvironment(SandboxedEnvironment):
    """Allows adding none, undefined values and numbers to strings.

    Calls, and each turn of a loop, report `progress`, which ends what takes too long.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        progress(0)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator != "+":
            _check_operands(operator, left, right)
        elif isinstance(left, str) != isinstance(right, str):
            left, right = (_addend(side) for side in (left, right))
        return super().call_binop(context, operator, left, right)


def _watched(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        progress(0)
        yield value


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Raise for operands that would take too much memory or time.

    The time limit cannot interrupt one long computation in C.
    """
    most_bits = 1 << 14  # of a whole number
    most_repeated = 1 << 20  # characters or entries of a sequence that is repeated
    if operator == "%":
        if isinstance(left, str) and re.search(r"\d{6,}|\*", left):
            raise jinja2.TemplateError("a format is too wide")
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * max(0, right) if operator == "**" else bits + right.bit_length()
        if bits > most_bits:
            raise jinja2.TemplateError(f"a number has more than {most_bits} bits")
        return
    for sequence, times in ((left, right), (right, left)):
        if (
            isinstance(sequence, str | list | tuple)
            and isinstance(times, int)
            and len(sequence) * times > most_repeated
        ):
            raise jinja2.TemplateError(f"a repeated text is longer than {most_repeated}")


def _addend(side: Any) -> Any:
    if side is None or isinstance(side, jinja2.Undefined):
        return ""
    return str(side) if isinstance(side, int | float) else side


def chat_environment(now: Callable[[], datetime]) -> SandboxedEnvironment:
    """An environment for chat templates; `now` is their clock."""
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["watched"] = _watched
    environment.filters["safe"] = str  # jinja2's Markup escapes what is appended
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
    if isinstance(value, list):
        value = list.copy(value)  # dumping a probe's list does not count as reading it
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list,
    )
