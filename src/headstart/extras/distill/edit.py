"""Draft models made of others without training: the multi-token heads of a base model for its
fine-tune, and a draft model without the tokens that its users' texts do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter, TokenType

from headstart.engine.drafters import read_drafter, read_heads, why_not_heads
from headstart.structures.atomic import replacement
from headstart.types.errors import ModelError

CARD = "headstart.distill.card"  # key of what a draft model was made from, as JSON
_TOKENS, _MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_BY_TOKEN = (_TOKENS, "tokenizer.ggml.token_type", "tokenizer.ggml.scores")


def begin(base: GGUFReader, output: Path, changes: Mapping[str, Any]) -> GGUFWriter:
    """A GGUF with the metadata of another, some of it changed; omits what that one was made
    from.
    """
    writer = GGUFWriter(output, str(base.fields["general.architecture"].contents()))
    changes = {"general.name": output.stem, **changes}
    dropped = ("GGUF.", "general.architecture", CARD)
    kept = {name: one for name, one in base.fields.items() if not name.startswith(dropped)}
    for name in changes.keys() - kept.keys():
        add = writer.add_string if isinstance(changes[name], str) else writer.add_uint32
        add(name, changes[name])
    for name, field in kept.items():
        value, kinds = changes.get(name, field.contents()), field.types
        writer.add_key_value(name, value, kinds[0], *kinds[1:2])
    return writer


def finish(writer: GGUFWriter, check: Callable[[Path], None] = lambda path: None) -> None:
    """Write the file; it takes the place of an older one when it is whole and was checked."""
    assert writer.path is not None
    with replacement(writer.path) as temporary:
        writer.write_header_to_file(temporary)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        check(temporary)


def graft(base: Path, target: Path, output: Path) -> None:
    """Write the multi-token heads of a base model to a file that drafts for its fine-tune.

    Raises:
        ModelError: it has none, or they do not fit.
    """
    num_heads, reason = read_heads(base)
    if not num_heads:
        raise ModelError(f"{base} has no multi-token heads to be used{reason and f': {reason}'}")
    reader = GGUFReader(base)
    name = reader.fields["general.architecture"].contents()
    first = int(reader.fields[f"{name}.block_count"].contents()) - num_heads
    writer = begin(reader, output, {})
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "blk" or int(parts[1]) >= first:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)

    def check(path: Path) -> None:
        if (reason := why_not_heads(read_drafter(path), target)) is not None:
            raise ModelError(f"the heads of {base} cannot draft for {target}: {reason}")

    finish(writer, check)


def cut(draft: Path, used: Collection[int], output: Path) -> tuple[int, int]:
    """Write a draft model without the tokens that are neither used nor needed to spell others.

    Returns the number of tokens that it had, and that it has.

    Raises:
        ModelError: its tokens are not made by merges.
    """
    reader = GGUFReader(draft)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if _MERGES not in fields:
        raise ModelError(f"{draft} has no merges: only vocabularies of byte pairs can be cut")
    tokens: list[str] = fields[_TOKENS]
    ids, kinds = {token: i for i, token in enumerate(tokens)}, fields[_BY_TOKEN[1]]
    kept = {i for i in used if i < len(tokens)}
    kept |= {i for i, token in enumerate(tokens) if len(token) == 1}
    kept |= {i for i, kind in enumerate(kinds) if kind != TokenType.NORMAL}
    merges = []
    for merge in reversed(fields[_MERGES]):  # the parts of a token precede it
        left, _, right = merge.partition(" ")
        if ids.get(left + right) in kept:
            kept |= {ids[left], ids[right]}
            merges.append(merge)
    order = sorted(kept)
    changes: dict[str, Any] = {_MERGES: merges[::-1]}
    changes |= {name: [fields[name][i] for i in order] for name in _BY_TOKEN if name in fields}
    changes |= {
        name: order.index(value)
        for name, value in fields.items()
        if name.startswith("tokenizer.ggml.") and name.endswith("_token_id") and value in kept
    }
    if (size := f"{fields['general.architecture']}.vocab_size") in fields:
        changes[size] = len(order)
    writer = begin(reader, output, changes)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight", "output.bias"):
            data = np.ascontiguousarray(data[order])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return len(tokens), len(order)
