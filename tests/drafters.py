"""Tiny models that draft from a target's hidden states: EAGLE-3, DFlash, DSpark, Gemma's assistant.

Random ones for equality, and aligned ones (see `heads`), whose drafts are right to the last token
as long as every state that they read is the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from tests.architectures import WINDOW, write_model
from tests.heads import (
    AFTER,
    BIAS,
    CYCLE,
    NUM_NORMAL,
    SURE,
    VOCAB_SIZE,
    WIDTH,
    aligned_values,
    next_token_head,
    one_hot,
    successor_map,
)
from tests.models import MERGES, Shape, Writer, add_attention_sizes

Values = Mapping[str, NDArray[np.float64]]
Shapes = dict[str, tuple[int, ...]]
LAYERS = (1, 2, 3)  # of the target, whose inputs are read
NUM_TARGET_LAYERS = 4
BEFORE = np.argsort(AFTER)  # the token before each in an aligned text
MASK = NUM_NORMAL  # the token that stands for one to be guessed
BLOCK = 8  # tokens that a block model drafts at once, the last one of the text included
ASSISTANT_WIDTH = 320  # of an aligned assistant; it must differ from the target's
_SHARP = 200.0  # scale of attention that sees one place only
_LOUD = 100.0  # of what is written over a residual


@dataclass(frozen=True, slots=True)
class Sizes(Shape):
    """What a draft model has of its own, and of its target."""

    width: int = 48
    target_width: int = 64
    own_embeddings: bool = True
    own_head: bool = True
    draft_ids: Sequence[int] | None = None  # the tokens of a reduced vocabulary
    layers: Sequence[int] = LAYERS
    normed_residual: bool = False
    merges: Sequence[tuple[str, str]] = MERGES


PLAIN = Sizes()
SHARED = Sizes(width=64, own_embeddings=False, own_head=False)
REDUCED = Sizes(draft_ids=tuple(range(0, VOCAB_SIZE, 3)))
BLOCKS = replace(SHARED, ff_width=128)  # a block model is as wide as its target
ALIGNED = Sizes(
    width=WIDTH,
    target_width=WIDTH,
    num_heads=3,
    num_kv_heads=3,
    ff_width=WIDTH,
    normed_residual=True,
)


def target(path: Path, *, seed: int = 0) -> Path:
    """Write a random target with as many layers as the draft models here read."""
    sizes = {"block_count": NUM_TARGET_LAYERS, "embedding_length": 64}
    return write_model(path, "llama", seed=seed, changes=sizes)


def aligned_target(path: Path, architecture: str = "llama") -> Path:
    """Write a target that is sure of every token."""
    sizes = {"block_count": NUM_TARGET_LAYERS, "embedding_length": WIDTH}
    return write_model(path, architecture, changes=sizes, values=aligned_values)


def eagle3(
    path: Path, sizes: Sizes = PLAIN, values: Values | None = None, *, seed: int = 1
) -> Path:
    """Write an EAGLE-3 draft model, random where `values` does not say otherwise."""
    writer = _begin(path, "eagle3", sizes, seed, num_layers=1)
    writer.gguf.add_uint32("eagle3.target_hidden_size", sizes.target_width)
    writer.gguf.add_bool("eagle3.norm_before_residual", sizes.normed_residual)
    width = sizes.width
    shapes = _ends(sizes) | {"fc.weight": (width, len(sizes.layers) * sizes.target_width)}
    shapes |= _block(0, sizes, 2 * width) | {"blk.0.attn_norm_2.weight": (width,)}
    return _finish(writer, shapes, values)


def dflash(
    path: Path,
    sizes: Sizes = BLOCKS,
    values: Values | None = None,
    *,
    rank: int = 0,
    num_layers: int = 2,
    seed: int = 1,
) -> Path:
    """Write a DFlash draft model; with a rank of its Markov head, a DSpark one."""
    writer = _begin(path, "dflash", sizes, seed, num_layers=num_layers)
    writer.gguf.add_uint32("dflash.block_size", BLOCK)
    writer.gguf.add_mask_token_id(MASK)
    width = sizes.width
    shapes = _ends(sizes) | {
        "fc.weight": (width, len(sizes.layers) * sizes.target_width),
        "enc.output_norm.weight": (width,),
    }
    for layer in range(num_layers):
        shapes |= _block(layer, sizes, width)
        norms = ("attn_q_norm", "attn_k_norm")
        shapes |= {f"blk.{layer}.{name}.weight": (sizes.head_size,) for name in norms}
    if rank:
        writer.gguf.add_bool("dflash.sample_from_anchor", True)
        writer.gguf.add_bool("dflash.has_confidence_head", True)
        rows = len(sizes.draft_ids) if sizes.draft_ids else VOCAB_SIZE
        shapes |= {"markov_w1.weight": (VOCAB_SIZE, rank), "markov_w2.weight": (rows, rank)}
        shapes |= {"conf_proj.weight": (1, width + rank), "conf_proj.bias": (1,)}
    return _finish(writer, shapes, values)


def assistant(
    path: Path, width: int = 96, values: Values | None = None, *, backbone: int = 128, seed: int = 1
) -> Path:
    """Write a gemma4-assistant; `backbone` is the width of its gemma4 target."""
    num_layers, num_heads, head_size = 2, 2, 64
    writer = Writer(path, "gemma4-assistant", merges=MERGES, seed=seed)
    writer.numbers(
        context_length=2048,
        embedding_length=width,
        embedding_length_out=backbone,
        block_count=num_layers,
        nextn_predict_layers=num_layers,
        feed_forward_length=2 * width,
        attention__head_count=num_heads,
        attention__head_count_kv=num_heads,
        attention__key_length=head_size,
        attention__value_length=head_size,
        attention__key_length_swa=head_size,
        attention__value_length_swa=head_size,
        attention__sliding_window=WINDOW,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__freq_base=10000.0,
        rope__freq_base_swa=10000.0,
        rope__dimension_count=head_size,
        rope__dimension_count_swa=head_size,
    )
    writer.gguf.add_array("gemma4-assistant.attention.sliding_window_pattern", [True, False])
    shapes: Shapes = {
        "token_embd.weight": (VOCAB_SIZE, width),
        "output_norm.weight": (width,),
        "nextn.post_projection.weight": (backbone, width),
        "nextn.pre_projection.weight": (width, 2 * backbone),
        "rope_freqs.weight": (head_size // 2,),
    }
    for layer in range(num_layers):
        block = f"blk.{layer}."
        names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        shapes |= {f"{block}{name}.weight": (width,) for name in names}
        shapes |= {
            block + "attn_q.weight": (num_heads * head_size, width),
            block + "attn_output.weight": (width, num_heads * head_size),
            block + "attn_q_norm.weight": (head_size,),
            block + "layer_output_scale.weight": (1,),
            block + "ffn_gate.weight": (2 * width, width),
            block + "ffn_up.weight": (2 * width, width),
            block + "ffn_down.weight": (width, 2 * width),
        }
    return _finish(writer, shapes, values)


def aligned_eagle3(path: Path, sizes: Sizes = ALIGNED) -> Path:
    """Write an EAGLE-3 model that follows the states alone: from that of a token to the next one.

    Its feed-forward layer is the permutation; what it writes is much louder than what it read.
    """
    identity = np.eye(WIDTH)
    features = np.concatenate([identity] * len(sizes.layers), axis=1)
    head = next_token_head() if sizes.draft_ids is None else next_token_head()[[*sizes.draft_ids]]
    values = {
        "fc.weight": features,
        "token_embd.weight": one_hot(),
        "output.weight": head,
        "blk.0.attn_norm_2.weight": np.full(WIDTH, 0.001),
        "blk.0.attn_output.weight": np.zeros((WIDTH, WIDTH)),
        "blk.0.ffn_gate.weight": identity,
        "blk.0.ffn_up.weight": identity,
        "blk.0.ffn_down.weight": _LOUD * successor_map(),
    }
    return eagle3(path, sizes, values | _ones("blk.0.ffn_norm", "output_norm"))


def aligned_dflash(path: Path) -> Path:
    """Write a DFlash model that copies what stood one cycle before, from the injected features.

    Its attention sees exactly one place: queries and keys are constant but for their rotation.
    """
    sizes = replace(ALIGNED, own_head=True, own_embeddings=True)
    size = sizes.head_size
    bias = np.zeros((size, WIDTH))
    bias[: size // 2, BIAS] = 1.0
    angles = -CYCLE * 10000.0 ** (-2 * np.arange(size // 2) / size)
    query = np.zeros((size, WIDTH))
    query[:, BIAS] = np.concatenate([np.cos(angles), np.sin(angles)])
    values_of = np.eye(WIDTH)
    values_of[BIAS, BIAS] = 0.0
    head = np.zeros((VOCAB_SIZE, WIDTH))
    head[np.arange(VOCAB_SIZE), np.arange(VOCAB_SIZE)] = SURE / np.sqrt(WIDTH)
    values = {
        "fc.weight": np.concatenate([np.eye(WIDTH)] * len(sizes.layers), axis=1),
        "token_embd.weight": one_hot(),
        "output.weight": head,
        "blk.0.attn_q.weight": np.tile(query, (sizes.num_heads, 1)),
        "blk.0.attn_k.weight": np.tile(bias, (sizes.num_heads, 1)),
        "blk.0.attn_v.weight": values_of,
        "blk.0.attn_output.weight": _LOUD * np.eye(WIDTH),
        "blk.0.ffn_down.weight": np.zeros((WIDTH, sizes.ff_width)),
        "blk.0.attn_q_norm.weight": np.full(size, _SHARP),
        "blk.0.attn_k_norm.weight": np.ones(size),
    }
    values |= _ones("enc.output_norm", "output_norm", "blk.0.attn_norm")
    return dflash(path, sizes, values, num_layers=1)


def aligned_dspark(path: Path, confidence: float = 0.9) -> Path:
    """Write a DSpark model whose Markov head knows what follows each token."""
    sizes = replace(BLOCKS, width=WIDTH, target_width=WIDTH, num_heads=3, num_kv_heads=3)
    codes = np.eye(VOCAB_SIZE)
    values = {
        "markov_w1.weight": codes,
        "markov_w2.weight": 50 * SURE * codes[BEFORE],
        "conf_proj.weight": np.zeros((1, WIDTH + VOCAB_SIZE)),
        "conf_proj.bias": np.array([np.log(confidence / (1 - confidence))]),
    }
    return dflash(path, sizes, values, rank=VOCAB_SIZE)


def aligned_assistant(path: Path) -> Path:
    """Write an assistant that follows the target's state alone.

    A state of the token before the last one leads to the token after the last one.
    """
    size = ASSISTANT_WIDTH
    to_next = np.zeros((size, 2 * WIDTH))
    to_next[AFTER[AFTER], WIDTH + np.arange(VOCAB_SIZE)] = 1.0
    back = np.zeros((WIDTH, size))
    back[BEFORE, np.arange(VOCAB_SIZE)] = 1.0
    embeddings = np.zeros((VOCAB_SIZE, size))
    embeddings[np.arange(VOCAB_SIZE), np.arange(VOCAB_SIZE)] = SURE / np.sqrt(size)
    values = {
        "token_embd.weight": embeddings,
        "nextn.pre_projection.weight": to_next,
        "nextn.post_projection.weight": back,
    }
    values |= {f"blk.{i}.attn_output.weight": np.zeros((size, 128)) for i in range(2)}
    values |= {f"blk.{i}.ffn_down.weight": np.zeros((size, 2 * size)) for i in range(2)}
    values |= {f"blk.{i}.layer_output_scale.weight": np.ones(1) for i in range(2)}
    return assistant(path, size, values, backbone=WIDTH)


def _begin(path: Path, architecture: str, sizes: Sizes, seed: int, num_layers: int) -> Writer:
    writer = Writer(path, architecture, merges=sizes.merges, seed=seed)
    add_attention_sizes(writer, replace(sizes, num_layers=num_layers))
    writer.gguf.add_array(f"{architecture}.target_layers", [int(x) for x in sizes.layers])
    if sizes.draft_ids is not None:
        ids = np.array(sizes.draft_ids, np.int64)
        writer.gguf.add_tensor("d2t", ids, raw_dtype=GGMLQuantizationType.I64)
    return writer


def _ends(sizes: Sizes) -> Shapes:
    shapes: Shapes = {"output_norm.weight": (sizes.width,)}
    if sizes.own_embeddings:
        shapes["token_embd.weight"] = (VOCAB_SIZE, sizes.width)
    if sizes.own_head:
        num_ids = len(sizes.draft_ids) if sizes.draft_ids is not None else VOCAB_SIZE
        shapes["output.weight"] = (num_ids, sizes.width)
    return shapes


def _block(layer: int, sizes: Sizes, inputs: int) -> Shapes:
    """One layer of attention over `inputs` numbers, and its feed-forward part."""
    width, kv_width = sizes.width, sizes.num_kv_heads * sizes.head_size
    shapes: Shapes = {
        "attn_norm": (width,),
        "attn_q": (width, inputs),
        "attn_k": (kv_width, inputs),
        "attn_v": (kv_width, inputs),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (sizes.ff_width, width),
        "ffn_up": (sizes.ff_width, width),
        "ffn_down": (width, sizes.ff_width),
    }
    return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def _finish(writer: Writer, shapes: Shapes, values: Values | None) -> Path:
    for name, shape in shapes.items():
        if values is not None and name in values:
            assert values[name].shape == shape, (name, values[name].shape, shape)
            writer.tensor(name, values[name])
        elif len(shape) == 1:
            ones = 0.0 if name.endswith("bias") else 1.0
            writer.tensor(name, ones + 0.01 * writer.random.standard_normal(shape))
        else:
            scale = 0.5 if name == "token_embd.weight" else shape[-1] ** -0.5
            writer.tensor(name, scale * writer.random.standard_normal(shape))
    return writer.save()


def _ones(*names: str) -> dict[str, NDArray[np.float64]]:
    return {f"{name}.weight": np.ones(WIDTH) for name in names}
