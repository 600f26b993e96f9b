"""Give a small model the cost of a big one: same text, more arithmetic.

Widening with zeros and adding layers whose output weights are zero changes no logit, but every
weight is read and multiplied. So speculation can be measured at a realistic ratio of target to
draft without a big model at hand:

    python -m benchmarks.inflate 1b-q8 draft-0.06b-q8 -o models/

How it stays the same function (small width d, big width D):
  RMS norm     the mean of squares falls by d / D, so its weights shrink by sqrt(d / D) and its
               epsilon by d / D
  attention    a query head moves to where it keeps its KV head; the new heads read zeros and write
               zeros
  new layers   random inputs, zero `attn_output` and `ffn_down`: they add nothing to the residual
               stream; of a hybrid they are recurrent, with zero `ssm_out`
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    dequantize,
    quantize,
)
from numpy.typing import NDArray

from headstart.app import demo
from headstart.extras.distill.edit import begin, finish

F32 = GGMLQuantizationType.F32
FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
RANDOM_ROWS = 64  # a block of random rows is made once and repeated: the values never matter

Floats = NDArray[np.float32]
Encoded = NDArray[np.uint8]  # one row of bytes per row of weights; zero bytes mean zero weights
Arrange = Callable[[Floats], Floats]


def _as_is(weights: Floats) -> Floats:
    return weights


@dataclass(frozen=True, slots=True)
class Shape:
    """A llama architecture; the head size stays that of the small model."""

    num_layers: int
    width: int
    ff_width: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int = 0  # 0 for that of the small model; added tokens have a logit of 0
    is_hybrid: bool = False  # new layers are recurrent, as most of granitehybrid's


@dataclass(frozen=True, slots=True)
class Preset:
    """What to inflate, to which shape, in which weight type."""

    source: str
    shape: Shape
    weight_type: str  # F32, F16 or Q8_0


_DRAFT_SHAPE = Shape(8, 768, 2048, 12, 2)
_8B_SHAPE = Shape(32, 4096, 14336, 64, 16, vocab_size=131_072)
PRESETS = {
    "1b-q8": Preset(demo.TARGET, Shape(22, 2048, 5632, 32, 4), "Q8_0"),
    # for tables of many cells: a step takes a fifth
    "0.2b-q8": Preset(demo.TARGET, Shape(16, 1024, 2816, 16, 4), "Q8_0"),
    "0.2b-hybrid-q8": Preset(demo.TARGET, Shape(16, 1024, 2816, 16, 4, is_hybrid=True), "Q8_0"),
    "0.5b-q8": Preset(demo.TARGET, Shape(20, 1536, 4096, 24, 4), "Q8_0"),
    # Few wide layers in F32 wait for memory: 2 or 3 rows cost what 1 does, 8 rows less than twice
    # that.
    "0.4b-f32": Preset(demo.TARGET, Shape(4, 4096, 4096, 64, 8), "F32"),
    # for graphics cards: the size of an 8 B model, with as many tokens
    "8b-q8": Preset(demo.TARGET, _8B_SHAPE, "Q8_0"),
    "8b-f16": Preset(demo.TARGET, _8B_SHAPE, "F16"),
    "draft-0.25b-q8": Preset(demo.DRAFT, replace(_DRAFT_SHAPE, vocab_size=131_072), "Q8_0"),
    "draft-0.06b-q8": Preset(demo.DRAFT, _DRAFT_SHAPE, "Q8_0"),
    "draft-other-0.06b-q8": Preset(demo.DRAFT_OTHER, _DRAFT_SHAPE, "Q8_0"),
}


class Source:
    """A small llama GGUF, read lazily."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.shape = Shape(
            num_layers=self.number("block_count"),
            width=self.number("embedding_length"),
            ff_width=self.number("feed_forward_length"),
            num_heads=self.number("attention.head_count"),
            num_kv_heads=self.number("attention.head_count_kv"),
            vocab_size=self.number("vocab_size"),
        )
        self.head_size = self.number("attention.key_length")

    def number(self, key: str) -> int:
        """Return an integer of the metadata, `llama.` left out."""
        return int(self.reader.fields[f"llama.{key}"].contents())

    def vocabulary(self, size: int) -> dict[str, object]:
        """Return the metadata of its tokens and unused ones up to `size`."""
        added = range(self.shape.vocab_size, size)
        more = {
            "tokens": [f"<unused_{token}>" for token in added],
            "scores": [0.0] * len(added),
            "token_type": [int(TokenType.UNUSED)] * len(added),
        }
        fields = {f"tokenizer.ggml.{name}": values for name, values in more.items()}
        found = {name: self.reader.fields.get(name) for name in fields}
        changed = {name: one.contents() + fields[name] for name, one in found.items() if one}
        return {**changed, "llama.vocab_size": self.shape.vocab_size + len(added)}

    def weights(self, name: str) -> Floats:
        """Return a tensor as floats, shape (outputs, inputs) or (width,)."""
        tensor = self.tensors[name]
        values: Floats = dequantize(tensor.data, tensor.tensor_type)
        return values


