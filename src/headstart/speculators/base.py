"""The interface of speculators, which draft tokens for the scheduler.

docs/speculators.md has the contract, call by call; `headstart.testing.check_speculator` tests it.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from statistics import median
from typing import Any, ClassVar, TypeVar, get_type_hints

from headstart.config.fields import plain_type
from headstart.types import DecodedStates, Draft, DraftRequest, SavedState
from headstart.types.errors import ConfigError

SPECULATORS: dict[str, type[Speculator]] = {}
S = TypeVar("S", bound="type[Speculator]")

SAMPLE_ROWS = 64  # that models decode for `times_of`


def register(cls: S) -> S:
    """Class decorator: make a speculator selectable by its `name`.

    Raises:
        ConfigError: the class cannot be used, with the remedy.
    """
    reason = why_not(cls)
    if not reason and (other := SPECULATORS.get(cls.name)):
        reason = f"the name {cls.name!r} is taken by {other.__module__}"
    if reason:
        raise ConfigError(f"the speculator class {cls.__name__} cannot be registered: {reason}")
    SPECULATORS[cls.name] = cls
    return cls


def why_not(cls: type[Speculator]) -> str | None:
    """Why this class cannot be used, or None."""
    if not issubclass(cls, Speculator):
        return "it must be a subclass of headstart.speculators.Speculator"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        return (
            f"its name is {name!r} but must be small letters, digits and hyphens, such as "
            'name = "bigram"'
        )
    # "none" means no speculator, "grammar" tokens forced by a constraint
    if name in ("none", "grammar"):
        return f"the name {name!r} means something else in --spec-type and in the counts"
    if missing := sorted(cls.__abstractmethods__):
        return f"it does not define {' and '.join(missing)}"
    if cls.Options is None:
        return None
    if not is_dataclass(cls.Options):
        return "its Options must be a dataclass"
    try:
        hints = get_type_hints(cls.Options)
    except Exception as error:  # of any kind: the hint is code
        return f"its Options have a type that is not known here: {error}"
    for option in fields(cls.Options):
        if option.default is MISSING:
            return f"its option {option.name} needs a default"
        if plain_type(hint := hints[option.name]) is None:
            types = "a str, int, float or bool, or one of these or None"
            return f"its option {option.name} has the type {hint} but must be {types}"
    if "options" not in inspect.signature(cls).parameters:
        return "it has Options, so its constructor must take options"
    return None


class Speculator(ABC):
    """Drafts tokens. It never decides what is emitted: a bad draft costs time, not output.

    Only `propose` is required. For each sequence the scheduler calls `begin`, then, at every step,
    perhaps `propose` and always `accept`, and `end` when the request ends. Sequence ids are reused
    after `end`. Arguments belong to the scheduler: copy what you keep, change nothing.
    """

    name: ClassVar[str]
    # scores are probabilities that the token is accepted if those before it are; control then
    # trusts them from the first step on
    scores_are_probabilities: ClassVar[bool] = False
    is_model: ClassVar[bool] = False  # drafting takes decodes, so control checks the price first
    # models: continues forced tokens, which it decodes together with the newest token although the
    # target has not decoded them
    continues_drafts: ClassVar[bool] = False

    # the kind of file that it drafts with: "draft-model", "eagle3" ..., or "mtp" for multi-token
    # heads; without such a file, selecting this speculator is an error
    drafts_with: ClassVar[str] = ""

    # A frozen dataclass; its fields become flags --spec-<name>-<field>. `config.option` declares a
    # field with its help and aliases; its mark `limits_draft` means that it is the longest draft,
    # so that the server can warn if --draft-max is lower.
    Options: ClassVar[type | None] = None

    # reads the target's hidden states; its constructor sets the layers whose inputs it reads, or
    # LAST_STATE
    needs_states: ClassVar[bool] = False
    state_layers: frozenset[int] = frozenset()

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        """Before a request's first draft, also after it was preempted: `text` is the prompt and the
        answer so far, one token or more. Copy to keep.

        Called for every request that may draft, whatever its `types`. All requests wait, so index
        a long text a piece per call, as `SuffixIndex` does.
        """

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in the same order, of at most its `max_tokens` tokens;
        Draft() if there is none.
        """

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Tokens that a model must decode before it can draft, without the newest one."""
        return 0

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Models: time a draft round and the decode of a token, in milliseconds, before the first
        request.
        """
        return None

    # Called only with `needs_states`. These report changes of the target's cache, even between
    # requests and before `begin`.

    def observe_states(self, decoded: DecodedStates) -> None:
        """The target decoded these rows, of prompts and drafts: its cache now holds them."""

    def truncate(self, seq_id: int, length: int) -> None:
        """The target's cache holds only the first `length` tokens of this sequence.

        A draft was rejected, another text shares the prefix, the sequence was preempted or erased,
        or it resumes from a checkpoint.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """`target` now holds the first `length` tokens of `source` and nothing else."""

    def checkpoint(self, seq_id: int) -> None:
        """The target can be rolled back to the sequence's current length, and to few others."""

    def num_resumable(self, seq_id: int, length: int) -> int:
        """How many of the first `length` tokens the target need not decode again for this
        speculator: `length`, or slightly less if it needs the states of some rows again.
        """
        return length

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """The target emitted these tokens; the first `num_accepted` of them were drafted.

        Called for every request that may draft, in every step, whoever drafted.
        """

    def go_on(self) -> None:
        """Called after every step, prefill-only ones included. Do a bounded amount of deferred
        work.
        """

    def save_sequence(self, seq_id: int, namespace: str) -> bytes | bytearray | SavedState | None:
        """State of its own cache for an idle sequence of this namespace; None: nothing to restore
        later.
        """
        return None

    def restore_sequence(self, seq_id: int, data: Any, namespace: str) -> None:
        """Replace an idle sequence by a saved one (bytes or bytearray), perhaps of another id."""

    def end(self, seq_id: int) -> None:
        """The request ended, was preempted, or lost half of its text (context shift); forget the
        sequence (shared data may stay).
        """

    def end_private(self, seq_id: int) -> None:
        """Like `end`, for requests with `store` false: their text must not be in any file."""
        self.end(seq_id)

    def close(self) -> None:
        """The server stops: write persistent data, free native resources."""

    def describe(self) -> dict[str, Any]:
        """Details for `/props`."""
        return {}


def times_of(
    clock: Callable[[], float], draft: Callable[[], None], read: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a draft round and of decoding a sample; a slow machine is timed once."""
    rounds, readings, end = list[float](), list[float](), clock() + 1.5
    for _ in range(3):  # the first round loads the weights into memory
        for work, times in ((draft, rounds), (read, readings)):
            started = clock()
            work()
            times.append(1000.0 * (clock() - started))
        if clock() > end:
            break
    return median(rounds[1:] or rounds), median(readings[1:] or readings)
