"""Tiny random GGUF models for tests: they load in milliseconds and say nothing sensible.

One vocabulary of 256 bytes, a few merges and the ChatML markers; `merges` makes another one. The
seed decides the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, quantize
from numpy.typing import NDArray

Merges = Sequence[tuple[str, str]]
MERGES: Merges = (
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("Ġ", "a"),
    ("e", "r"),
    ("o", "n"),
    ("a", "n"),
)
OTHER_MERGES: Merges = (("i", "n"), ("in", "g"), ("o", "u"), ("Ġ", "w"), ("h", "e"), ("r", "e"))
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 2048

Broken = Literal[
    "empty",
    "not-gguf",
    "truncated-header",
    "truncated-tensors",
    "unknown-architecture",
    "missing-tensor",
    "wrong-shape",
]
BROKEN_KINDS: tuple[Broken, ...] = get_args(Broken)
MAX_LAYERS = 512  # libllama's; it aborts the process over a model with none or with more


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a tiny model."""

    width: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    ff_width: int = 96

    @property
    def head_size(self) -> int:
        return self.width // self.num_heads


TINY = Shape()
# for draft models
SMALLER = Shape(width=32, num_layers=1, num_heads=2, num_kv_heads=1, ff_width=48)


class Writer:
    """A GGUF in the making; tensors are random but for norms, which are near 1."""

    def __init__(self, path: Path, architecture: str, *, merges: Merges, seed: int) -> None:
        self.path, self.architecture = path, architecture
        self.random = np.random.default_rng(seed)
        self.gguf = GGUFWriter(path, architecture)
        self.skipped: set[str] = set()
        self.is_quantized = False  # matrices are Q8_0, where llama-quantize would make them that
        self.vocab_size = self._add_vocabulary(merges)

    def numbers(self, **values: int | float) -> None:
        """Add metadata under the architecture's prefix; `__` in a name stands for a dot."""
        for name, value in values.items():
            key = f"{self.architecture}.{name.replace('__', '.')}"
            if isinstance(value, int):
                self.gguf.add_uint32(key, value)
            else:
                self.gguf.add_float32(key, value)

    def matrix(self, name: str, outputs: int, inputs: int, *, scale: float = 0.2) -> None:
        self.tensor(name, self.random.standard_normal((outputs, inputs)) * scale)

    def norm(self, name: str, width: int) -> None:
        self.tensor(name, 1 + 0.01 * self.random.standard_normal(width))

    def tensor(self, name: str, values: NDArray[np.float64]) -> None:
        if name in self.skipped:
            return
        data = values.astype(np.float32)
        if not self.is_quantized or data.ndim < 2 or data.shape[-1] % 32 or _is_kept(name):
            self.gguf.add_tensor(name, data)
            return
        kind = GGMLQuantizationType.Q8_0
        self.gguf.add_tensor(name, quantize(data, kind), raw_dtype=kind)

    def save(self) -> Path:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()
        return self.path

    def _add_vocabulary(self, merges: Merges) -> int:
        tokens = [*_byte_letters(), *(a + b for a, b in merges), *CONTROL_TOKENS]
        num_normal = len(tokens) - len(CONTROL_TOKENS)
        end_of_text, _, im_end = range(num_normal, len(tokens))
        self.gguf.add_tokenizer_model("gpt2")
        self.gguf.add_tokenizer_pre("gpt-2")
        self.gguf.add_token_list(tokens)
        self.gguf.add_token_types(
            [TokenType.NORMAL] * num_normal + [TokenType.CONTROL] * len(CONTROL_TOKENS)
        )
        self.gguf.add_token_merges([f"{a} {b}" for a, b in merges])
        self.gguf.add_bos_token_id(end_of_text)
        self.gguf.add_eos_token_id(im_end)
        self.gguf.add_pad_token_id(end_of_text)
        self.gguf.add_add_bos_token(False)
        self.gguf.add_chat_template(CHAT_TEMPLATE)
        return len(tokens)


def _is_kept(tensor: str) -> bool:
    parts = ("norm", "conv1d", "shortconv.conv", "ffn_gate_inp")
    return not tensor.endswith(".weight") or any(part in tensor for part in parts)


def tiny_llama(path: Path, *, shape: Shape = TINY, merges: Merges = MERGES, seed: int = 0) -> Path:
    """Write an attention-only model: any tail of its memory can be dropped."""
    return _llama(Writer(path, "llama", merges=merges, seed=seed), shape).save()