def build(preset: Preset, output: Path) -> bool:
    """Write the inflated model, unless there is such a file; return whether it was written.

    Holds all of it in memory. The file appears under its name only when it is complete.
    """
    if output.exists():
        return False
    output.parent.mkdir(parents=True, exist_ok=True)
    source, shape = Source(demo.path(preset.source)), preset.shape
    tensors = list(Inflation(source, preset).tensors())
    size = sum(one.num_weights for one in tensors) / 1e9
    epsilon = source.reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    changes = {
        "general.name": f"{preset.source} inflated to {size:.2f} B, {preset.weight_type}",
        "general.file_type": int(FILE_TYPES[preset.weight_type]),
        "llama.block_count": shape.num_layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.ff_width,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": epsilon * source.shape.width / shape.width,
        **source.vocabulary(shape.vocab_size),
    }
    if shape.is_hybrid:
        changes |= {f"llama.ssm.{name}": size for name, size in recurrence(shape).items()}
    writer = begin(source.reader, output, changes)
    if shape.is_hybrid:
        _make_hybrid(writer, shape, source.shape.num_layers)
    for name, kind, rows in tensors:
        writer.add_tensor(name, rows, raw_dtype=kind)
    finish(writer)
    return True


def recurrence(shape: Shape) -> dict[str, int]:
    """The sizes of Mamba-2 layers, as in Granite 4, by their names in a GGUF."""
    sizes = {"conv_kernel": 4, "state_size": 128, "group_count": 1}
    return sizes | {"inner_size": 2 * shape.width, "time_step_rank": shape.width // 32}


def _make_hybrid(writer: GGUFWriter, shape: Shape, num_kept: int) -> None:
    """Change the metadata of a llama model to that of a hybrid with `num_kept` attention layers."""
    key, own = "granitehybrid.attention.head_count_kv", writer.kv_data[0]
    fields = {name.replace("llama.", "granitehybrid."): own[name] for name in own}
    del fields[key], fields["general.architecture"]
    writer.kv_data[0] = fields
    writer.add_string("general.architecture", "granitehybrid")
    num_new = shape.num_layers - num_kept
    writer.add_array(key, [shape.num_kv_heads] * num_kept + [0] * num_new)


class Tensor(NamedTuple):
    """A tensor to write, as the bytes of its rows."""

    name: str
    type: GGMLQuantizationType
    rows: Encoded

    @property
    def num_weights(self) -> int:
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        return int(self.rows.size // block_bytes * block_size)


class Inflation:
    """The tensors of the big model, in file order."""

    def __init__(self, source: Source, preset: Preset) -> None:
        self.source = source
        self.small, self.big = source.shape, preset.shape
        self.head_size = source.head_size
        self.type = GGMLQuantizationType[preset.weight_type]
        self.random: dict[int, Encoded] = {}

    def tensors(self) -> Iterator[Tensor]:
        big, vocab = self.big, max(self.small.vocab_size, self.big.vocab_size)
        query_width, kv_width = big.num_heads * self.head_size, big.num_kv_heads * self.head_size
        yield self._padded("token_embd.weight", vocab, big.width)
        yield self._norm("output_norm.weight")
        yield self._padded("output.weight", vocab, big.width)
        for layer in range(big.num_layers):
            is_new = layer >= self.small.num_layers  # adds nothing
            norm, prefix = self._ones if is_new else self._norm, f"blk.{layer}."
            read = self._random if is_new else self._padded
            write = self._zeros if is_new else self._padded
            yield norm(prefix + "attn_norm.weight")
            if is_new and big.is_hybrid:
                yield from self._recurrent(prefix)
            else:
                yield read(prefix + "attn_q.weight", query_width, big.width, self._move_heads)
                yield read(prefix + "attn_k.weight", kv_width, big.width)
                yield read(prefix + "attn_v.weight", kv_width, big.width)
                name = prefix + "attn_output.weight"
                yield write(name, big.width, query_width, self._move_inputs)
            yield norm(prefix + "ffn_norm.weight")
            yield read(prefix + "ffn_gate.weight", big.ff_width, big.width)
            yield read(prefix + "ffn_up.weight", big.ff_width, big.width)
            yield write(prefix + "ffn_down.weight", big.width, big.ff_width)

    def _recurrent(self, prefix: str) -> Iterator[Tensor]:
        sizes = recurrence(self.big)
        inner, heads = sizes["inner_size"], sizes["time_step_rank"]
        mixed = inner + 2 * sizes["state_size"]
        yield self._random(prefix + "ssm_in.weight", inner + mixed + heads, self.big.width)
        yield self._zeros(prefix + "ssm_out.weight", self.big.width, inner)
        for name, value, *size in (
            ("ssm_conv1d.weight", 0.25, mixed, sizes["conv_kernel"]),
            ("ssm_conv1d.bias", 0.0, mixed),
            ("ssm_dt.bias", 0.0, heads),
            ("ssm_a", -1.0, heads, 1),
            ("ssm_d", 1.0, heads, 1),
            ("ssm_norm.weight", 1.0, 1, inner),
        ):
            yield Tensor(prefix + name, F32, _bytes(np.full(size, value, np.float32)))

    def _ones(self, name: str) -> Tensor:
        return Tensor(name, F32, _bytes(np.ones(self.big.width, np.float32)))

    def _norm(self, name: str) -> Tensor:
        weights = np.zeros(self.big.width, np.float32)
        scale = math.sqrt(self.small.width / self.big.width)
        weights[: self.small.width] = self.source.weights(name) * scale
        return Tensor(name, F32, _bytes(weights))

    def _padded(self, name: str, rows: int, columns: int, arrange: Arrange = _as_is) -> Tensor:
        tensor = self._zeros(name, rows, columns)
        small = self._encode(arrange(self.source.weights(name)))
        tensor.rows[: small.shape[0], : small.shape[1]] = small
        return tensor

    def _random(self, name: str, rows: int, columns: int, _: Arrange = _as_is) -> Tensor:
        if columns not in self.random:
            values = np.random.default_rng(columns).standard_normal(
                (RANDOM_ROWS, columns), np.float32
            )
            self.random[columns] = self._encode(values * np.float32(0.02))
        made = self.random[columns]
        return Tensor(name, self.type, np.resize(made, (rows, made.shape[1])))

    def _zeros(self, name: str, rows: int, columns: int, _: Arrange = _as_is) -> Tensor:
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        shape = rows, columns // block_size * block_bytes
        return Tensor(name, self.type, np.zeros(shape, np.uint8))

    def _move_heads(self, queries: Floats) -> Floats:
        """Place query heads, shape (num_heads * head_size, any), where each keeps its KV head."""
        old_group = self.small.num_heads // self.small.num_kv_heads
        new_group = self.big.num_heads // self.big.num_kv_heads
        moved = np.zeros((self.big.num_heads, self.head_size, queries.shape[1]), np.float32)
        for head, rows in enumerate(queries.reshape(self.small.num_heads, self.head_size, -1)):
            moved[head // old_group * new_group + head % old_group] = rows
        return moved.reshape(-1, queries.shape[1])

    def _move_inputs(self, outputs: Floats) -> Floats:
        return self._move_heads(outputs.T).T

    def _encode(self, values: Floats) -> Encoded:
        return _bytes(quantize(np.ascontiguousarray(values), self.type))


def _bytes(values: NDArray[np.generic]) -> Encoded:
    return np.ascontiguousarray(values).view(np.uint8)


def main() -> None:
    """Parse the command line and build the presets it names."""
    parser = argparse.ArgumentParser(description="Build inflated demo models for benchmarks.")
    parser.add_argument("preset", nargs="+", choices=[*PRESETS, "all"])
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder for PRESET.gguf"
    )
    args = parser.parse_args()
    for name in PRESETS if "all" in args.preset else args.preset:
        output = args.output / f"{name}.gguf"
        state = "written" if build(PRESETS[name], output) else "already there"
        print(f"{output}: {output.stat().st_size / 1e6:.0f} MB, {state}", flush=True)


if __name__ == "__main__":
    main()
