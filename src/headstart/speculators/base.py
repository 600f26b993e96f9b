"""What the scheduler expects of anything that drafts tokens.

docs/speculators.md has the contract, call by call; `headstart.testing.check_speculator` tests it.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from headstart.types import DecodedStates, Draft, DraftRequest
from headstart.types.errors import ConfigError

SPECULATORS: dict[str, type[Speculator]] = {}
S = TypeVar("S", bound="type[Speculator]")

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def register(cls: S) -> S:
    """Class decorator: make a speculator selectable by its `name`.

    Raises:
        ConfigError: the class cannot be used; says what to mend.
    """
    if reason := _why_not(cls):
        raise ConfigError(f"the speculator class {cls.__name__} cannot be registered: {reason}")
    SPECULATORS[cls.name] = cls
    return cls


def _why_not(cls: type[Speculator]) -> str | None:
    """Why this class cannot be used, if so."""
    if not issubclass(cls, Speculator):
        return "it must be a subclass of headstart.speculators.Speculator"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return (
            f"its name is {name!r} but must be small letters, digits and hyphens, such as "
            'name = "bigram"'
        )
    # no speculator; tokens that a constraint forces
    if name in ("none", "grammar"):
        return f"the name {name!r} means something else in --spec-type and in the counts"
    if name in SPECULATORS:
        return f"the name {name!r} is taken by {SPECULATORS[name].__module__}"
    if missing := sorted(cls.__abstractmethods__):
        return f"it does not define {' and '.join(missing)}"
    if cls.Options is None:
        return None
    if not is_dataclass(cls.Options):
        return "its Options must be a dataclass"
    for option in fields(cls.Options):
        if option.default is MISSING:
            return f"its option {option.name} needs a default"
    if "options" not in inspect.signature(cls).parameters:
        return "it has Options, so its constructor must take options"
    return None


class Speculator(ABC):
    """Drafts tokens. It never decides what is emitted: a bad draft costs time, not output.

    Only `propose` is required. For each sequence the scheduler calls `begin`, then, at every step,
    perhaps `propose` and always `accept`, and `end` when the request is over. A sequence id is
    used again after `end`. What a call is given belongs to the scheduler: copy what is kept,
    change nothing.
    """

    name: ClassVar[str]
    # a score is the probability that the token is accepted if those before it are; control then
    # believes it from the first step on
    scores_are_probabilities: ClassVar[bool] = False
    is_model: ClassVar[bool] = False  # drafting costs decodes, so control weighs the price first
    # models: drafts behind another's draft, which it reads together with the newest token though
    # the target has not decoded it (`DraftRequest.num_drafted`)
    continues_drafts: ClassVar[bool] = False

    # drafts with the model of --draft-model; without one, naming this speculator is refused
    needs_draft_model: ClassVar[bool] = False
    needs_heads: ClassVar[bool] = False  # likewise, with multi-token heads of the target

    # it is told of images: their cells have ids below zero in its texts, not placeholders
    sees_images: bool = False

    # A frozen dataclass; its fields become flags --spec-<name>-<field>. `config.option` declares a
    # field with its help and further spellings; its mark `limits_draft` means that it is the
    # longest draft, so that the server can warn if --draft-max is lower.
    Options: ClassVar[type | None] = None

    # reads the target's hidden states; its constructor sets the numbers of the layers whose inputs
    # it reads, or LAST_STATE
    needs_states: ClassVar[bool] = False
    state_layers: frozenset[int] = frozenset()

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """A request starts to generate; `prompt` is its whole history so far. Copy to keep."""

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in the same order, of at most its `max_tokens` tokens.

        Draft(reason="no match") where there is no draft.
        """

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Tokens a model speculator has to read before it can draft, the newest one not counted."""
        return 0

    def num_recent(self, seq_id: int, history: Sequence[int]) -> int | None:
        """Tokens that a model speculator has to read first if it may leave out the middle of the
        text (`DraftRequest.can_skip`), the newest one not counted; None: it reads all.
        """
        return None

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Model speculators: milliseconds of a draft round and of a token read, timed before the
        first request.
        """
        return None

    # The following are called with `needs_states`. They tell what the target's cache holds of a
    # sequence, also between two requests and before `begin`.

    def observe_states(self, decoded: DecodedStates) -> None:
        """The target decoded these rows, prompts and drafts: its cache now holds them."""

    def truncate(self, seq_id: int, length: int) -> None:
        """The target's cache holds only the first `length` tokens of this sequence.

        A draft was rejected, another text begins like this one, the sequence was preempted or
        erased, or it goes on from a checkpoint.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """`target` now holds the first `length` tokens of `source` and nothing else."""

    def checkpoint(self, seq_id: int) -> None:
        """The target can be cut back to the length that the sequence has now, and to few others."""

    def num_resumable(self, seq_id: int, length: int) -> int:
        """How many of the first `length` tokens the target need not decode again for this
        speculator: `length`, or fewer by the few rows whose states it has to see again.
        """
        return length

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """The target emitted these tokens; the first `num_accepted` of them were drafted.

        Called for every sequence and step, whoever drafted, also when nobody did.
        """

    def go_on(self) -> None:
        """A step is over, perhaps one that only read prompts: do a little of what could wait."""

    def save_sequence(self, seq_id: int, namespace: str) -> bytes | bytearray | None:
        """What a cache of its own holds of an idle sequence for this namespace; None: nothing to
        restore later.
        """
        return None

    def restore_sequence(
        self, seq_id: int, data: bytes | bytearray | memoryview, namespace: str
    ) -> None:
        """Replace an idle sequence by one that was saved, perhaps under another id."""

    def end(self, seq_id: int) -> None:
        """The request is over; forget the sequence (what is shared may stay)."""

    def end_private(self, seq_id: int) -> None:
        """The same, of a request with `store` false: its text may be in no file."""
        self.end(seq_id)

    def close(self) -> None:
        """The server stops: write what is durable, free what is native."""

    def describe(self) -> dict[str, Any]:
        """What `/props` says about this speculator."""
        return {}
