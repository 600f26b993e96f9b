"""Plain models of llama's kind between GGUF and PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    quantize,
)
from numpy.typing import NDArray
from torch import Tensor

from headstart.extras.distill.edit import CARD, begin, finish
from headstart.extras.distill.model import LanguageModel, Shape
from headstart.types.errors import ModelError

# architectures, and whether they rotate the halves of a head, not adjacent pairs
KINDS = {"llama": False, "qwen2": True, "qwen3": True}


def read_model(reader: GGUFReader, context: int) -> LanguageModel:
    """Load the model of a GGUF, with its weights, for rows of up to `context` tokens.

    Raises:
        ModelError: it is none.
    """
    kind = str(reader.fields["general.architecture"].contents())
    if kind not in KINDS:
        raise ModelError(_REFUSED.format(f"its architecture is {kind}"))

    def number(key: str, default: float | None = None) -> float:
        field = reader.fields.get(f"{kind}.{key}")
        found = default if field is None else field.contents()
        if found is None:
            raise ModelError(_REFUSED.format(f"it has no {kind}.{key}"))
        return float(found)

    weights = {
        t.name.replace("blk.", "blocks."): torch.from_numpy(
            dequantize(t.data, t.tensor_type).astype(np.float32)
        )
        for t in reader.tensors
    }
    if any(name.startswith(f"{kind}.rope.scaling") for name in reader.fields):
        raise ModelError(_REFUSED.format("its positions are scaled"))
    heads = int(number("attention.head_count"))
    vocab_size, width = weights["token_embd.weight"].shape
    shape = Shape(
        vocab_size,
        width,
        int(number("block_count")),
        heads,
        int(number("attention.head_count_kv", heads)),
        int(number("feed_forward_length")),
        number("attention.layer_norm_rms_epsilon"),
        number("rope.freq_base", 10000.0),
        int(number("attention.key_length", width // heads)),
        KINDS[kind],
        has_bias="blocks.0.attn_q.bias" in weights,
        norms_heads="blocks.0.attn_q_norm.weight" in weights,
    )
    if number("rope.dimension_count", shape.head_size) != shape.head_size:
        raise ModelError(_REFUSED.format("only a part of each head has positions"))
    model = LanguageModel(shape, context, weights.pop("rope_freqs.weight", None))
    if "output.weight" not in weights:  # tied to the embedding
        model.output.weight = model.token_embd.weight
        weights["output.weight"] = weights["token_embd.weight"]
    if unlike := model.state_dict().keys() ^ weights.keys():
        raise ModelError(_REFUSED.format(f"{sorted(unlike)[0]} is in one of them only"))
    model.load_state_dict(weights)
    return model


_REFUSED = (
    "this draft model cannot be tuned, because it is not built as a plain llama or Qwen model: {}; "
    "name a GGUF of these with --draft-model"
)


def write_model(
    base: GGUFReader, weights: Mapping[str, Tensor], kind: str, output: Path, card: Any
) -> None:
    """Write a GGUF with the base's metadata, matrices of type F16 or Q8_0, and a card."""
    matrix_type = GGMLQuantizationType[kind]
    changes = {"general.file_type": int(LlamaFileType[f"MOSTLY_{kind}"]), CARD: json.dumps(card)}
    writer = begin(base, output, changes)
    for tensor in base.tensors:
        trained = weights.get(tensor.name.replace("blk.", "blocks."))
        if trained is None:  # rope_freqs
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            add_tensor(writer, tensor.name, trained.float().cpu().numpy(), matrix_type)
    finish(writer)


def add_tensor(
    writer: GGUFWriter, name: str, values: NDArray[Any], kind: GGMLQuantizationType
) -> None:
    """Add a tensor: matrices in this type, everything else as F32."""
    values = values.astype(np.float32)
    if values.ndim == 2:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)
