"""POST /infill: fills in text at the cursor, for llama.vim and llama.vscode.

The prompt, with the vocabulary's markers:

    [repository]name  [file]name, piece of another file, ...  [file]name
    [prefix]before[suffix]after[middle]

The length of each part is independent of the other parts and of n_predict, so that the prompts of
successive keystrokes share a prefix and hit the prompt cache.

Source: Hui et al. 2024, "Qwen2.5-Coder Technical Report", https://arxiv.org/abs/2409.12186
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer_prompts, new_call
from headstart.server.body import read_body
from headstart.server.native import NativeDialect
from headstart.server.prompts import Prompt, tokenize_mixed, tokens_text
from headstart.server.routing import Routes
from headstart.server.schemas import InfillBody, InfillExtra
from headstart.types import Vocab
from headstart.types.errors import NotSupportedError
from headstart.types.report import WorkerInfo

routes = Routes()
BYTES_PER_TOKEN = 32  # of text to tokenize per token that a part may take


@routes.post("/infill", body=InfillBody, answer="as `/completion`")
async def infill(http: HttpRequest) -> Response:
    """Fill in the text between a prefix and a suffix."""
    body = await read_body(http, InfillBody)
    call = new_call(http, "infill-")

    def read() -> list[Prompt]:
        vocab = call.model.vocab
        tokens = infill_prompt(body, vocab, call.info)
        return [Prompt(tokens, tokens_text(tokens, vocab), echo="")]

    return await answer_prompts(http, call, body, read, NativeDialect)


def fill_in(parts: tuple[str, str], vocab: Vocab, info: WorkerInfo) -> Prompt:
    """The prompt for the text between two texts.

    Raises:
        NotSupportedError: the vocabulary lacks a marker.
    """
    fields = {"input_prefix": parts[0], "input_suffix": parts[1]}
    tokens = infill_prompt(InfillBody.model_validate(fields), vocab, info)
    return Prompt(tokens, tokens_text(tokens, vocab), echo=parts[0])


def infill_prompt(body: InfillBody, vocab: Vocab, info: WorkerInfo) -> list[int]:
    """Prefix, suffix and other files between their markers; at most 7/8 of the context.

    Prefix and suffix get three quarters and one quarter of a batch, but at most half of the
    context; the line of the cursor counts with the suffix. Other files get the rest.

    Raises:
        NotSupportedError: the vocabulary lacks a marker.
        RequestError: a prefix or suffix is neither text nor tokens.
    """
    prefix_marker, suffix_marker, middle_marker = _markers(vocab)
    quarter = min(info.max_batch_tokens, info.context_size // 2) // 4
    start = [vocab.bos_id] if vocab.add_bos and vocab.bos_id is not None else []
    room = quarter - len(start) - 3
    line = _last(_plain(_end(body.prompt, room), vocab), room)
    before, after = _end(body.input_prefix, 3 * quarter), _start(body.input_suffix, room)
    prefix = _last(_tokens(before, "input_prefix", vocab, info), 3 * quarter)
    suffix = _tokens(after, "input_suffix", vocab, info)[: max(0, room - len(line))]
    others = _other_files(body.input_extra, vocab, info.context_size * 7 // 8 - 4 * quarter)
    return [*start, *others, prefix_marker, *prefix, *line, suffix_marker, *suffix, middle_marker]


def _markers(vocab: Vocab) -> tuple[int, int, int]:
    fim = vocab.fim
    if fim.prefix is None or fim.suffix is None or fim.middle is None:
        missing = [name for name in ("prefix", "suffix", "middle") if getattr(fim, name) is None]
        raise NotSupportedError(
            "this model cannot fill in: its vocabulary has no marker for the "
            f"{' and the '.join(missing)}; "
            "serve one that was trained to fill in the middle"
        )
    return fim.prefix, fim.suffix, fim.middle


def _other_files(extras: Sequence[InfillExtra], vocab: Vocab, room: int) -> list[int]:
    """The last files that fit as a whole, then the header of the file being edited.

    Its name and the repository's are llama-server's, because requests have none.
    """
    fim = vocab.fim
    head = [] if fim.repository is None else [fim.repository, *_plain("myproject\n", vocab)]
    tail = [] if fim.file is None else [fim.file, *_plain("filename\n", vocab)]
    room -= len(head) + len(tail)
    files: list[list[int]] = []  # the last one first
    for extra in reversed(extras):
        if len(extra.text) + len(extra.filename) > BYTES_PER_TOKEN * max(0, room):
            break  # without tokenizing the rest
        name = (
            _plain("\n\n--- snippet ---\n\n", vocab)
            if fim.file is None
            else [fim.file, *_plain(extra.filename + "\n", vocab)]
        )
        file = name + _plain(extra.text, vocab)
        if len(file) > room:
            break
        files.append(file)
        room -= len(file)
    return [*head, *chain.from_iterable(reversed(files)), *tail] if room >= 0 else []


def _tokens(content: object, field: str, vocab: Vocab, info: WorkerInfo) -> list[int]:
    # texts are already cut; a character may take several tokens
    limit = 4 * len(content) + 1 if isinstance(content, str) else info.context_size
    return tokenize_mixed(
        content, vocab, field=field, limit=limit, add_special=False, parse_special=False
    )


def _end(content: Any, num_tokens: int) -> Any:
    """An end with at least the last `num_tokens` tokens; the rest is not tokenized."""
    return content[-_reach(content, num_tokens) :] if isinstance(content, str | list) else content


def _start(content: Any, num_tokens: int) -> Any:
    """A start with at least the first `num_tokens` tokens."""
    return content[: _reach(content, num_tokens)] if isinstance(content, str | list) else content


def _reach(content: str | list[Any], num_tokens: int) -> int:
    return max(1, num_tokens) * (BYTES_PER_TOKEN if isinstance(content, str) else 1)


def _plain(text: str, vocab: Vocab) -> list[int]:
    """Tokens of a text without special tokens."""
    return vocab.tokenize(text, add_special=False, parse_special=False)


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[max(0, len(tokens) - count) :]
