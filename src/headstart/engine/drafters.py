"""Which speculator uses a GGUF that is named as draft model, and whether it fits the target.

libllama aborts on most mismatches, or reads foreign memory; so everything is compared here first,
from the metadata of both files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headstart.engine import hidden_states
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.parameters import Facts
from headstart.types import LAST_STATE

_DRAFT_MODEL, _EAGLE3, _DFLASH, _DSPARK = "draft-model", "eagle3", "dflash", "dspark"
_ASSISTANT, _HEADS = "gemma4-assistant", "mtp"
_ARCHITECTURES = {_EAGLE3: _EAGLE3, _DFLASH: _DFLASH, _ASSISTANT: _ASSISTANT}
_TOKENS = "tokenizer.ggml.tokens"


def speculator_for(path: Path) -> str:
    """The name of the speculator that drafts with this file.

    Raises:
        ModelError: it is no GGUF file.
    """
    header = GgufHeader(path)
    architecture = header.architecture
    if architecture == _DFLASH and header.shape("markov_w1.weight"):
        return _DSPARK
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    has_heads = header.number(f"{architecture}.nextn_predict_layers") > 0
    return _HEADS if has_heads and not header.shape("blk.0.attn_norm.weight") else _DRAFT_MODEL


def reads_states(path: Path) -> bool:
    """Whether this file drafts from hidden states of a target."""
    return GgufHeader(path).architecture in _ARCHITECTURES


def block_size(path: Path) -> int:
    """Rows of a block of a model that drafts in blocks; 0 of another."""
    header = GgufHeader(path)
    return header.number("dflash.block_size", 16) if header.architecture == _DFLASH else 0


def state_layers(path: Path, num_target_layers: int) -> tuple[int, ...]:
    """The layers of the target that a draft model reads, in its order."""
    header = GgufHeader(path)
    if header.architecture == _ASSISTANT:
        return (LAST_STATE,)
    return _layers(header, num_target_layers)


def why_not(path: Path, target: Path, facts: Facts) -> str | None:
    """Why this file cannot draft for that target, in words; None if it can.

    Args:
        path: the draft model, of a kind that reads hidden states.
        target: the file of the target.
        facts: of the loaded target.

    Raises:
        ModelError: one of the files cannot be read.
    """
    draft, whole = GgufHeader(path), GgufHeader(target)
    check = _CHECKS.get(draft.architecture)
    if check is None:
        return f"{draft.architecture} models do not read hidden states"
    if reason := _why_not_vocabulary(draft, whole):
        return reason
    if any(layer < 0 for layer in draft.numbers(f"{draft.architecture}.target_layers")):
        return "it names a layer of its target with a number below 0"
    return check(draft, whole, facts)


def _why_not_vocabulary(draft: GgufHeader, target: GgufHeader) -> str | None:
    sizes = draft.count(_TOKENS), target.count(_TOKENS)
    if sizes[0] != sizes[1]:
        return f"its vocabulary has {sizes[0]} tokens and the target's {sizes[1]}"
    return None


def _why_not_eagle3(draft: GgufHeader, target: GgufHeader, facts: Facts) -> str | None:
    layers = _layers(draft, facts.num_layers)
    if len(layers) != 3:
        return f"it names {len(layers)} layers of its target, and EAGLE-3 models read 3"
    if (count := draft.number("eagle3.block_count")) != 1:
        return f"it has {count} layers, and EAGLE-3 models have one"
    read = draft.number("eagle3.target_hidden_size")
    if read != _width(target):
        return f"it reads states of {read} numbers and the target's have {_width(target)}"
    return _why_not_layers(draft, target, facts, layers)


def _why_not_dflash(draft: GgufHeader, target: GgufHeader, facts: Facts) -> str | None:
    layers = _layers(draft, facts.num_layers)
    if not layers:
        return "it names no layers of its target"
    if LAST_STATE in layers:
        return f"it reads layer {facts.num_layers}, and the target's last is {facts.num_layers - 1}"
    if _width(draft) != _width(target):
        return f"it reads states of {_width(draft)} numbers and the target's have {_width(target)}"
    if draft.number("dflash.block_size", 16) < 2:
        return f"its blocks have {draft.number('dflash.block_size')} tokens; 2 is the least"
    if draft.shape("selector_hidden.weight"):
        return "it is a DFlash2 model, and those are not supported yet"
    if draft.shape("markov_w1.weight") and not draft.number("dflash.block_size"):
        return "it does not say how long its blocks are (dflash.block_size)"
    # the default is a token id that is none
    mask = draft.number("tokenizer.ggml.mask_token_id", 2**32 - 1)
    if mask >= draft.count(_TOKENS):
        return "it names no mask token (tokenizer.ggml.mask_token_id)"
    return _why_not_layers(draft, target, facts, layers)


def _why_not_assistant(draft: GgufHeader, target: GgufHeader, facts: Facts) -> str | None:
    if facts.architecture != "gemma4":
        return f"it belongs to a gemma4 model and the target is a {facts.architecture} model"
    read = draft.number(f"{_ASSISTANT}.embedding_length_out")
    if read != _width(target):
        return f"it reads states of {read} numbers and the target's have {_width(target)}"
    for key in ("key_length", "key_length_swa", "value_length", "value_length_swa"):
        own, other = _head_size(draft, key), _head_size(target, key)
        if own != other:
            return f"it reads cached rows with a {key} of {own} and the target's have {other}"
    # it reads what the last two layers of the target cached: one with a window, one without
    heads = draft.numbers(f"{_ASSISTANT}.attention.head_count_kv")
    count = draft.number(f"{_ASSISTANT}.block_count")
    windows = draft.numbers(f"{_ASSISTANT}.attention.sliding_window_pattern")
    if len(windows) != count or len(heads) not in (1, count):
        return "it does not say which of its layers have a window"
    of_target = target.numbers("gemma4.attention.head_count_kv")
    pattern = target.numbers("gemma4.attention.sliding_window_pattern")
    if pattern[-2:] != (1, 0):
        return "the target's last two layers are not one with a window and one without"
    for layer, has_window in enumerate(windows):
        own = heads[layer] if len(heads) > 1 else heads[0]
        expected = of_target[-2 if has_window and len(of_target) > 1 else -1] if of_target else 0
        if own != expected:
            return f"its layer {layer} reads {own} cached heads and the target has {expected}"
    return hidden_states.why_not(facts, (LAST_STATE,))


def _why_not_layers(
    draft: GgufHeader, target: GgufHeader, facts: Facts, layers: tuple[int, ...]
) -> str | None:
    """What every model that reads layers of its target must have in common with it."""
    return (
        _why_not_heads(draft)
        or hidden_states.why_not(facts, layers)
        or _why_not_shared(draft, target)
    )


def _why_not_heads(draft: GgufHeader) -> str | None:
    """Its attention must be of the form that libllama has a graph for."""
    keys, values = (_head_size(draft, key) for key in ("key_length", "value_length"))
    return None if keys == values else f"its keys have {keys} numbers and its values {values}"


def _why_not_shared(draft: GgufHeader, target: GgufHeader) -> str | None:
    """What it lacks it takes from the target, which must have it in that size."""
    num_tokens, width = draft.count(_TOKENS), _width(draft)
    embeddings, head = draft.shape("token_embd.weight"), draft.shape("output.weight")
    if not (embeddings and head) and width != _width(target):
        what = "embeddings" if not embeddings else "output head"
        return (
            f"it has no {what} of its own, is {width} numbers wide and the target {_width(target)}"
        )
    if embeddings and embeddings[-1] < num_tokens:
        return f"it has embeddings of {embeddings[-1]} tokens and its vocabulary {num_tokens}"
    if not draft.shape("d2t"):
        return None
    ids = draft.integers("d2t")
    if ids is None:
        return "its map of tokens (d2t) is cut off or not of 64-bit numbers"
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_tokens):
        return f"its map of tokens (d2t) names ids beyond the vocabulary of {num_tokens}"
    if not head or head[-1] != len(ids):
        return f"its map of tokens (d2t) has {len(ids)} entries and its head {(head or (0,))[-1]}"
    return None


def _layers(draft: GgufHeader, num_target_layers: int) -> tuple[int, ...]:
    """Layers that it reads; what leaves the last one is the model's last state."""
    layers = draft.numbers(f"{draft.architecture}.target_layers")
    return tuple(LAST_STATE if layer == num_target_layers else layer for layer in layers)


def _head_size(header: GgufHeader, key: str) -> int:
    """Numbers of one key or value; what the file does not say follows from the others."""
    prefix = header.architecture
    if size := header.number(f"{prefix}.attention.{key}"):
        return size
    if key.endswith("_swa"):
        return _head_size(header, key.removesuffix("_swa"))
    return _width(header) // max(1, header.number(f"{prefix}.attention.head_count"))


def _width(header: GgufHeader) -> int:
    return header.number(f"{header.architecture}.embedding_length")


_CHECKS: dict[str, Callable[[GgufHeader, GgufHeader, Facts], str | None]] = {
    _EAGLE3: _why_not_eagle3,
    _DFLASH: _why_not_dflash,
    _ASSISTANT: _why_not_assistant,
}
