"""Weights to GGUF: llama architecture, Q8_0 matrices, F32 norms, the tokenizer and the chat
template inside.

    python -m training.export target --work DIR -o demo-target.gguf

reads what training.train and training.tokenizer left in DIR.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from torch import Tensor

from headstart.extras.distill.edit import finish
from headstart.extras.distill.gguf_file import add_tensor
from headstart.extras.distill.model import Shape
from training import tokenizer
from training.induction import SHAPES

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 2048  # RoPE goes further than the rows it was trained on, with less quality
Q8_0 = GGMLQuantizationType.Q8_0


def export(weights: dict[str, Tensor], shape: Shape, tokenizer_file: Path, output: Path) -> None:
    """Write a GGUF named after the output file; all widths must be multiples of 32."""
    writer = GGUFWriter(output, "llama")
    writer.add_name(output.stem)
    _add_shape(writer, shape)
    _add_tokenizer(writer, tokenizer_file)
    for name, tensor in weights.items():
        add_tensor(writer, name.replace("blocks.", "blk."), tensor.float().cpu().numpy(), Q8_0)
    finish(writer)


def _add_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.ff_width)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)


def _add_tokenizer(writer: GGUFWriter, path: Path) -> None:
    """Add vocabulary, merges, special tokens and chat template."""
    saved = json.loads(path.read_text())
    ids = dict(saved["model"]["vocab"]) | {
        token["content"]: token["id"] for token in saved["added_tokens"]
    }
    tokens = sorted(ids, key=lambda token: ids[token])
    special = dict.fromkeys(tokenizer.CONTROL_TOKENS, TokenType.CONTROL)
    special |= dict.fromkeys(tokenizer.USER_TOKENS, TokenType.USER_DEFINED)
    merges = saved["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([special.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    writer.add_eos_token_id(tokenizer.IM_END)
    writer.add_bos_token_id(tokenizer.END_OF_TEXT)
    writer.add_pad_token_id(tokenizer.END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, token in (
        ("fim_pre", tokenizer.FIM_PREFIX),
        ("fim_suf", tokenizer.FIM_SUFFIX),
        ("fim_mid", tokenizer.FIM_MIDDLE),
        ("eot", tokenizer.IM_END),
    ):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description="Write a trained demo model as GGUF.")
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder with the weights and the tokenizer"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    saved = torch.load(args.work / f"{args.model}.pt", map_location="cpu", weights_only=True)
    shape = Shape(**saved["shape"])
    export(saved["weights"], shape, tokenizer.path_of(args.work, shape.vocab_size), args.output)
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
