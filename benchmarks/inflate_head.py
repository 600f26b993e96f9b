"""Give an EAGLE-3 head of the demo target the size that one of an inflated target has.

    python -m benchmarks.inflate 1b-q8 -o models/
    python -m benchmarks.inflate_head demo-eagle3.gguf 1b-q8 -o models/1b-eagle3.gguf

It drafts the same tokens: what `inflate` does to a layer is done to the head's. The target's states
have their numbers in the first places of a row, so the columns that read them move there.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from benchmarks.inflate import PRESETS, Shape
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize, quantize
from numpy.typing import NDArray

Floats = NDArray[np.float32]
NORMS = ("attn_norm", "attn_norm_2", "ffn_norm", "output_norm", "enc.output_norm")


class Head:
    """A small EAGLE-3 GGUF."""

    def __init__(self, path: Path, big: Shape) -> None:
        self.reader, self.big = GGUFReader(path), big
        self.width = self.number("embedding_length")
        self.head_size = self.number("attention.key_length")
        self.num_heads = self.number("attention.head_count")
        self.num_kv_heads = self.number("attention.head_count_kv")

    def number(self, key: str) -> int:
        """An integer of the metadata, `eagle3.` left out."""
        return int(self.reader.fields[f"eagle3.{key}"].contents())

    def weights(self, name: str, small: Floats) -> Floats:
        """A tensor of the big head."""
        kind, big, head_size = name.removesuffix(".weight").split(".")[-1], self.big, self.head_size
        if kind in NORMS:
            norm = np.zeros(big.width, np.float32)
            norm[: self.width] = small * math.sqrt(self.width / big.width)
            return norm
        if kind == "fc":  # of the states of several layers side by side
            return self._padded(small, big.width, big.width, small.shape[1] // self.width)
        if kind == "attn_q":
            return self._padded(self._moved(small), big.num_heads * head_size, big.width, 2)
        if kind in ("attn_k", "attn_v"):
            return self._padded(small, big.num_kv_heads * head_size, big.width, 2)
        if kind == "attn_output":
            return self._padded(self._moved(small.T).T, big.width, big.num_heads * head_size)
        if kind in ("ffn_gate", "ffn_up"):
            return self._padded(small, big.ff_width, big.width)
        if kind == "ffn_down":
            return self._padded(small, big.width, big.ff_width)
        return self._padded(small, len(small), big.width)  # the output head

    def _padded(self, small: Floats, rows: int, columns: int, parts: int = 1) -> Floats:
        """In `parts` groups of columns, each wider than it was."""
        canvas = np.zeros((rows, parts, columns), np.float32)
        of_part = small.reshape(len(small), parts, -1)
        canvas[: len(small), :, : of_part.shape[2]] = of_part
        return canvas.reshape(rows, parts * columns)

    def _moved(self, queries: Floats) -> Floats:
        """Query heads, shape (heads * head_size, any), placed where each keeps its KV head."""
        old, new = self.num_heads // self.num_kv_heads, self.big.num_heads // self.big.num_kv_heads
        moved = np.zeros((self.big.num_heads, self.head_size, queries.shape[1]), np.float32)
        for head, rows in enumerate(queries.reshape(self.num_heads, self.head_size, -1)):
            moved[head // old * new + head % old] = rows
        return moved.reshape(-1, queries.shape[1])


def write(head: Head, output: Path, weight_type: str) -> None:
    """Write the big head."""
    writer, big = GGUFWriter(output, "eagle3"), head.big
    epsilon = head.reader.fields["eagle3.attention.layer_norm_rms_epsilon"].contents()
    changed = {
        "eagle3.embedding_length": big.width,
        "eagle3.target_hidden_size": big.width,
        "eagle3.feed_forward_length": big.ff_width,
        "eagle3.attention.head_count": big.num_heads,
        "eagle3.attention.head_count_kv": big.num_kv_heads,
        "eagle3.attention.layer_norm_rms_epsilon": epsilon * head.width / big.width,
    }
    for key, field in head.reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":  # the writer adds these
            continue
        sub_type = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(key, changed.get(key, field.contents()), field.types[0], sub_type)
    for tensor in head.reader.tensors:
        if tensor.tensor_type is GGMLQuantizationType.I64:  # the ids of a reduced vocabulary
            writer.add_tensor(tensor.name, np.array(tensor.data).reshape(-1))
            continue
        values = head.weights(tensor.name, dequantize(tensor.data, tensor.tensor_type))
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            kind = GGMLQuantizationType[weight_type]
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("head", type=Path, help="GGUF of the demo target's head")
    parser.add_argument("preset", choices=PRESETS, help="of its target")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--type", default="Q8_0", help="of the weights")
    args = parser.parse_args()
    write(Head(args.head, PRESETS[args.preset].shape), args.output, args.type)


if __name__ == "__main__":
    main()