def tiny_bert(path: Path, *, ranks: bool = False, merges: Merges = MERGES, seed: int = 0) -> Path:
    """Write an encoder with a table of positions; with `ranks` one that has a head for scores."""
    shape, context = Shape(width=32, num_heads=2, ff_width=48), 512
    writer = Writer(path, "bert", merges=merges, seed=seed)
    writer.numbers(
        context_length=context,
        embedding_length=shape.width,
        block_count=shape.num_layers,
        feed_forward_length=shape.ff_width,
        attention__head_count=shape.num_heads,
        attention__layer_norm_epsilon=1e-5,
        pooling_type=4 if ranks else 1,
    )
    writer.gguf.add_bool("bert.attention.causal", False)
    writer.gguf.add_uint32("tokenizer.ggml.token_type_count", 2)
    for name, rows in (("token_embd", writer.vocab_size), ("token_types", 2)):
        writer.matrix(f"{name}.weight", rows, shape.width)
    writer.matrix("position_embd.weight", context, shape.width)
    norms, matrices = ["token_embd_norm"], []
    for block in (f"blk.{layer}." for layer in range(shape.num_layers)):
        norms += [block + "attn_output_norm", block + "layer_output_norm"]
        matrices += [block + f"attn_{part}" for part in ("q", "k", "v", "output")]
        writer.matrix(block + "ffn_up.weight", shape.ff_width, shape.width)
        writer.matrix(block + "ffn_down.weight", shape.width, shape.ff_width)
    for name in norms:
        writer.norm(name + ".weight", shape.width)
        writer.tensor(name + ".bias", np.zeros(shape.width))
    for name in matrices + ["cls"] * ranks:
        writer.matrix(name + ".weight", shape.width, shape.width)
    if ranks:
        writer.matrix("cls.output.weight", 1, shape.width)
    return writer.save()


def broken(path: Path, kind: Broken) -> Path:
    """Write a file that must not load, and must not end the process either."""
    _BREAKERS[kind](path)
    return path


def aborting(path: Path, *, num_layers: int = MAX_LAYERS + 1) -> Path:
    """Write a file that ends the process that loads it: libllama asserts 1 to 512 layers before it
    looks for them.
    """
    writer = Writer(path, "llama", merges=MERGES, seed=0)
    add_attention_sizes(writer, replace(TINY, num_layers=num_layers))
    _add_ends(writer, TINY.width)
    return writer.save()


def _write_unknown_architecture(path: Path) -> None:
    _llama(Writer(path, "nonesuch", merges=MERGES, seed=0), TINY).save()


def _write_missing_tensor(path: Path) -> None:
    writer = Writer(path, "llama", merges=MERGES, seed=0)
    writer.skipped.add("blk.1.ffn_up.weight")
    _llama(writer, TINY).save()


def _write_wrong_shape(path: Path) -> None:
    writer = Writer(path, "llama", merges=MERGES, seed=0)
    writer.skipped.add("blk.1.ffn_up.weight")
    writer.gguf.add_tensor("blk.1.ffn_up.weight", np.zeros((8, 8), np.float32))
    _llama(writer, TINY).save()


def _cut(path: Path, share_of_header: float, share_of_tensors: float) -> None:
    """Write a good model and keep only a part of it."""
    start = GGUFReader(tiny_llama(path)).data_offset
    data = path.read_bytes()
    path.write_bytes(data[: int(start * share_of_header + (len(data) - start) * share_of_tensors)])


_BREAKERS: dict[Broken, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "not-gguf": lambda path: path.write_bytes(b"PK\x03\x04 this is another kind of file\n" * 64),
    "truncated-header": lambda path: _cut(path, 0.5, 0),
    "truncated-tensors": lambda path: _cut(path, 1, 0.5),
    "unknown-architecture": _write_unknown_architecture,
    "missing-tensor": _write_missing_tensor,
    "wrong-shape": _write_wrong_shape,
}


def _llama(writer: Writer, shape: Shape) -> Writer:
    add_attention_sizes(writer, shape)
    writer.numbers(vocab_size=writer.vocab_size)
    _add_ends(writer, shape.width)
    for layer in range(shape.num_layers):
        block = f"blk.{layer}."
        writer.norm(block + "attn_norm.weight", shape.width)
        _add_attention(writer, block, shape)
        writer.norm(block + "ffn_norm.weight", shape.width)
        _add_feed_forward(writer, block, shape)
    return writer


def add_attention_sizes(writer: Writer, shape: Shape) -> None:
    """Add the metadata of a model whose layers all have the same attention."""
    writer.gguf.add_name(f"tiny {writer.architecture}")
    writer.numbers(
        context_length=CONTEXT,
        embedding_length=shape.width,
        block_count=shape.num_layers,
        feed_forward_length=shape.ff_width,
        attention__head_count=shape.num_heads,
        attention__head_count_kv=shape.num_kv_heads,
        attention__key_length=shape.head_size,
        attention__value_length=shape.head_size,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=shape.head_size,
        rope__freq_base=10000.0,
    )


def _add_ends(writer: Writer, width: int) -> None:
    writer.matrix("token_embd.weight", writer.vocab_size, width, scale=0.5)
    writer.norm("output_norm.weight", width)
    writer.matrix("output.weight", writer.vocab_size, width, scale=0.3)


def _add_attention(writer: Writer, block: str, shape: Shape) -> None:
    query_width, kv_width = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    writer.matrix(block + "attn_q.weight", query_width, shape.width)
    writer.matrix(block + "attn_k.weight", kv_width, shape.width)
    writer.matrix(block + "attn_v.weight", kv_width, shape.width)
    writer.matrix(block + "attn_output.weight", shape.width, query_width)


def _add_feed_forward(writer: Writer, block: str, shape: Shape) -> None:
    writer.matrix(block + "ffn_gate.weight", shape.ff_width, shape.width)
    writer.matrix(block + "ffn_up.weight", shape.ff_width, shape.width)
    writer.matrix(block + "ffn_down.weight", shape.width, shape.ff_width)


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each of the 256 bytes, in order of the bytes."""
    shown = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
