"""A target from its GGUF to PyTorch, and its EAGLE-3 head from PyTorch to GGUF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from headstart.extras.distill.gguf_file import add_tensor, copy_fields, finish
from headstart.extras.distill.model import EPSILON, ROPE_BASE, LanguageModel
from training.eagle3_head import LAYERS, Head, HeadShape
from training.export import CONTEXT, Q8_0


def load_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Return the tokenizer of a GGUF, so that the text is cut as the model knows it."""
    tokens, merges, types = (
        reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "merges", "token_type")
    )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind != TokenType.NORMAL]
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return made


def load_head(reader: GGUFReader, target: LanguageModel) -> tuple[Head, Tensor]:
    """Return a head that `export` wrote, and its ids, to train it further."""
    tensors = {tensor.name.removeprefix("blk.0."): tensor for tensor in reader.tensors}
    ids = torch.from_numpy(np.array(tensors.pop("d2t").data).astype(np.int64))
    shape = HeadShape(target.shape, len(ids), int(tensors["ffn_gate.weight"].shape[1]))
    head = Head(shape, target, ids)
    weights = {
        name: torch.from_numpy(dequantize(t.data, t.tensor_type).astype(np.float32))
        for name, t in tensors.items()
    }
    head.load_state_dict(weights)
    return head, ids


def export(head: Head, ids: Tensor, target: GGUFReader, output: Path) -> None:
    """Write the head: matrices Q8_0, and which of the target's ids its own ids are."""
    shape, writer = head.shape, GGUFWriter(output, "eagle3")
    writer.add_name(output.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.target.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(shape.ff_width)
    writer.add_head_count(shape.target.num_heads)
    writer.add_head_count_kv(shape.target.num_kv_heads)
    writer.add_key_length(shape.target.head_size)
    writer.add_value_length(shape.target.head_size)
    writer.add_rope_dimension_count(shape.target.head_size)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_array("eagle3.target_layers", list(LAYERS))
    writer.add_uint32("eagle3.target_hidden_size", shape.target.width)
    copy_fields(target, writer, "tokenizer.")
    for name, tensor in head.state_dict().items():
        full = name if name.startswith(("fc", "output")) else f"blk.0.{name}"
        add_tensor(writer, full, tensor.float().cpu().numpy(), Q8_0)
    map_to_target = ids.cpu().numpy().astype(np.int64)
    writer.add_tensor("d2t", map_to_target, raw_dtype=GGMLQuantizationType.I64)
    finish(writer)
