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
  qwen35       its gates, with zero weights, halve what attention writes, which has twice the
               weights; its norms of queries and keys divide by a constant, because epsilon exceeds
               them: what is added to the residual stream is LOUD times as large, and epsilon grows
               with its square
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
HYBRIDS = {"granitehybrid": {"group_count": 1}, "qwen35": {"group_count": 8}}
LOUD = 2.0**19
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
    hybrid: str = ""  # one of HYBRIDS, whose recurrent layers the new ones are; empty: none

    @property
    def is_gated(self) -> bool:
        """Whether it has Qwen 3.5's gates, norms of queries and keys, and order of rotation."""
        return self.hybrid == "qwen35"

    @property
    def loudness(self) -> float:
        """How much more is added to the residual stream."""
        return LOUD if self.is_gated else 1.0


@dataclass(frozen=True, slots=True)
class Preset:
    """What to inflate, to which shape, in which weight type."""

    source: str
    shape: Shape
    weight_type: str  # F32, F16 or Q8_0


_SMALL = Shape(16, 1024, 2816, 16, 4)
_DRAFT_SHAPE = Shape(8, 768, 2048, 12, 2)
_8B_SHAPE = Shape(32, 4096, 14336, 64, 16, vocab_size=131_072)
PRESETS = {
    "1b-q8": Preset(demo.TARGET, Shape(22, 2048, 5632, 32, 4), "Q8_0"),
    # for tables of many cells: a step takes a fifth
    "0.2b-q8": Preset(demo.TARGET, _SMALL, "Q8_0"),
    "0.2b-granite-q8": Preset(demo.TARGET, replace(_SMALL, hybrid="granitehybrid"), "Q8_0"),
    "0.2b-qwen-q8": Preset(demo.TARGET, replace(_SMALL, hybrid="qwen35"), "Q8_0"),
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
    changes = {
        "general.name": f"{preset.source} inflated to {size:.2f} B, {preset.weight_type}",
        "general.file_type": int(FILE_TYPES[preset.weight_type]),
        "llama.block_count": shape.num_layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.ff_width,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": epsilon_of(source, shape),
        **source.vocabulary(shape.vocab_size),
    }
    if shape.hybrid:
        changes |= {f"llama.ssm.{name}": size for name, size in recurrence(shape).items()}
    writer = begin(source.reader, output, changes)
    if shape.hybrid:
        _make_hybrid(writer, shape, source)
    for name, kind, rows in tensors:
        writer.add_tensor(name, rows, raw_dtype=kind)
    finish(writer)
    return True


def epsilon_of(source: Source, shape: Shape) -> float:
    """The epsilon of the big model's norms."""
    own = float(source.reader.fields["llama.attention.layer_norm_rms_epsilon"].contents())
    return own * source.shape.width / shape.width * shape.loudness**2


def recurrence(shape: Shape) -> dict[str, int]:
    """The sizes of recurrent layers by their names in a GGUF: Mamba-2 as in Granite 4, or gated
    delta nets as in Qwen 3.5.
    """
    inner, size = 2 * shape.width, 128
    heads = inner // size if shape.is_gated else shape.width // 32
    sizes = {"conv_kernel": 4, "state_size": size, "inner_size": inner, "time_step_rank": heads}
    return {**sizes, **HYBRIDS[shape.hybrid]}


def _make_hybrid(writer: GGUFWriter, shape: Shape, source: Source) -> None:
    """Change the metadata of a llama model to that of a hybrid; the first layers have attention."""
    name, own, num_kept = shape.hybrid, writer.kv_data[0], source.shape.num_layers
    fields = {key.replace("llama.", f"{name}."): own[key] for key in own}
    del fields["general.architecture"]
    is_new = [layer >= num_kept for layer in range(shape.num_layers)]
    counts = fields.pop(f"{name}.attention.head_count_kv")
    writer.kv_data[0] = fields
    writer.add_string("general.architecture", name)
    if shape.is_gated:
        fields[f"{name}.attention.head_count_kv"] = counts
        writer.add_array(f"{name}.attention.recurrent_layers", is_new)
        third = -(-source.head_size // 6)  # a dimension of positions in images each
        rest = source.head_size // 2 - 2 * third
        writer.add_array(f"{name}.rope.dimension_sections", [third, third, rest, 0])
    else:
        num_heads = [0 if new else shape.num_kv_heads for new in is_new]
        writer.add_array(f"{name}.attention.head_count_kv", num_heads)


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
        yield self._padded("token_embd.weight", vocab, big.width, self._louder)
        yield self._norm("output_norm.weight")
        yield self._padded("output.weight", vocab, big.width)
        for layer in range(big.num_layers):
            is_new = layer >= self.small.num_layers  # adds nothing
            norm, prefix = self._ones if is_new else self._norm, f"blk.{layer}."
            read = self._random if is_new else self._padded
            write = self._zeros if is_new else self._padded
            yield norm(prefix + "attn_norm.weight")
            if is_new and big.hybrid:
                yield from self._recurrent(prefix)
            else:
                queries = query_width * (1 + big.is_gated)
                yield read(prefix + "attn_q.weight", queries, big.width, self._queries)
                yield read(prefix + "attn_k.weight", kv_width, big.width, self._rotated)
                yield read(prefix + "attn_v.weight", kv_width, big.width)
                name = prefix + "attn_output.weight"
                yield write(name, big.width, query_width, self._move_inputs)
            if big.is_gated and not is_new:
                constant = math.sqrt(epsilon_of(self.source, big))
                for name in ("attn_q_norm", "attn_k_norm"):
                    yield self._full(f"{prefix}{name}.weight", constant, self.head_size)
            after = "post_attention_norm" if big.is_gated else "ffn_norm"
            yield norm(prefix + "ffn_norm.weight")._replace(name=f"{prefix}{after}.weight")
            yield read(prefix + "ffn_gate.weight", big.ff_width, big.width)
            yield read(prefix + "ffn_up.weight", big.ff_width, big.width)
            yield write(prefix + "ffn_down.weight", big.width, big.ff_width, self._louder)

    def _recurrent(self, prefix: str) -> Iterator[Tensor]:
        sizes, width = recurrence(self.big), self.big.width
        inner, heads = sizes["inner_size"], sizes["time_step_rank"]
        mixed = inner + 2 * sizes["state_size"] * sizes["group_count"]
        yield self._zeros(prefix + "ssm_out.weight", width, inner)
        if self.big.is_gated:
            yield self._random(prefix + "attn_qkv.weight", mixed, width)
            yield self._random(prefix + "attn_gate.weight", inner, width)
            yield self._random(prefix + "ssm_beta.weight", heads, width)
            yield self._random(prefix + "ssm_alpha.weight", heads, width)
            yield self._full(prefix + "ssm_a", -1.0, heads)
            yield self._full(prefix + "ssm_norm.weight", 1.0, sizes["state_size"])
        else:
            yield self._random(prefix + "ssm_in.weight", inner + mixed + heads, width)
            yield self._full(prefix + "ssm_conv1d.bias", 0.0, mixed)
            yield self._full(prefix + "ssm_a", -1.0, heads, 1)
            yield self._full(prefix + "ssm_d", 1.0, heads, 1)
            yield self._full(prefix + "ssm_norm.weight", 1.0, 1, inner)
        yield self._full(prefix + "ssm_conv1d.weight", 0.25, mixed, sizes["conv_kernel"])
        yield self._full(prefix + "ssm_dt.bias", 0.0, heads)

    def _full(self, name: str, value: float, *size: int) -> Tensor:
        return Tensor(name, F32, _bytes(np.full(size, value, np.float32)))

    def _ones(self, name: str) -> Tensor:
        return self._full(name, 1.0, self.big.width)

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
        return self._louder(self._move_heads(outputs.T).T) * (1 + self.big.is_gated)

    def _queries(self, queries: Floats) -> Floats:
        """Rotated and moved, each head followed by its gate if it has one."""
        moved = self._move_heads(self._rotated(queries))
        if not self.big.is_gated:
            return moved
        heads = moved.reshape(self.big.num_heads, self.head_size, -1)
        return np.concatenate((heads, np.zeros_like(heads)), axis=1).reshape(-1, moved.shape[1])

    def _rotated(self, rows: Floats) -> Floats:
        """The rows of each head in the order of their rotation: with Qwen 3.5 halves, not pairs."""
        if not self.big.is_gated:
            return rows
        pairs = rows.reshape(-1, self.head_size // 2, 2, rows.shape[1])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def _louder(self, outputs: Floats) -> Floats:
        return outputs * np.float32(self.big.loudness)

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
