"""Plain llama models between GGUF and PyTorch."""

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

from headstart.extras.distill.model import LanguageModel, Shape
from headstart.types.errors import ModelError

CARD = "headstart.distill.card"  # key of what a draft model was made from, as JSON
OWN_FIELDS = ("GGUF.", "general.architecture", "general.name", "general.file_type", CARD)
TYPES = {
    "F16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}


def read_model(reader: GGUFReader, context: int) -> LanguageModel:
    """Load the model of a GGUF, with its weights, for rows of up to `context` tokens.

    Raises:
        ModelError: it is not a plain llama model.
    """

    def number(key: str, default: float | None = None) -> float:
        field = reader.fields.get(f"llama.{key}")
        found = default if field is None else field.contents()
        if found is None:
            raise ModelError(_REFUSED.format(f"it has no llama.{key}"))
        return float(found)

    weights = {
        t.name.replace("blk.", "blocks."): torch.from_numpy(
            dequantize(t.data, t.tensor_type).astype(np.float32)
        )
        for t in reader.tensors
    }
    if reader.fields["general.architecture"].contents() != "llama":
        raise ModelError(_REFUSED.format("its architecture is another"))
    if any(name.startswith("llama.rope.scaling") for name in reader.fields):
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
    )
    model = LanguageModel(shape, context)
    if "output.weight" not in weights:  # it is the embedding
        model.output.weight = model.token_embd.weight
        weights["output.weight"] = weights["token_embd.weight"]
    if unlike := model.state_dict().keys() ^ weights.keys():
        raise ModelError(_REFUSED.format(f"{sorted(unlike)[0]} is in one of them only"))
    model.load_state_dict(weights)
    return model


_REFUSED = (
    "this draft model cannot be tuned, because it is not built as a plain llama model: {}; name a "
    "llama GGUF with --draft-model"
)


def write_model(
    base: GGUFReader, weights: Mapping[str, Tensor], output: Path, kind: str, card: Any
) -> None:
    """Write a GGUF with the base's metadata, matrices of type F16 or Q8_0, and a card."""
    matrix_type, file_type = TYPES[kind]
    writer = GGUFWriter(output, "llama")
    writer.add_name(output.stem)
    writer.add_file_type(file_type)
    for field in base.fields.values():
        if not field.name.startswith(OWN_FIELDS):
            kinds = field.types
            writer.add_key_value(field.name, field.contents(), kinds[0], *kinds[1:2])
    writer.add_string(CARD, json.dumps(card))
    for tensor in base.tensors:
        values = weights[tensor.name.replace("blk.", "blocks.")].float().cpu().numpy()
        add_tensor(writer, tensor.name, values, matrix_type)
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


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
