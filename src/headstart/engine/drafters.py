"""Decides which files can draft for a target, with which speculator.

libllama aborts on most mismatches or reads out of bounds, so everything is compared here first,
from the metadata of both files.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from headstart.engine import hidden_states
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.library import api
from headstart.engine.parameters import Facts
from headstart.types import LAST_STATE
from headstart.types.errors import ModelError

log = logging.getLogger(__name__)
# speculators, by which their files are distinguished
DRAFT_MODEL, HEADS = "draft-model", "mtp"
# architectures that read hidden states; also the names of their speculators
EAGLE3, DFLASH, ASSISTANT = "eagle3", "dflash", "gemma4-assistant"
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Drafter:
    """A file that drafts for a target."""

    path: Path
    speculator: str  # the speculator that uses it
    num_heads: int = 0  # number of multi-token heads
    is_in_target: bool = False  # the heads are in the target's own file
    block_size: int = 0  # rows of a block, for models that draft in blocks

    @property
    def reads_states(self) -> bool:
        """Whether it drafts from hidden states of the target."""
        return self.speculator != DRAFT_MODEL

    def describe(self) -> dict[str, Any]:
        """Describe the multi-token heads for /props and the log."""
        where = "of its own" if self.is_in_target else f"of {self.path.name}"
        words = f"{self.num_heads} multi-token head{'s' * (self.num_heads > 1)} {where}"
        return {"path": str(self.path), "num_heads": self.num_heads, "words": words}


def read_drafter(path: Path) -> Drafter:
    """Determine what a file given as draft model can be used for.

    Raises:
        ModelError: it is missing or not a GGUF file.
    """
    header = GgufHeader(path)
    name = header.architecture
    if name == DFLASH:
        speculator = "dspark" if header.shape("markov_w1.weight") else DFLASH
        return Drafter(path, speculator, block_size=header.number("dflash.block_size", 16))
    if name in (EAGLE3, ASSISTANT):
        return Drafter(path, name)
    has_heads = header.number(f"{name}.nextn_predict_layers") > 0
    if has_heads and not header.shape("blk.0.attn_norm.weight"):
        return Drafter(path, HEADS, num_heads=read_heads(path)[0])
    return Drafter(path, DRAFT_MODEL)


def read_heads(path: Path) -> tuple[int, str]:
    """Number of multi-token heads in a model's file, and the reason if they cannot be used.

    Raises:
        ModelError: it is missing or not a GGUF file.
    """
    header = GgufHeader(path)
    name = header.architecture
    count = header.number(f"{name}.nextn_predict_layers")
    if count and name not in hidden_states.HEAD_ARCHITECTURES:
        return 0, f"libllama does not compute the heads of {name} models"
    if count and (reason := api.why_not("_nextn")):
        return 0, reason
    # They rotate by one position only: libllama aborts if the model has several.
    if count and name == "glm4moe" and any(header.numbers(f"{name}.rope.dimension_sections")):
        words = "models with several positions a row"
        return 0, f"libllama does not compute the heads of {name} {words}"
    last = header.number(f"{name}.block_count") - 1
    is_split = header.number("split.count") > 1  # the weights of heads are in another part
    if not is_split and not header.shape(f"blk.{last}.nextn.eh_proj.weight"):
        return 0, ""  # left out by the file's author
    return count, ""


def find_heads(target: Path) -> Drafter | None:
    """Find the multi-token heads to draft with, if any.

    They are in the target's own file, or next to it in a file named mtp-*, as on the hub: of
    several that fit, the one whose name is most similar to the target's.

    Raises:
        ModelError: the target is missing or not a GGUF.
    """
    count, reason = read_heads(target)
    if reason:
        log.warning("multi-token heads are not used: %s", reason)
    if count:
        return Drafter(target, HEADS, count, is_in_target=True)
    fitting, own = list[Drafter](), GgufHeader(target).architecture
    for path in sorted(target.parent.glob("mtp-*.gguf")):
        try:
            one = read_drafter(path)
            mismatch = why_not_heads(one, target)
        except ModelError as error:
            log.warning("multi-token heads are not used: %s", error)
            continue
        if mismatch is None:
            fitting.append(one)
        elif GgufHeader(path).architecture == own:  # others belong to another model
            log.warning("multi-token heads in %s are not used: %s", path, mismatch)
    if not fitting:
        return None

    def num_common(one: Drafter) -> int:  # length of the names' common prefix
        pairs = zip(one.path.name.removeprefix("mtp-"), target.name, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    found = max(fitting, key=num_common)
    log.info("multi-token heads were found next to %s: %s", target.name, found.path)
    return found


def why_not_heads(drafter: Drafter, target: Path) -> str | None:
    """Why a file has no multi-token heads for a target, in words; None if it has."""
    if drafter.speculator != HEADS:
        return "it is no file of multi-token heads"
    if not drafter.num_heads:
        return read_heads(drafter.path)[1] or "it has no weights of heads"
    own, other = GgufHeader(drafter.path), GgufHeader(target)
    if own.is_cut_off:
        return "it is cut off; download it again"
    pairs = {
        "architecture": (own.architecture, other.architecture),
        "width": (_width(own), _width(other)),
        "vocabulary": (own.count(_TOKENS), other.count(_TOKENS)),
    }
    for name, (has, wanted) in pairs.items():
        if has != wanted:
            return f"its {name} is {has} and the model's is {wanted}"
    return None


def state_layers(path: Path, num_target_layers: int) -> tuple[int, ...]:
    """The layers of the target that a draft model reads, in its order."""
    header = GgufHeader(path)
    if header.architecture == ASSISTANT:
        return (LAST_STATE,)
    return _layers(header, num_target_layers)


def why_not(drafter: Drafter, target: Path, facts: Facts) -> str | None:
    """Why this file cannot draft from the hidden states of that target, in words; None if it can.

    Args:
        drafter: the file.
        target: the file of the target.
        facts: of the loaded target.

    Raises:
        ModelError: one of the files cannot be read.
    """
    draft, whole = GgufHeader(drafter.path), GgufHeader(target)
    checks = {
        EAGLE3: _why_not_eagle3,
        DFLASH: _why_not_dflash,
        ASSISTANT: _why_not_assistant,
    }
    if (check := checks.get(draft.architecture)) is None:
        return f"{draft.architecture} models do not read hidden states"
    if reason := api.why_not("_nextn|_layer_i"):
        return reason
    sizes = draft.count(_TOKENS), whole.count(_TOKENS)
    if sizes[0] != sizes[1]:
        return f"its vocabulary has {sizes[0]} tokens and the target's {sizes[1]}"
    if any(layer < 0 for layer in draft.numbers(f"{draft.architecture}.target_layers")):
        return "it names a layer of its target with a number below 0"
    return check(draft, whole, facts)


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
    # the default is an invalid token id
    mask = draft.number("tokenizer.ggml.mask_token_id", 2**32 - 1)
    if mask >= draft.count(_TOKENS):
        return "it names no mask token (tokenizer.ggml.mask_token_id)"
    return _why_not_layers(draft, target, facts, layers)


def _why_not_assistant(draft: GgufHeader, target: GgufHeader, facts: Facts) -> str | None:
    if facts.architecture != "gemma4":
        return f"it belongs to a gemma4 model and the target is a {facts.architecture} model"
    read = draft.number(f"{ASSISTANT}.embedding_length_out")
    if read != _width(target):
        return f"it reads states of {read} numbers and the target's have {_width(target)}"
    for key in ("key_length", "key_length_swa", "value_length", "value_length_swa"):
        own, other = _head_size(draft, key), _head_size(target, key)
        if own != other:
            return f"it reads cached rows with a {key} of {own} and the target's have {other}"
    # the drafter reads the caches of the target's last two layers: one with a window, one without
    heads = draft.numbers(f"{ASSISTANT}.attention.head_count_kv")
    count = draft.number(f"{ASSISTANT}.block_count")
    windows = draft.numbers(f"{ASSISTANT}.attention.sliding_window_pattern")
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
    """Check what every model that reads layers of its target must have in common with it."""
    # libllama has a graph only for this form of attention
    keys, values = (_head_size(draft, key) for key in ("key_length", "value_length"))
    if keys != values:
        return f"its keys have {keys} numbers and its values {values}"
    return hidden_states.why_not(facts, layers) or _why_not_shared(draft, target)


def _why_not_shared(draft: GgufHeader, target: GgufHeader) -> str | None:
    """Check that the target has, in the right size, the tensors that the draft model lacks."""
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
    ids = draft.values("d2t", np.int64)
    if ids is None:
        return "its map of tokens (d2t) is cut off or not of 64-bit numbers"
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_tokens):
        return f"its map of tokens (d2t) names ids beyond the vocabulary of {num_tokens}"
    if not head or head[-1] != len(ids):
        return f"its map of tokens (d2t) has {len(ids)} entries and its head {(head or (0,))[-1]}"
    return None


def _layers(draft: GgufHeader, num_target_layers: int) -> tuple[int, ...]:
    """Layers that it reads; the output of the last one is the model's last state."""
    layers = draft.numbers(f"{draft.architecture}.target_layers")
    return tuple(LAST_STATE if layer == num_target_layers else layer for layer in layers)


def _head_size(header: GgufHeader, key: str) -> int:
    """Size of one key or value; a missing entry follows from the others."""
    prefix = header.architecture
    if size := header.number(f"{prefix}.attention.{key}"):
        return size
    if key.endswith("_swa"):
        return _head_size(header, key.removesuffix("_swa"))
    return _width(header) // max(1, header.number(f"{prefix}.attention.head_count"))


def _width(header: GgufHeader) -> int:
    return header.number(f"{header.architecture}.embedding_length")
