"""POST /v1/audio/transcriptions: OpenAI's API, converted to a chat with the audio."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.body import Body, make_body
from headstart.server.chat import answer_chat
from headstart.server.dialect import Choice, Chunk, Dialect, Piece
from headstart.server.errors import not_supported, shorten
from headstart.server.routing import Routes
from headstart.server.schemas import ChatBody, shared_fields
from headstart.server.service import service_of
from headstart.text.toolcalls.events import Content

routes = Routes()


class TranscriptionBody(Body):
    """POST /v1/audio/transcriptions: a form; as JSON, the file is in base64. Further fields of chat
    (stream, max_tokens, temperature, ...) are accepted too.
    """

    model_config = ConfigDict(extra="allow")

    file: str = Field(description="the sound: WAV, MP3 or FLAC")
    prompt: str = Field(
        "", description='what the model is asked; default: "Transcribe audio to text"'
    )
    language: str = Field("", description="of the sound; added to what the model is asked")
    response_format: str = Field("json", description="only json")


@routes.post(
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
    answer="`text`, `usage`; with `stream` events `transcript.text.delta` and `.done`",
)
async def transcriptions(http: HttpRequest, body: TranscriptionBody) -> Response:
    """Transcribe audio."""
    if body.response_format != "json":
        wanted = shorten(body.response_format)
        raise not_supported(f"response_format {wanted} is not supported; only json")
    is_lfm2 = "<|tool_list_start|>" in service_of(http).served.template.source
    text = body.prompt or ("" if is_lfm2 else "Transcribe audio to text")
    text += f" (language: {body.language})" if body.language else ""
    parts = [
        {"type": "text", "text": text},
        {"type": "input_audio", "input_audio": {"data": body.file}},
    ]
    messages = [{"role": "system", "content": "Perform ASR."}] if is_lfm2 else []
    fields = {name: _value(value) for name, value in shared_fields(body).items()}
    fields["messages"] = [*messages, {"role": "user", "content": parts}]
    return await answer_chat(
        http, lambda: make_body(ChatBody, fields), "transcription-", TranscriptionDialect
    )


def _value(given: Any) -> Any:
    """The JSON value of a form's text, such as a number; long texts are not parsed."""
    try:
        return orjson.loads(given) if isinstance(given, str) and len(given) <= 64 else given
    except orjson.JSONDecodeError:
        return given


class TranscriptionDialect(Dialect):
    """transcript.text.delta and transcript.text.done."""

    ends_with_done = True

    def deltas(self, choice: Choice, piece: Piece) -> list[Chunk]:
        said = "".join(event.text for event in piece.events if isinstance(event, Content))
        return [{"type": "transcript.text.delta", "delta": said}]

    def closing(self, choice: Choice) -> list[Chunk]:
        return [self.whole()]

    def whole(self) -> Chunk:
        (choice,) = self.choices
        stats = choice.stats
        return {
            "type": "transcript.text.done",
            "text": choice.message.content,
            "usage": {
                "type": "tokens",
                "input_tokens": stats.num_prompt,
                "input_tokens_details": {"cached_tokens": stats.num_cached},
                "output_tokens": stats.num_emitted,
                "total_tokens": stats.num_prompt + stats.num_emitted,
            },
        }
