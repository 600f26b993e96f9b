"""Prompts that fill in text at a cursor, as llama.vim and llama.vscode ask for it.

The prompt, with the vocabulary's markers:

    [repository]name  [file]name, piece of another file, ...  [file]name
    [prefix]before[suffix]after[middle]

The length of each part is independent of the other parts and of n_predict, so that the prompts of
successive keystrokes share a prefix and hit the prompt cache.

Source: Hui et al. 2024, "Qwen2.5-Coder Technical Report", https://arxiv.org/abs/2409.12186
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from headstart.server.prompts import Prompt, tokenize_mixed, tokens_text
from headstart.server.schemas import InfillBody, InfillExtra
from headstart.types import Vocab
from headstart.types.errors import NotSupportedError
from headstart.types.report import WorkerInfo

BYTES_PER_TOKEN = 32  # of text to tokenize per token that a part may take


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
    line = _last(body.prompt, room, "prompt", vocab)
    prefix = _last(body.input_prefix, 3 * quarter, "input_prefix", vocab)
    after = _part(body.input_suffix, slice(_reach(body.input_suffix, room)), "input_suffix", vocab)
    suffix = after[: max(0, room - len(line))]
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
    fim, tokens = vocab.fim, partial(vocab.tokenize, add_special=False, parse_special=False)
    head = [] if fim.repository is None else [fim.repository, *tokens("myproject\n")]
    tail = [] if fim.file is None else [fim.file, *tokens("filename\n")]
    room -= len(head) + len(tail)
    files: list[list[int]] = []  # the last one first
    for extra in reversed(extras):
        if len(extra.text) + len(extra.filename) > BYTES_PER_TOKEN * max(0, room):
            break  # without tokenizing the rest
        name = (
            tokens("\n\n--- snippet ---\n\n")
            if fim.file is None
            else [fim.file, *tokens(extra.filename + "\n")]
        )
        file = name + tokens(extra.text)
        if len(file) > room:
            break
        files.append(file)
        room -= len(file)
    return [*head, *chain.from_iterable(reversed(files)), *tail] if room >= 0 else []


def _last(content: Any, count: int, field: str, vocab: Vocab) -> list[int]:
    """The last `count` tokens of a text, or of a list of texts and tokens."""
    tokens = _part(content, slice(-_reach(content, count), None), field, vocab)
    return tokens[max(0, len(tokens) - count) :]


def _reach(content: Any, num_tokens: int) -> int:
    """The part of a content with at least this many tokens; the rest is not tokenized."""
    return max(1, num_tokens) * (BYTES_PER_TOKEN if isinstance(content, str) else 1)


def _part(content: Any, part: slice, field: str, vocab: Vocab) -> list[int]:
    """Tokens of a part of a text, or of a list of texts and tokens."""
    near = content[part] if isinstance(content, str | list) else content
    return tokenize_mixed(near, vocab, field=field, add_special=False, parse_special=False)
