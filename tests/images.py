"""Tiny projectors with random weights, models that they belong to, and pictures."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGUFWriter

Kind = Literal["janus_pro", "gemma3", "qwen2vl_merger", "idefics3"]


def projector(path: Path, kind: Kind, width: int, *, seed: int = 0) -> Path:
    """Write a projector for a model of this width; an image has a few cells."""
    size, ff, image, patch = 32, 64, 28, 7
    if kind == "qwen2vl_merger":
        image, patch = 32, 4
    random, writer = np.random.default_rng(seed), GGUFWriter(path, "clip")

    def tensor(name: str, *shape: int, scale: float = 0.05) -> None:
        values = random.standard_normal(shape) * scale
        writer.add_tensor(name, values.astype(np.float32))

    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "embedding_length": size, "feed_forward_length": ff, "block_count": 1,
        "projection_dim": width, "image_size": image, "patch_size": patch,
        "attention.head_count": 2, "projector.scale_factor": 2,
    }  # fmt: skip
    for name, value in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
    tensor("v.patch_embd.weight", size, 3, patch, patch, scale=0.2)
    for part in ("q", "k", "v", "out"):
        tensor(f"v.blk.0.attn_{part}.weight", size, size, scale=0.3)
        tensor(f"v.blk.0.attn_{part}.bias", size)
    for part, rows, columns in (("up", ff, size), ("down", size, ff)):
        tensor(f"v.blk.0.ffn_{part}.weight", rows, columns, scale=0.3)
        tensor(f"v.blk.0.ffn_{part}.bias", rows)
    for norm in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        writer.add_tensor(f"{norm}.weight", np.ones(size, np.float32))
        writer.add_tensor(f"{norm}.bias", np.zeros(size, np.float32))
    if kind == "qwen2vl_merger":
        tensor("v.patch_embd.weight.1", size, 3, patch, patch, scale=0.2)
        for name, rows in (("mm.0", 4 * size), ("mm.2", width)):
            tensor(f"{name}.weight", rows, 4 * size, scale=0.1)
            tensor(f"{name}.bias", rows)
    else:
        tensor("v.position_embd.weight", (image // patch) ** 2, size, scale=0.3)
        tensor("v.patch_embd.bias", size)
    if kind == "gemma3":
        tensor("mm.input_projection.weight", size, width, scale=0.2)
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(size, np.float32))
    if kind == "idefics3":
        tensor("mm.model.fc.weight", width, 4 * size)
        writer.add_uint32("clip.vision.preproc_image_size", 2 * image)
    if kind == "janus_pro":
        for name, rows, columns in (("mm.0", ff, size), ("mm.1", width, ff)):
            tensor(f"{name}.weight", rows, columns, scale=0.2)
            tensor(f"{name}.bias", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def picture(seed: int = 0, width: int = 28, height: int = 28) -> bytes:
    """A PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, 3 * width), np.uint8)
    return png(width, height, b"".join(b"\0" + line.tobytes() for line in pixels))


def png(width: int, height: int, lines: bytes) -> bytes:
    """A PNG with this content, which need not fit its size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


TINY_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP////////////////////////////////////////////////////////////"
    "//////////////////////////wgALCAABAAEBAREA/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxA="
)
TINY_GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
