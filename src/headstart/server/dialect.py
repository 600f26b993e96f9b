"""Shared by the API families: an answer in progress, and the interface of its writers."""

from __future__ import annotations

import dataclasses
import secrets
import time
from abc import ABC, abstractmethod
from codecs import IncrementalDecoder
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import orjson

from headstart.server import sse
from headstart.server.answer_numbers import (
    Emission,
    counterfactual,
    native_answer,
    provenance,
    reading_times,
    speculative_metrics,
    sum_stats,
    timings,
    token_probabilities,
)
from headstart.server.prompts import Prompt
from headstart.server.schemas import GenerationBody
from headstart.server.translate import Call
from headstart.text.toolcalls.events import AnswerEvent, AnswerMessage, Content, ToolCall
from headstart.text.toolcalls.reader import AnswerReader
from headstart.text.utf8 import utf8_decoder
from headstart.types.request import (
    Event,
    FinishEvent,
    ProgressEvent,
    PromptEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
)

Chunk = dict[str, Any]


@dataclass(slots=True)
class Piece:
    """A part of an answer: what one event adds, or all of it."""

    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    emissions: Sequence[Emission] = ()  # if the body requests provenance
    events: Sequence[AnswerEvent] = ()  # parsed from the text


@dataclass(slots=True)
class Choice:
    """One answer in progress."""

    index: int
    request: Request
    prompt: Prompt
    text: str = ""  # complete after the last event
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    finish: FinishEvent | None = None
    progress: ProgressEvent | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from its second token on
    slot_id: int = -1  # unknown before the first token
    parser: AnswerReader | None = None  # separates reasoning and tool calls from content
    message: AnswerMessage = field(default_factory=AnswerMessage)  # result of the parser so far
    is_open: bool = False  # its first chunk was sent
    _first_token_at: float | None = None
    _decoder: IncrementalDecoder = field(default_factory=utf8_decoder)
    _parts: list[str] = field(default_factory=list)
    # of the tokens with log probabilities
    _scored: IncrementalDecoder = field(default_factory=utf8_decoder)
    _num_scored: int = 0  # complete characters

    def take(self, event: Event) -> Piece:
        """Add an event and return its piece, whose text may lag behind its tokens."""
        match event:
            case TokenEvent():
                if self._first_token_at is None:
                    self._first_token_at = time.monotonic()
                self.tokens += event.tokens
                self.slot_id = event.slot_id
                self.logprobs += event.logprobs
                text = self._decoder.decode(event.text)
                self._parts.append(text)
                emissions = [] if event.step is None else [(len(self.emissions), event)]
                self.emissions += emissions
                return Piece(text, event.tokens, event.logprobs, emissions, self._read(text))
            case FinishEvent():
                self.finish = event
                rest = self._decoder.decode(b"", final=True)  # of an incomplete character
                self.text = "".join(self._parts) + rest
                return Piece(rest, events=self._read(rest))
            case PromptEvent():
                self.prompt_logprobs += event.logprobs
            case ProgressEvent():
                self.progress = event
        return Piece()

    def _read(self, text: str) -> Sequence[AnswerEvent]:
        """Add to the message; calls without an id of the model's own get one."""
        if self.parser is None or self.parser.is_done:
            events: list[AnswerEvent] = [Content(text)] if text else []
        else:
            events = self.parser.feed(text) + (self.parser.finish() if self.finish else [])
        for at, event in enumerate(events):
            if isinstance(event, ToolCall) and not event.call_id:
                events[at] = dataclasses.replace(event, call_id="call_" + secrets.token_hex(12))
        self.message.add(events, len(self.tokens))
        return events

    def offset_of(self, scored: bytes) -> int:
        """Where the next token with log probabilities begins, in characters."""
        offset = self._num_scored
        self._num_scored += len(self._scored.decode(scored))
        return offset

    @property
    def stats(self) -> RequestStats:
        """Final numbers; before the end, those known so far."""
        if self.finish:
            return self.finish.stats
        progress = self.progress
        return RequestStats(
            num_prompt=len(self.request.prompt),
            num_cached=progress.num_cached if progress else 0,
            num_emitted=len(self.tokens),
            prompt_seconds=progress.seconds if progress else 0.0,
            generation_seconds=time.monotonic() - self._first_token_at
            if self._first_token_at is not None
            else 0.0,
        )

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word for why it ended."""
        if not self.finish:
            return None
        if self.finish.reason == "length":
            return "length"
        return "tool_calls" if self.message.calls else "stop"


class Dialect(ABC):
    """Writes choices as the JSON of one API family. One instance per call."""

    ends_with_done: ClassVar[bool] = False  # `data: [DONE]` closes a stream
    media_type: ClassVar[str] = "text/event-stream"

    def __init__(self, call: Call, body: GenerationBody, choices: list[Choice]) -> None:
        self.call = call
        self.body = body
        self.choices = choices
        self.has_extras = body.return_tokens or body.provenance

    def opening(self, choice: Choice) -> list[Chunk]:
        """Chunks before the first text of a choice."""
        return []

    @abstractmethod
    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        """The chunks that carry a piece; none if all of it is withheld. An empty piece is only
        given by `progress`.
        """

    @abstractmethod
    def closing(self, choice: Choice) -> list[Chunk]:
        """Chunks that end a choice; after the last choice also those that end the call."""

    @abstractmethod
    def whole(self) -> Any:
        """The body of an answer that is not streamed."""

    def progress(self, choice: Choice, event: ProgressEvent) -> list[Chunk]:
        """Chunks that report how much of the prompt is processed, if the format has any."""
        return [chunk | self.prompt_progress(event) for chunk in self.deltas(choice, Piece())]

    def encode(self, chunk: Chunk) -> bytes:
        """A chunk as it is sent: a server-sent event."""
        return sse.event(chunk)

    def encode_error(self, body: Chunk) -> bytes:
        """An error that ends a stream, as it is sent."""
        return self.encode(body)

    def prompt_progress(self, event: ProgressEvent) -> Chunk:
        """llama-server's fields for the progress of a prompt."""
        fields: Chunk = {
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

    def extras(self, piece: Piece | Choice) -> Chunk:
        """Per-token data that the body requests."""
        extras: Chunk = {}
        vocab = self.call.model.vocab
        if self.body.provenance and piece.emissions:
            extras["provenance"] = provenance(piece.emissions, vocab)
        if self.body.return_tokens and piece.tokens:
            extras["tokens"] = list(piece.tokens)
        return extras

    def probabilities(self, choice: Choice, logprobs: Sequence[TokenLogprob]) -> list[Chunk]:
        """Log probabilities in the requested form. Very many alternatives are written token by
        token: all of an answer would be millions of objects, and would block the interpreter until
        they are written.
        """
        found: list[Chunk] = []
        for one in logprobs:
            found += token_probabilities(
                (one,), self.call.model.vocab, is_post_sampling=choice.request.post_sampling_probs
            )
            if one.num_alternatives > 100:
                *_, name = found[-1]
                found[-1][name] = orjson.Fragment(orjson.dumps(found[-1][name]))
        return found

    def numbers(self) -> Chunk:
        """Additions to OpenAI's formats: timings, acceptance, and the seed that was used."""
        stats = sum_stats([choice.stats for choice in self.choices])
        return {
            "timings": timings(stats),
            "metrics": speculative_metrics(stats, is_whole=self.body.return_metrics),
            "seed": self.choices[0].request.sampling.seed,
        }


class OpenAIDialect(Dialect):
    """Common parts of chat and text completions: frame, usage, and the numbers at the end."""

    ends_with_done = True
    chunk_kind: ClassVar[str]

    @abstractmethod
    def entry(self, choice: Choice, piece: Piece, *, is_whole: bool) -> Chunk:
        """One member of `choices`."""

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        return [self.head | {"choices": [self.entry(choice, piece, is_whole=False)]}]

    def closing(self, choice: Choice) -> list[Chunk]:
        last = self.entry(choice, Piece(), is_whole=False) | {"finish_reason": choice.finish_reason}
        chunks = [self.head | {"choices": [last]}]
        if all(one.finish for one in self.choices):
            if self.body.stream_options.include_usage:
                chunks.append(self.head | {"choices": [], "usage": self.usage()})
            chunks[-1] |= self.numbers()
        return chunks

    def whole(self) -> Chunk:
        entries = []
        for choice in self.choices:
            text = choice.prompt.echo + choice.text if self.body.echo else choice.text
            piece = Piece(text, choice.tokens, choice.logprobs, choice.emissions)
            entries.append(
                self.entry(choice, piece, is_whole=True) | {"finish_reason": choice.finish_reason}
            )
        return (
            self.head
            | {"object": self.chunk_kind.removesuffix(".chunk")}
            | {"choices": entries, "usage": self.usage()}
            | self.numbers()
        )

    @cached_property
    def head(self) -> Chunk:
        """What all chunks of the call have in common."""
        return {
            "id": self.call.id,
            "object": self.chunk_kind,
            "created": self.call.created,
            "model": self.call.model.alias,
            "system_fingerprint": self.call.fingerprint,
        }

    def usage(self) -> Chunk:
        """OpenAI's token counts; a prompt shared by several choices counts once."""
        # the first choice of each prompt
        first = {id(one.prompt): one.stats for one in reversed(self.choices)}.values()
        num_prompt = sum(one.num_prompt for one in first)
        num_cached = sum(one.num_cached for one in first)
        num_emitted = sum(one.stats.num_emitted for one in self.choices)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_emitted,
            "total_tokens": num_prompt + num_emitted,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }

    def numbers(self) -> Chunk:
        numbers = super().numbers()
        if self.body.provenance:
            emissions = [choice.emissions for choice in self.choices]
            numbers["counterfactual"] = counterfactual(emissions)
        is_verbose = self.body.verbose
        if is_verbose or (is_verbose is None and self.call.model.config.log.log_level == "debug"):
            first = self.choices[0]
            verbose = native_answer(self.call, self.body, first, first.text, first.tokens)
            numbers["__verbose"] = verbose
        return numbers


def tool_call(call_id: str, name: str, arguments: str) -> Chunk:
    """A call in OpenAI's form."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def call_arguments(text: str) -> Any:
    """A call's arguments as a value; {} if the answer was cut short in the middle of them."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
