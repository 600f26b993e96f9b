"""What the API families share: a choice that grows, and the form in which it is sent."""

from __future__ import annotations

import dataclasses
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headstart.server import sse
from headstart.server.native_answer import native_answer
from headstart.server.prompts import Prompt
from headstart.server.provenance import Emission, provenance
from headstart.server.results import (
    counterfactual,
    reading_times,
    sources_of_tokens,
    speculative_metrics,
    sum_stats,
    timings,
    token_probabilities,
    usage,
)
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, AnswerMessage, CallBegin
from headstart.text.toolcalls.parser import AnswerParser
from headstart.text.utf8 import Utf8Decoder
from headstart.types.request import (
    FinishEvent,
    ProgressEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
)

FINISH_REASONS = {"eos": "stop", "word": "stop", "length": "length", "cancelled": "stop"}


@dataclass(slots=True)
class Piece:
    """What one event adds to a choice."""

    text: str
    tokens: Sequence[int] = ()
    sources: Sequence[str] = ()
    logprobs: Sequence[TokenLogprob] = ()
    emissions: Sequence[Emission] = ()  # where the body asked for provenance
    events: Sequence[AnswerEvent] = ()  # where a parser reads the text


END = Piece("")  # what the chunk with the finish reason carries


@dataclass(slots=True)
class Choice:
    """One answer while it arrives."""

    index: int
    request: Request
    prompt: Prompt
    clock: Callable[[], float] = time.monotonic
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    finish: FinishEvent | None = None
    progress: ProgressEvent | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from its second token on
    slot_id: int = -1  # where it runs, once that is known
    parser: AnswerParser | None = None  # tells thoughts and tool calls from content
    message: AnswerMessage = field(default_factory=AnswerMessage)  # what the parser has found
    is_open: bool = False  # its first chunk was sent
    num_chars_sent: int = 0
    _first_token_at: float | None = None
    _decoder: Utf8Decoder = field(default_factory=Utf8Decoder)
    _parts: list[str] = field(default_factory=list)

    def add(self, event: TokenEvent) -> Piece:
        """Take an event in; its text may lag behind its tokens."""
        if self._first_token_at is None:
            self._first_token_at = self.clock()
        self.tokens += event.tokens
        self.slot_id = event.slot_id
        self.sources += event.sources
        self.logprobs += event.logprobs
        text = self._decoder.feed(event.text)
        self._parts.append(text)
        emissions: tuple[Emission, ...] = ()
        if event.step is not None:
            emissions = (Emission(len(self.emissions), event),)
            self.emissions += emissions
        events = self._read(self.parser.feed(text)) if self.parser else ()
        return Piece(text, event.tokens, event.sources, event.logprobs, emissions, events)

    def end(self, event: FinishEvent) -> Piece:
        """Take the last event in; returns what an unfinished character leaves."""
        self.finish = event
        rest = self._decoder.finish()
        self.text = "".join(self._parts) + rest
        if self.parser is None:
            return Piece(rest)
        return Piece(rest, events=self._read(self.parser.feed(rest) + self.parser.finish()))

    def _read(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
        """Note what was found; calls for which the model writes no id get one."""
        named = [
            dataclasses.replace(event, call_id="call_" + secrets.token_hex(12))
            if isinstance(event, CallBegin) and not event.call_id
            else event
            for event in events
        ]
        self.message.add(named)
        return named

    def everything(self, text: str) -> Piece:
        """All of the answer in one piece, under a text that may have the prompt in front."""
        return Piece(text, self.tokens, self.sources, self.logprobs, self.emissions)

    @property
    def stats(self) -> RequestStats:
        """Final numbers; before the end, what is known so far."""
        if self.finish:
            return self.finish.stats
        progress = self.progress
        return RequestStats(
            num_prompt=len(self.request.prompt),
            num_cached=progress.num_cached if progress else 0,
            num_emitted=len(self.tokens),
            prompt_seconds=progress.seconds if progress else 0.0,
            generation_seconds=self.clock() - self._first_token_at
            if self._first_token_at is not None
            else 0.0,
        )

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word for why it ended."""
        if not self.finish:
            return None
        reason = FINISH_REASONS[self.finish.reason]
        return "tool_calls" if reason == "stop" and self.message.calls else reason


class Dialect(ABC):
    """Writes choices as the JSON of one API family. One instance per call."""

    ends_with_done: ClassVar[bool]  # `data: [DONE]` closes a stream
    media_type: ClassVar[str] = "text/event-stream"
    can_ping: ClassVar[bool] = True  # a silent stream may have comments

    def __init__(self, call: Call, body: GenerationBody, choices: list[Choice]) -> None:
        self.call = call
        self.body = body
        self.choices = choices

    @abstractmethod
    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        """Chunks before the first text of a choice."""

    @abstractmethod
    def deltas(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        """The chunks that carry a piece."""

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """A chunk as it is sent: a server-sent event."""
        return sse.event(chunk)

    def encode_error(self, body: dict[str, Any]) -> bytes:
        """An error that ends a stream, as it is sent."""
        return sse.event(body)

    @abstractmethod
    def closing(self, choice: Choice) -> list[dict[str, Any]]:
        """Chunks that end a choice; after the last choice also those that end the call."""

    @abstractmethod
    def whole(self) -> Any:
        """The body of an answer that is not streamed."""

    def progress(self, choice: Choice, event: ProgressEvent) -> list[dict[str, Any]]:
        """The chunk that tells how far the prompt is read; none, where the format has none."""
        return []

    def prompt_progress(self, event: ProgressEvent) -> dict[str, Any]:
        """llama-server's fields for it."""
        fields: dict[str, Any] = {
            "prompt_progress": {
                "total": event.num_prompt,
                "cache": event.num_cached,
                "processed": event.num_processed,
                "time_ms": int(event.seconds * 1000),
            }
        }
        if self.body.timings_per_token:
            fields["timings"] = reading_times(event)
        return fields

    def wants(self, piece: Piece) -> bool:
        """Whether a piece is worth a chunk; text may be held back while its tokens are not."""
        return bool(piece.text) or self.wants_tokens(piece)

    def wants_tokens(self, piece: Piece) -> bool:
        """Whether the body asked for something of the piece's tokens, whatever their text."""
        body = self.body
        per_token = body.return_draft_info or body.return_tokens or body.provenance
        return bool(piece.logprobs or (piece.tokens and per_token))

    def full_text(self, choice: Choice) -> str:
        """The answer, after the prompt where the body asked for an echo."""
        return choice.prompt.echo + choice.text if self.body.echo else choice.text

    def extras(self, piece: Piece) -> dict[str, Any]:
        """Per-token data that the body asked for."""
        extras: dict[str, Any] = {}
        vocab = self.call.model.vocab
        if self.body.return_draft_info and piece.tokens:
            extras["sources"] = sources_of_tokens(piece.tokens, piece.sources, vocab)
        if self.body.provenance and piece.emissions:
            extras["provenance"] = provenance(piece.emissions, vocab)
        if self.body.return_tokens and piece.tokens:
            extras["tokens"] = list(piece.tokens)
        return extras

    def probabilities(
        self, choice: Choice, logprobs: Sequence[TokenLogprob]
    ) -> list[dict[str, Any]]:
        """Log probabilities as the body asked for them."""
        return token_probabilities(
            logprobs, self.call.model.vocab, is_post_sampling=choice.request.post_sampling_probs
        )


class SingleDialect(Dialect):
    """A format in which a piece is one chunk."""

    @abstractmethod
    def delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """The chunk that carries a piece."""

    def deltas(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        return [self.delta(choice, piece)]

    def progress(self, choice: Choice, event: ProgressEvent) -> list[dict[str, Any]]:
        return [self.delta(choice, Piece("")) | self.prompt_progress(event)]


class OpenAIDialect(SingleDialect):
    """What chat and text completions have in common: the frame, usage and numbers at the end."""

    ends_with_done = True
    chunk_kind: ClassVar[str]
    whole_kind: ClassVar[str]

    @abstractmethod
    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        """One member of `choices`."""

    def delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        chunk = self.frame(self.chunk_kind, [self.entry(choice, piece, is_whole=False)])
        choice.num_chars_sent += len(piece.text)
        return chunk

    def closing(self, choice: Choice) -> list[dict[str, Any]]:
        last = self.entry(choice, END, is_whole=False) | {"finish_reason": choice.finish_reason}
        chunks = [self.frame(self.chunk_kind, [last])]
        if all(one.finish for one in self.choices):
            if self.body.stream_options.include_usage:
                chunks.append(self.frame(self.chunk_kind, []) | {"usage": self._usage()})
            chunks[-1] |= self._numbers()
        return chunks

    def whole(self) -> dict[str, Any]:
        entries = []
        for choice in self.choices:
            piece = choice.everything(self.full_text(choice))
            entries.append(
                self.entry(choice, piece, is_whole=True) | {"finish_reason": choice.finish_reason}
            )
        return self.frame(self.whole_kind, entries) | {"usage": self._usage()} | self._numbers()

    def frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What stands around `choices`."""
        return {
            "id": self.call.id,
            "object": kind,
            "created": self.call.created,
            "model": self.call.model.alias,
            "system_fingerprint": self.call.fingerprint,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        num_prompts = len({id(choice.prompt) for choice in self.choices})
        return usage([choice.stats for choice in self.choices], num_prompts)

    def _numbers(self) -> dict[str, Any]:
        """What we add to OpenAI's formats: times, acceptance, and the seed to repeat the answer."""
        stats = sum_stats([choice.stats for choice in self.choices])
        numbers = {
            "timings": timings(stats),
            "metrics": speculative_metrics(stats, is_whole=self.body.return_metrics),
            **(counterfactual(stats) if self.body.counterfactual else {}),
            "seed": self.choices[0].request.sampling.seed,
        }
        is_verbose = self.body.verbose
        if is_verbose or (is_verbose is None and self.call.model.defaults.is_verbose):
            first = self.choices[0]
            verbose = native_answer(self.call, self.body, first, first.text, first.tokens)
            numbers["__verbose"] = verbose
        return numbers
