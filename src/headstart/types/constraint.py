"""Constraints on the text of an answer, as plain values that cross the process border."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headstart.types.errors import RequestError

NO_LIMIT = 2**30  # tokens, or rows: more than there can be


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """The reasoning budget of an answer and its markers."""

    max_tokens: int  # per thought, without the marks
    start: bytes  # opening mark, control tokens spelled out; empty: only at the start of the answer
    ends: tuple[bytes, ...]  # at least one: any of them ends thoughts
    closing: tuple[int, ...]  # tokens that end thoughts; at least one
    is_thinking: bool  # whether the prompt has opened thoughts


MAX_TEXT_BYTES = 1 << 20


class ConstraintKind(Enum):
    """The language in which a constraint is written."""

    JSON_OBJECT = "json_object"  # any JSON object; no text
    JSON_SCHEMA = "json_schema"  # a JSON schema, as JSON
    GBNF = "gbnf"  # llama.cpp's grammars; the start rule is `root`
    LARK = "lark"  # llguidance's dialect of Lark; the start rule is `start`
    REGEX = "regex"  # Rust's regex syntax; the whole text has to match

    @property
    def title(self) -> str:
        """The language as errors name it."""
        titles = {"gbnf": "GBNF grammar", "lark": "Lark grammar"}
        return titles.get(self.value, self.value.replace("json_", "JSON "))


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The markers around reasoning, control tokens spelled out."""

    start: bytes  # empty: thoughts only come first
    end: bytes
    is_open: bool  # the answer begins inside thoughts
    opening: tuple[int, ...] = ()  # tokens of `start`, if an answer may begin with thoughts


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A constraint on the text of an answer.

    Without triggers it applies from the first token, or from the end of the initial reasoning if
    `thoughts` has its markers. With triggers the text is free until one of them appears. Triggers
    are searched for with special tokens spelled out (`Vocab.token_text`), so `</think>` is found
    whether it is one token or several, or ends inside a token, whose remaining bytes then belong to
    the constrained text. Triggers inside reasoning are ignored.
    """

    kind: ConstraintKind
    text: str = ""
    triggers: tuple[bytes, ...] = ()
    includes_trigger: bool = False  # the constrained text includes the trigger
    before: str = ""  # rules in Lark; its rule `before` may precede the constrained text
    thoughts: ThoughtMarks | None = None  # in which text is unconstrained
    read: tuple[int, ...] = ()  # tokens of the constrained text that the answer already has

    @property
    def is_behind_thoughts(self) -> bool:
        """Whether it applies from the end of the initial reasoning, which may be missing."""
        marks = self.thoughts
        return not self.triggers and marks is not None and bool(marks.is_open or marks.opening)

    def __post_init__(self) -> None:
        size = len((self.text + self.before).encode("utf-8", "replace"))
        if size > MAX_TEXT_BYTES:
            raise RequestError(
                f"the {self.kind.title} has {size} bytes but at most {MAX_TEXT_BYTES} are taken"
            )
        if len(self.triggers) > 64:
            raise RequestError(
                f"the constraint has {len(self.triggers)} triggers but at most 64 are taken"
            )
        for trigger in self.triggers:
            if not 1 <= len(trigger) <= 256:
                raise RequestError(f"a trigger has {len(trigger)} bytes but must have 1 to 256")
